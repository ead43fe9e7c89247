"""What a container gets for an NVIDIA device."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, DriverAbsent
from fleet.core.model import ClaimUid, Device, UnitId, Uuid
from fleet.devices import host_paths
from fleet.devices.base import Grant, Instance
from fleet.devices.nvidia import grants
from fleet.node.cdi import spec as cdi_spec
from fleet.node.cdi.names import Kind
from tests.fleet.devices.nvidia import hosttree


def whole(number: int) -> Device:
    uuid = Uuid(f"GPU-stand-in-{number}")
    return Device(uuid, f"gpu-{number}", uuid, (UnitId(f"{uuid}/all"),), 1 << 20)


def part(number: int) -> Device:
    uuid = Uuid(f"GPU-stand-in-{number}")
    return Device(
        Uuid("PART-1"), f"gpu-{number}-1g", uuid, (UnitId(f"{uuid}/m0"),), 1 << 20, "1g.1mb"
    )


def instance(number: int, **ids: int) -> Instance:
    return Instance(Uuid(f"GPU-stand-in-{number}"), "MIG-stand-in", Uuid("PART-1"), (), ids)


def of(device: Device, number: int, root: Path) -> Grant:
    return grants.grant(
        device, None, address=hosttree.address(number), partitioned=False, root=root
    )


def test_a_whole_gpu_gets_its_own_node_and_no_other_gpus(tmp_path: Path) -> None:
    """A6, promise 9: its node, the controls, the libraries; what only it has is not shared."""
    root = hosttree.host(tmp_path)
    found = of(whole(1), 1, root)
    assert [(one.path, one.major, one.minor) for one in found.nodes if not one.shared] == [
        ("/dev/nvidia1", 195, 1)
    ]
    assert {one.path for one in found.nodes if one.shared} == {
        "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
    }  # fmt: skip
    assert found.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert found.mounts
    assert all(host_paths.exists(root, mount.host_path) for mount in found.mounts)


def test_a_partition_gets_its_parents_node_and_its_two_capabilities(tmp_path: Path) -> None:
    """Promise 9: what opens one instance opens no other; the parent's node is shared by all."""
    root = hosttree.host(tmp_path)
    one, two = (
        grants.grant(
            part(0), instance(0, gi=gi, ci=0), address="0000:3b:00.0", partitioned=True, root=root
        )
        for gi in (1, 2)
    )
    own = [{node.path for node in grant.nodes if not node.shared} for grant in (one, two)]
    assert own == [
        {"/dev/nvidia-caps/nvidia-cap13", "/dev/nvidia-caps/nvidia-cap14"},
        {"/dev/nvidia-caps/nvidia-cap23", "/dev/nvidia-caps/nvidia-cap24"},
    ]
    assert "/dev/nvidia0" in {node.path for node in one.nodes}
    assert "CUDA_VISIBLE_DEVICES" not in one.environment


@pytest.mark.parametrize("ids", [None, {}, {"gi": 1}])
def test_a_partition_that_is_not_made_cannot_be_granted(
    tmp_path: Path, ids: dict[str, int] | None
) -> None:
    """gpus-8.33: without a whole instance a container would get the parent, and see nothing."""
    made = None if ids is None else instance(0, **ids)
    with pytest.raises(BackendFailed, match="no instance"):
        grants.grant(
            part(0), made, address="0000:3b:00.0", partitioned=True, root=hosttree.host(tmp_path)
        )


def test_a_minor_that_changed_is_looked_up_again(tmp_path: Path) -> None:
    """gpus-8.26: the slot decides at every call, never a number from before."""
    root = hosttree.host(tmp_path)
    hosttree.gpu(root, 0, minor=4)
    assert "/dev/nvidia4" in {node.path for node in of(whole(0), 0, root).nodes}


def test_another_card_in_the_slot_is_not_granted(tmp_path: Path) -> None:
    """gpus-8.26: a card that was swapped is lost, not taken for the one before."""
    root = hosttree.host(tmp_path)
    with pytest.raises(DeviceLost, match="has GPU-stand-in-1 now, not GPU-stand-in-0"):
        of(whole(0), 1, root)
    with pytest.raises(DeviceLost, match="0000:3f"):
        of(whole(4), 4, root)


@pytest.mark.parametrize("missing", ["nvidia0", "nvidiactl", "nvidia-uvm"])
def test_a_node_that_is_missing_on_the_host_is_named(tmp_path: Path, missing: str) -> None:
    """B79, gpus-8.26: nothing is answered that a container could not get."""
    root = hosttree.host(tmp_path)
    (root / "dev" / missing).unlink()
    with pytest.raises(DeviceLost, match=f"/dev/{missing},") as caught:
        of(whole(0), 0, root)
    assert "nvidia-modprobe" in caught.value.remedy


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """B79: the claim gets an error with the path, not a container without CUDA."""
    root = hosttree.host(tmp_path)
    hosttree.load(root, "600.10.01")
    with pytest.raises(BackendFailed, match=r"libcuda\.so\.600\.10\.01"):
        of(whole(0), 0, root)


def test_a_grant_makes_a_valid_spec(tmp_path: Path) -> None:
    """A6: what is granted, of a partition and of the agent, can be said in a CDI spec."""
    root = hosttree.host(tmp_path)
    made = grants.grant(
        part(0), instance(0, gi=1, ci=0), address="0000:3b:00.0", partitioned=True, root=root
    )
    uid = ClaimUid("aaaaaaaa-0000-4000-8000-000000000001")
    for granted in (made, grants.agent_grant(root)):
        spec = cdi_spec.spec(Kind("gpu.fleetscrub.dev", "gpu"), uid, {Uuid("PART-1"): granted})
        assert spec.devices


def test_the_agent_reaches_every_gpu_and_instance_there_can_be(tmp_path: Path) -> None:
    """DESIGN 7, Privilege: all GPUs, controls, capabilities and the log; nothing has to exist."""
    root = hosttree.host(tmp_path)
    for node in (root / "dev").iterdir():
        node.unlink()
    found = grants.agent_grant(root)
    paths = [node.path for node in found.nodes]
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/kmsg"} <= set(paths)
    assert {f"/dev/nvidia-caps/nvidia-cap{n}" for n in (1, 2, 3, 124)} <= set(paths)
    assert len(paths) == len(set(paths))
    assert {mount.host_path for mount in of_all(root).mounts} <= {m.host_path for m in found.mounts}


def of_all(root: Path) -> Grant:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        hosttree.put(root, f"dev/{name}")
    return of(whole(0), 0, root)


def test_no_driver_grants_nothing(tmp_path: Path) -> None:
    """gpus-8.1: unknown, never an agent without devices."""
    with pytest.raises(DriverAbsent):
        grants.agent_grant(tmp_path)
