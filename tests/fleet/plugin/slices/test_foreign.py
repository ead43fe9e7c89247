"""Somebody else offers the same hardware."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.core.messages import DeviceView
from fleet.plugin.slices.foreign import covered, is_simulated, own_marks

OURS = "gpu.example.com"


def device(uuid: str, **attributes: str) -> DeviceView:
    """A device of ours."""
    return DeviceView(
        uuid=uuid, name=uuid.lower(), accelerator=attributes.get("parent", uuid), units=("u",),
        memory_bytes=1, state="CLEAN", attributes=attributes,
    )  # fmt: skip


def part(
    driver: str, attributes: dict[str, Any], *, generation: int = 1, name: str = "x0"
) -> dict[str, Any]:
    """A slice of one device of some driver."""
    return {
        "metadata": {"name": f"{driver}-{generation}"},
        "spec": {
            "driver": driver,
            "nodeName": "n",
            "pool": {"name": "n", "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": name, "attributes": attributes}],
        },
    }


def why(found: DeviceView, *slices: dict[str, Any], node: dict[str, Any] | None = None) -> str:
    """Why the device is covered, or ""."""
    return covered((found,), slices=slices, driver=OURS, node=node or {}).get(found.uuid, "")


@pytest.mark.parametrize(
    "attributes",
    [
        {"uuid": {"string": "gpu-AAA"}},
        {"other.example.com/uuid": {"string": "GPU-aaa"}},
        {"parentUUID": {"string": "GPU-aaa"}},
        {"resource.kubernetes.io/pciBusID": {"string": "0000:1B:00.0"}},
        {"pciAddress": {"string": "00000000:1b:00.0"}},
    ],
)
def test_the_same_uuid_or_slot_stops_publishing(attributes: dict[str, Any]) -> None:
    """B4: another driver's slice over the same hardware is a reason not to offer it."""
    found = why(device("GPU-aaa", pci="1b:00.0"), part("other.example.com", attributes))
    assert "other.example.com" in found
    assert "x0" in found


def test_a_partition_is_covered_by_its_parent() -> None:
    """B4: who offers the whole accelerator offers every partition of it."""
    found = device("MIG-1", parent="GPU-aaa")
    assert why(found, part("o", {"uuid": {"string": "GPU-aaa"}}))


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"uuid": {"string": ""}},
        {"uuid": {"int": 3}},
        {"uuid": {"string": "GPU-bbb"}},
        {"serial": {"string": "GPU-aaa"}},
        {"pciBusID": {"string": "0001:1b:00.0"}},
        {"pciBusID": {"string": "nonsense"}},
    ],
)
def test_other_hardware_disturbs_nobody(attributes: dict[str, Any]) -> None:
    """B57: two slots never collapse into one, and unreadable marks match nothing."""
    assert why(device("GPU-aaa", pci="1b:00.0"), part("other", attributes)) == ""


def test_our_own_slices_and_outdated_ones_do_not_count() -> None:
    """B73: only the highest generation of another's pool is what it offers."""
    mark = {"uuid": {"string": "GPU-aaa"}}
    assert why(device("GPU-aaa"), part(OURS, mark)) == ""
    gone = (part("o", mark, generation=1), part("o", {}, generation=2))
    assert why(device("GPU-aaa"), *gone) == ""


def test_simulated_hardware_has_no_real_slot() -> None:
    """Promise 10: a made-up PCI address is not the real card's; two simulations do collide."""
    found = device("SIM-1", pci="1b:00.0", simulated="true")
    real = {"pciBusID": {"string": "0000:1b:00.0"}}
    assert is_simulated(found)
    assert why(found, part("other", real)) == ""
    assert why(found, part("other", {**real, "simulated": {"bool": True}}))


def test_an_extended_resource_covers_the_vendors_devices() -> None:
    """DESIGN 5, C1: a device plugin that still offers the vendor's accelerators covers ours."""
    found = device("GPU-aaa", vendor="NVIDIA")
    node = {"status": {"capacity": {"cpu": "8", "nvidia.com/mig-1g.10gb": "3"}}}
    assert "nvidia.com/mig-1g.10gb" in why(found, node=node)
    assert why(device("SIM", vendor="simulated"), node=node) == ""
    assert why(found, node={"status": {"capacity": {"nvidia.com/gpu": "0"}}}) == ""
    assert why(device("GPU-aaa"), node=node) == ""


def test_marks_are_those_of_device_and_parent() -> None:
    """What a device is recognised by, in one spelling."""
    found = device("MIG-A", parent="GPU-B", pci="00000000:1B:00.0")
    assert own_marks(found) == (frozenset({"mig-a", "gpu-b"}), "0000:1b:00.0")
