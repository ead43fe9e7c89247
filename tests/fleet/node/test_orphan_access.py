"""The orphan sweep's look at device rules."""

from __future__ import annotations

from pathlib import Path

from fleet.core.model import Device
from fleet.devices.base import DeviceNode, Grant
from fleet.node.orphan_access import UNKNOWN, Lingering
from tests.fleet.node.conftest import Lab

RULE = "c 195:7 rw"


class Numbered:
    """A back end whose devices have numbers of their own, unlike simulated ones."""

    def __init__(self, lab: Lab) -> None:
        self.inner = lab.node._registry.backend

    def grant(self, device: Device) -> Grant:
        """One node per device; only gpu-0 has the number of the rule."""
        minor = 7 if device.name == "gpu-0" else 9
        return Grant(nodes=(DeviceNode("/dev/x", "c", 195, minor),))


def looking(lab: Lab, root: Path) -> Lingering:
    registry = lab.node._registry
    registry.backend = Numbered(lab)  # type: ignore[assignment] # as far as it is asked here
    return Lingering(registry, root)


def container(root: Path, rules: str) -> Path:
    made = root / "devices" / "kubepods" / "podx" / "c1"
    made.mkdir(parents=True)
    (root / "devices" / "devices.list").write_text("a *:* rwm\n")
    for path in (made, made.parent, made.parent.parent):
        (path / "devices.list").write_text(rules + "\n")
        (path / "cgroup.procs").write_text("")
    return made


def test_a_container_that_may_open_a_device_nobody_holds_is_reported(
    lab: Lab, tmp_path: Path
) -> None:
    """A3: after a teardown no cgroup still allows the device's numbers, or it is said who does."""
    container(tmp_path, RULE)
    lingering = looking(lab, tmp_path)
    lingering.look()
    assert lingering.found
    assert all("gpu-0" in told and "c 195:7" in told for told in lingering.found)


def test_a_device_that_a_claim_holds_is_not_asked_about(lab: Lab, tmp_path: Path) -> None:
    """A tenant may open what it holds; only what nobody holds is an orphan's trace."""
    container(tmp_path, RULE)
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    lingering = looking(lab, tmp_path)
    lingering.look()
    assert lingering.found == ()


def test_where_rules_cannot_be_read_that_is_said(lab: Lab, tmp_path: Path) -> None:
    """Doubt is told as doubt: cgroup v2 keeps its device rules in the kernel."""
    lingering = looking(lab, tmp_path)
    lingering.look()
    assert lingering.found == ()
    assert lingering.notes == (UNKNOWN,)


def test_a_node_that_all_devices_share_tells_nothing(lab: Lab, tmp_path: Path) -> None:
    """A3: who has another device may open the control node too, and is no trace of a claim."""
    container(tmp_path, RULE)
    registry = lab.node._registry
    registry.backend = Sharing()  # type: ignore[assignment] # as far as it is asked here
    lingering = Lingering(registry, tmp_path)
    lingering.look()
    assert lingering.found == ()


class Sharing:
    """A back end whose devices have only a control node, which has the number of the rule."""

    def grant(self, device: Device) -> Grant:
        """The same node for every device, under the name of each."""
        return Grant(nodes=(DeviceNode(f"/dev/ctl-{device.name}", "c", 195, 7, shared=True),))
