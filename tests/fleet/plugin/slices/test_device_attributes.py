"""Rendering: names, attributes and conditions of slice devices."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core.messages import DeviceView, NodeView
from fleet.core.profiles import Profile
from fleet.kube.marks import AGENT
from fleet.plugin.slices.device_attributes import (
    Terms,
    agent_device,
    attribute,
    names,
    quantity_text,
    render,
    uuid_of,
)

LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
TERMS = Terms(driver="gpu.example.com", node="node-a", profile=Profile.STRICT)


def device(name: str = "gpu-0", uuid: str = "GPU-0", **changes: Any) -> DeviceView:
    """A whole accelerator."""
    given: dict[str, Any] = {
        "uuid": uuid,
        "name": name,
        "accelerator": uuid,
        "units": (f"{uuid}/all",),
        "memory_bytes": 80 * 2**30,
        "state": "CLEAN",
        **changes,
    }
    return DeviceView(**given)


FACTS = {
    "product", "driver", "architecture", "brand", "cuda_driver", "compute_capability", "numa",
    "iommu", "pcie_root", "parent", "type",
}  # fmt: skip
SEMVER = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"


def rendered(found: DeviceView, profile: Profile = Profile.STRICT) -> dict[str, Any]:
    """The slice device of a view."""
    terms = Terms(driver="gpu.example.com", node="node-a", profile=profile)
    return render(found, found.name, taints=(), terms=terms)


def test_known_facts_become_attributes() -> None:
    """F45, DESIGN 5: every attribute the slices promise, with its type."""
    found = rendered(
        device(
            profile="1g.10gb",
            accelerator="GPU-P",
            attributes={
                "product": "Example 80GB", "driver": "580.1.2", "architecture": "hopper",
                "pci": "00000000:1B:00.0", "numa": "1", "iommu": "42", "pcie_root": "pci0000:00",
                "parent": "GPU-P", "simulated": "true", "brand": "Nvidia", "cuda_driver": "13.0",
                "compute_capability": "9.0",
            },
        )
    )  # fmt: skip
    assert found["attributes"] == {
        "uuid": {"string": "GPU-0"},
        "productName": {"string": "Example 80GB"},
        "architecture": {"string": "hopper"},
        "driverVersion": {"version": "580.1.2"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "brand": {"string": "Nvidia"},
        "type": {"string": "mig"},
        "profile": {"string": "1g.10gb"},
        "partitionProfile": {"string": "1g.10gb"},
        "sanitizationProfile": {"string": "strict"},
        "parentUUID": {"string": "GPU-P"},
        "simulated": {"bool": True},
        "agent": {"bool": False},
        "numaNode": {"int": 1},
        "iommuGroup": {"int": 42},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
    }
    assert found["capacity"] == {"memory": {"value": "80Gi"}}
    assert found["allowMultipleAllocations"] is False


def test_counters_are_carried_only_where_there_are_any() -> None:
    """E1: a device that shares no memory is rendered as ever, to the byte."""
    shares = [{"counterSet": "gpu-0-memory", "counters": {"m0": {"value": "1"}}}]
    plain = render(device(), "gpu-0", taints=(), terms=TERMS)
    counted = render(device(), "gpu-0", taints=(), terms=TERMS, counters=shares)
    assert "consumesCounters" not in plain
    assert counted == {**plain, "consumesCounters": shares}


def test_every_device_has_the_same_attributes() -> None:
    """Reference 2.4: CEL aborts on a missing attribute, so what is unknown is "" or -1."""
    bare = rendered(device())
    full = rendered(device(attributes={"numa": "0", "pci": "1b:00.0", "iommu": "3"}))
    agent = agent_device(TERMS, simulated=False)
    assert bare["attributes"].keys() == full["attributes"].keys() == agent["attributes"].keys()
    assert bare["attributes"]["numaNode"] == {"int": -1}
    assert bare["attributes"]["architecture"] == {"string": ""}
    assert [bare["attributes"]["type"], agent["attributes"]["type"]] == [
        {"string": "gpu"},
        {"string": "agent"},
    ]
    for name, value in bare["attributes"].items():
        assert value.keys() == full["attributes"][name].keys() == agent["attributes"][name].keys()


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("550.54.14", "550.54.14"), ("550.163.01", "550.163.1"), ("575.57", "575.57.0"),
        ("580.65.06", "580.65.6"), ("535.104.05.01", "535.104.5"), ("6.12.12", "6.12.12"),
        ("1.0.0-rc.1+b", "1.0.0-rc.1+b"), ("6.8.0-45-generic", "6.8.0-45-generic"),
        ("580", "580.0.0"), ("v1.2", "1.2.0"), ("simulated", "0.0.0"), ("", "0.0.0"),
        ("9" * 70, "0.0.0"), ("1." + "9" * 30 + ".1", "1.0.0"),
    ],
)  # fmt: skip
def test_f45_a_version_is_always_a_semantic_version(version: str, shown: str) -> None:
    """F45: a selector that compares driver versions works on every device: leading zeros go,
    missing numbers are 0, and what is no version is 0.0.0, never a text."""
    found = rendered(device(attributes={"driver": version}))
    assert found["attributes"]["driverVersion"] == {"version": shown}


@given(
    facts=st.dictionaries(st.sampled_from(sorted(FACTS)), st.text(max_size=80)),
    partition=st.booleans(),
)
def test_f45_the_type_of_an_attribute_depends_on_no_value(
    facts: dict[str, str], *, partition: bool
) -> None:
    """F45: whatever a driver says, every attribute of every device has the type it has for all, and
    a version is one that the server takes."""
    plain = rendered(device())["attributes"]
    facts = {name: value for name, value in facts.items() if name != "pci"}
    told = device(attributes=facts, **({"accelerator": "GPU-P"} if partition else {}))
    found = rendered(told)["attributes"]
    assert {name: [*value] for name, value in found.items()} == {
        name: [*value] for name, value in plain.items()
    }
    for value in found.values():
        if "version" in value:
            assert re.fullmatch(SEMVER, value["version"])
            assert len(value["version"]) <= 64


@given(st.text(max_size=200))
def test_texts_are_cut_to_64_bytes(text: str) -> None:
    """Reference 2.1: an attribute's text has 64 bytes at most, and stays text."""
    found = rendered(device(attributes={"product": text}))
    assert len(found["attributes"]["productName"]["string"].encode()) <= 64
    assert text.startswith(found["attributes"]["productName"]["string"])


def test_only_strict_publishes_binding_conditions() -> None:
    """DESIGN 5, Sanitization profiles: pre-bind is strict's; both lists come together."""
    strict = rendered(device())
    assert strict["bindsToNode"] is True
    assert strict["bindingConditions"] == ["gpu.example.com/Sanitized", "gpu.example.com/Healthy"]
    assert strict["bindingFailureConditions"] == ["gpu.example.com/SanitizationFailed"]
    for profile in (Profile.FAST, Profile.LAB):
        found = rendered(device(), profile)
        assert not {"bindsToNode", "bindingConditions", "bindingFailureConditions"} & found.keys()


def test_the_agent_device_is_nothing_a_tenant_could_want() -> None:
    """DESIGN 7: no memory, no taints, no binding conditions; told apart by one attribute."""
    agent = agent_device(TERMS, simulated=True)
    assert agent["name"] == AGENT
    assert agent["attributes"]["agent"] == {"bool": True}
    assert not {"capacity", "taints", "bindingConditions", "bindsToNode"} & agent.keys()


@given(st.lists(st.text(max_size=80), max_size=20))
def test_names_are_unique_labels_in_any_order(given_names: list[str]) -> None:
    """Invariant 28: names are DNS labels, unique in the pool, and do not depend on order."""
    devices = [device(name, f"U{place}") for place, name in enumerate(given_names)]
    found = names(devices)
    assert all(LABEL.fullmatch(name) and name != AGENT for name in found.values())
    assert len(set(found.values())) == len(devices)
    assert found == names(devices[::-1])


def test_a_good_name_is_kept() -> None:
    """The node's own names are what operators see; only unusable ones are changed."""
    made = names([device("gpu-0", "A"), device("GPU_1", "B"), device("agent", "C")])
    assert made["A"] == "gpu-0"
    assert made["B"].startswith("gpu-1-")
    assert made["C"].startswith("agent-")


def test_an_allocation_finds_its_device_again() -> None:
    """Prepare resolves the device name of a result to a UUID; the agent and strangers to none."""
    view = NodeView(
        node="n", incarnation="i", boot_id="b", at=0.0, simulated=True, backend="s",
        devices=(device("gpu-0", "A"), device("GPU_1", "B")),
    )  # fmt: skip
    for uuid, name in names(view.devices).items():
        assert uuid_of(view, name) == uuid
    assert uuid_of(view, AGENT) is None
    assert uuid_of(view, "GPU_1") is None


def test_sizes_are_spelled_as_the_server_would() -> None:
    """The shortest binary spelling, exact to the byte."""
    sizes = [0, 1, 1024, 1025, 80 * 2**30]
    assert [quantity_text(size) for size in sizes] == ["0", "1", "1Ki", "1025", "80Gi"]


def test_attribute_reads_a_text_or_nothing() -> None:
    """Reading an attribute of another type, or none, is the empty text."""
    entry = {"attributes": {"a": {"string": "x"}, "n": {"int": 1}}}
    assert [attribute(entry, name) for name in ("a", "n", "z")] == ["x", "", ""]
    assert attribute({}, "a") == ""
