"""`fleet status`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from fleet import bootstrap
from fleet.binding.alive import Heartbeat
from fleet.binding.running import BindingView
from fleet.cli.main import main
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
