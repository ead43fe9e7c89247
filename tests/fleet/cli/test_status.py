"""`fleet status`."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from fleet import bootstrap
from fleet.binding.alive import Heartbeat
from fleet.binding.running import BindingView
from fleet.cli.main import main
from fleet.cli.status import judge
from fleet.messages import DeviceView, NodeView
from tests.fleet.cli.fleets import certify
from tests.fleet.cli.test_cluster import served_state


def test_status_of_an_unfit_fleet_is_exit_1(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarantined device makes `fleet status` exit 1, with reason and remedy on the screen."""
    add = ["quarantine", "add", "gpu-1", "--node", "node-02", "--reason", "smells of smoke"]
    assert main([*add, "--operator", "night shift", "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(["status", "--state", str(state)]) == 1
    text = capsys.readouterr().out
    assert "node-02/gpu-1: operator" in text
    assert "smells of smoke" in text


def test_f57_the_first_line_is_the_verdict(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F57: fit or unfit, why and since when, before anything else; the exit code says the same."""
    asked = ["status", "--state", str(state)]
    certify(state)
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "FIT: 4 devices on 2 nodes, all in service"
    add = ["quarantine", "add", "gpu-1", "--node", "node-02", "--reason", "smells of smoke"]
    assert main([*add, "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(asked) == 1
    line = capsys.readouterr().out.splitlines()[1]
    assert re.match(r"UNFIT since 20\d\d-\S+Z: 1 of 4 devices on 2 nodes: 1 QUARANTINED", line)
    assert "(operator x1)" in line
    assert main([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["fit"], found["verdict"]) == (False, line)
    assert found["unfit_since"].endswith("Z")


def test_f57_a_coordinator_that_stopped_is_no_fit_fleet(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F57, F71: devices are fit and nothing is bound: the verdict says so, with exit code 1."""
    certify(state)
    Heartbeat(state)(BindingView(trouble="HTTP 403"))
    capsys.readouterr()
    assert main(["status", "--state", str(state)]) == 1
    assert "kept from working: HTTP 403" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize(
    ("states", "line"),
    [
        ((), "UNFIT: there is no device"),
        (("CLEAN", "IN_USE"), "FIT: 2 devices on 1 node, all in service"),
        (("CLEAN", "DIRTY"), "UNFIT: 1 of 2 devices on 1 node: 1 DIRTY"),
        (("HELD", "HELD", "DIRTY"), "UNFIT: 3 of 3 devices on 1 node: 2 HELD, 1 DIRTY"),
    ],
)
def test_f57_some_but_not_all(states: tuple[str, ...], line: str) -> None:
    """F57: whatever is out of service counts, by state, and no device at all is no fit fleet."""
    devices = tuple(
        DeviceView(
            uuid=f"u{number}", name=f"gpu-{number}", accelerator="a", units=("u",),
            memory_bytes=1, state=state,
        )
        for number, state in enumerate(states)
    )  # fmt: skip
    view = NodeView(
        node="n", incarnation="i", boot_id="b", at=1.0, simulated=True, backend="simulated",
        devices=devices,
    )  # fmt: skip
    assert judge([view], ()).line() == line


def test_status_says_whether_a_coordinator_lives(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E5: who reports, what is wrong with it, and that strict pods wait without one."""
    bootstrap.open_coordinator(bootstrap.plan_fleet(state).coordinator)
    main(["status", "--state", str(state)])
    assert "coordinator" not in capsys.readouterr().out
    Heartbeat(state)(BindingView(open_claims=2, trouble="HTTP 403"))
    main(["status", "--state", str(state)])
    told = capsys.readouterr().out
    assert "2 open claims" in told
    assert "kept from working: HTTP 403" in told
    strict = served_state(tmp_path / "strict", tmp_path / "none")
    main(["status", "--state", str(strict)])
    told = " ".join(capsys.readouterr().out.split())
    assert "no coordinator reports on this host: strict pods wait" in told


def test_b39_status_shows_what_concerns_no_device(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B39, B70: a fault in a slot without a device is on the screen, named by its node."""
    plan = bootstrap.plan_fleet(state).nodes[0]
    with closing(bootstrap.open_node(plan)) as node:
        node._parts.sweep.strays = ("the kernel log has fault 79 of slot 0000:99:00",)
        main(["status", "--state", str(state)])
    assert "node-01: the kernel log has fault 79" in capsys.readouterr().out
