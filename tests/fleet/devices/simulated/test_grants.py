"""What a container gets of a simulated device: its own memory and nothing that does harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import DeviceLost
from fleet.devices.base import DeviceNode, Mount
from tests.fleet.devices.wipe.orders import node, whole


def test_a_whole_device_is_one_file_for_writing(tmp_path: Path) -> None:
    """DESIGN 5: a pod can be a tenant that writes and searches, at a path it is told."""
    backend = node(tmp_path)
    device = whole(backend)
    grant = backend.grant(device)
    (path,) = backend.memory(device.uuid).paths
    assert grant.mounts == (Mount(str(path), "/dev/fleetsim/gpu-0", read_only=False),)
    assert dict(grant.environment) == {
        "FLEETSIM_DEVICE": "gpu-0",
        "FLEETSIM_MEMORY": "/dev/fleetsim/gpu-0",
    }


def test_a_node_does_no_harm(tmp_path: Path) -> None:
    """Promise 10: the node has the numbers of null, never those of a real device."""
    backend = node(tmp_path)
    (made,) = backend.grant(whole(backend)).nodes
    assert made == DeviceNode("/dev/fleetsim/gpu-0.node", "c", 1, 3, host_path="/dev/null")
    assert [(one.kind, one.major, one.minor) for one in backend.agent_grant().nodes] == [
        ("c", 1, 3)
    ]


def test_partitions_get_the_files_of_their_own_units(tmp_path: Path) -> None:
    """Promise 9: two partitions that share no unit share no file; the parent has all of them."""
    backend = node(tmp_path, partitionable=1)
    devices = {device.name: device for device in backend.inventory()[0].devices}
    files = {
        name: {mount.host_path for mount in backend.grant(device).mounts}
        for name, device in devices.items()
    }
    for name, device in devices.items():
        assert len(files[name]) == len(device.units)
        for other, theirs in devices.items():
            shared = set(device.units).intersection(theirs.units)
            assert len(files[name] & files[other]) == len(shared)


def test_several_files_have_numbers_in_order_of_address(tmp_path: Path) -> None:
    """A container finds its memory in order, and in the environment."""
    backend = node(tmp_path, partitionable=1)
    devices = {device.name: device for device in backend.inventory()[0].devices}
    one, two = backend.grant(devices["gpu-0-1g-2"]), backend.grant(devices["gpu-0-2g-2"])
    assert [mount.container_path for mount in one.mounts] == ["/dev/fleetsim/gpu-0-1g-2"]
    places = [f"/dev/fleetsim/gpu-0-2g-2.{number}" for number in range(2)]
    assert [mount.container_path for mount in two.mounts] == places
    assert two.environment["FLEETSIM_MEMORY"] == ":".join(places)
    assert [Path(mount.host_path).name for mount in two.mounts] == ["m2.bin", "m3.bin"]


def test_b79_a_missing_file_is_a_lost_device(tmp_path: Path) -> None:
    """B79: a grant never names a path that is not there."""
    backend = node(tmp_path, partitionable=1)
    device = whole(backend)
    backend.memory(device.uuid).paths[3].unlink()
    with pytest.raises(DeviceLost, match=r"m3\.bin"):
        backend.grant(device)


def test_the_agent_reaches_everything_where_it_is(tmp_path: Path) -> None:
    """DESIGN 7, Privilege: our own service finds the directory at the path its settings name."""
    backend = node(tmp_path)
    root = str(tmp_path)
    assert backend.agent_grant().mounts == (Mount(root, root, read_only=False),)
