"""The unit for bare metal starts the plugin as the plugin wants to be started."""

from __future__ import annotations

import shlex

from fleet.core.settings import HardwareSettings
from node_plugin.__main__ import GRACE_S, _parser
from node_plugin.children import Child
from tests.deploy.manifests import ROOT

UNIT = (ROOT / "systemd" / "fleet-node-plugin.service").read_text()


def settings() -> dict[str, str]:
    """Every setting of the unit; none is named twice."""
    pairs = [line.split("=", 1) for line in UNIT.splitlines() if "=" in line and line[0] != "#"]
    assert len({key for key, _ in pairs}) == len(pairs)
    return {key: value for key, value in pairs}  # noqa: C416 - lists of two, not pairs


def test_its_options_exist() -> None:
    """E6: the command line of the unit is one that the plugin takes."""
    command, *arguments = shlex.split(settings()["ExecStart"])
    assert command.endswith("/fleet-node-plugin")
    assert arguments.pop() == "$FLEET_OPTIONS"
    asked = _parser().parse_args([*arguments, "--node", "n", "--kubeconfig", "k"])
    assert not asked.no_standby
    assert not asked.simulate


def test_it_keeps_the_witness_over_a_restart() -> None:
    """A witness that went with each restart could not tell a journal that went back."""
    found = settings()
    assert HardwareSettings().run_directory == f"/run/{found['RuntimeDirectory']}"
    assert found["RuntimeDirectoryPreserve"] == "yes"
    assert found["StateDirectoryMode"] == "0700"


def test_it_is_stopped_in_order_and_started_for_ever() -> None:
    """The plugin ends its children itself, in the time it has; systemd never gives it up."""
    found = settings()
    assert found["KillMode"] == "mixed"
    farewell_s = 3 * Child("standby", ()).farewell_s
    assert int(found["TimeoutStopSec"]) > 2 * GRACE_S + farewell_s
    assert (found["Restart"], found["StartLimitIntervalSec"]) == ("always", "0")


def test_it_hides_nothing_that_real_devices_need() -> None:
    """B1, B3: resets are written to /sys, faults read from /dev/kmsg, holders from /proc."""
    found = settings()
    hiding = {
        "PrivateDevices",
        "PrivatePIDs",
        "PrivateUsers",
        "ProtectKernelLogs",
        "ProtectKernelTunables",
        "ProtectProc",
        "ProcSubset",
        "DevicePolicy",
        "CapabilityBoundingSet",
        "User",
        "DynamicUser",
    }
    assert hiding.isdisjoint(found)
    assert "nvidia-persistenced.service" in found["After"].split()
