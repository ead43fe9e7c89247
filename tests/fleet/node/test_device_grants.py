"""Which containers may still open a device after its teardown: told where it can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.devices.base import DeviceNode
from fleet.node.device_grants import Finding, Permission, remaining
from tests.fleet.node.trees import OTHER, POD, Tree

GPU = DeviceNode("/dev/gpu0", "c", 195, 0)
DEFAULT = "c 1:3 rwm\nc 136:* rwm\n"


def rules(pod: Path, *texts: str) -> list[Path]:
    """Give the containers of a pod these device rules; the pod itself allows everything."""
    (pod / "devices.list").write_text("a *:* rwm\n")
    containers = sorted(path for path in pod.iterdir() if path.is_dir())
    for container, text in zip(containers, texts, strict=True):
        (container / "devices.list").write_text(text)
    return containers


def devices_of(tree: Tree, pod: list[Path]) -> Path:
    """The pod's cgroup in the devices hierarchy."""
    (tree.root / "devices" / "devices.list").write_text("a *:* rwm\n")
    return next(path for path in pod if "devices" in path.parts)


@pytest.mark.parametrize("layout", ["v1-cgroupfs", "v1-systemd", "hybrid-cgroupfs"])
@pytest.mark.parametrize("rule", ["c 195:0 rw", "c 195:* rwm", "c *:0 r", "c 195:0 r"])
def test_a_container_that_may_open_it_is_named(tmp_path: Path, layout: str, rule: str) -> None:
    """A3: the rule left behind is found with its cgroup and numbers; the others are not named."""
    tree = Tree(tmp_path, layout)
    pod = devices_of(tree, tree.pod(POD))
    kept, _ = rules(pod, f"{DEFAULT}{rule}\n", f"{DEFAULT}c 195:1 rw\nc 195:0 m\nb 195:0 rw\n")
    (found,) = remaining(tree.root, [GPU])
    assert (found.cgroup, found.numbers) == (str(kept), "c 195:0")
    assert found.permission is (Permission.EVERYTHING if "*:0" in rule else Permission.ALLOWED)


def test_a_privileged_container_is_told_apart(tmp_path: Path) -> None:
    """One that may open everything is no trace of a claim."""
    tree = Tree(tmp_path, "v1-cgroupfs")
    (everything,) = rules(devices_of(tree, tree.pod(OTHER, "", containers=1)), "a *:* rwm\n")
    assert remaining(tree.root, [GPU]) == (
        Finding(str(everything), "c 195:0", Permission.EVERYTHING),
    )


def test_a_clean_node_has_no_findings(tmp_path: Path) -> None:
    """After a teardown nothing is left, and pods' own cgroups (which allow all) do not count."""
    tree = Tree(tmp_path, "v1-systemd")
    rules(devices_of(tree, tree.pod(POD)), DEFAULT, "")
    assert remaining(tree.root, [GPU]) == ()


def test_nodes_everybody_has_are_not_asked_for(tmp_path: Path) -> None:
    """A simulated device's node has the numbers of null: allowed everywhere, it tells nothing."""
    tree = Tree(tmp_path, "v1-systemd")
    rules(devices_of(tree, tree.pod(POD)), DEFAULT, DEFAULT)
    assert remaining(tree.root, [DeviceNode("/dev/x", "c", 1, 3)]) == ()


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    """A3: v2 keeps its rules in the kernel, and an error is no permission refused."""
    tree = Tree(tmp_path / "v2", "v2-systemd")
    tree.pod(POD)
    unknown = Finding(str(tree.root), "c 195:0", Permission.UNKNOWN)
    assert remaining(tree.root, [GPU]) == (unknown,)
    tree = Tree(tmp_path / "v1", "v1-cgroupfs")
    first, _ = rules(devices_of(tree, tree.pod(POD)), DEFAULT, DEFAULT)
    (first / "devices.list").unlink()
    assert remaining(tree.root, [GPU]) == (Finding(str(first), "c 195:0", Permission.UNKNOWN),)


def test_a_container_under_an_unusual_name_is_looked_at(tmp_path: Path) -> None:
    """A runtime whose driver differs from kubelet's puts the container where the pod would be."""
    tree = Tree(tmp_path, "v1-systemd")
    (tree.root / "devices" / "devices.list").write_text("a *:* rwm\n")
    name = f"kubepods-pod{POD.replace('-', '_')}.slice:cri-containerd:ab"
    odd = tree.root / "devices" / "system.slice" / name
    odd.mkdir()
    (odd / "devices.list").write_text("c 195:0 rw\n")
    assert remaining(tree.root, [GPU]) == (Finding(str(odd), "c 195:0", Permission.ALLOWED),)


def test_what_users_make_is_not_looked_at(tmp_path: Path) -> None:
    """A user's own cgroups named like a pod's are no container of anybody."""
    tree = Tree(tmp_path, "v1-systemd")
    rules(devices_of(tree, tree.pod(POD)), DEFAULT, DEFAULT)
    fake = tree.root / "devices" / "user.slice" / "user-1000.slice" / f"pod{OTHER}" / "container"
    fake.mkdir(parents=True)
    (fake / "devices.list").write_text("c 195:0 rw\n")
    assert remaining(tree.root, [GPU]) == ()
