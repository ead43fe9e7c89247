"""`fleet quarantine`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.cli.text import SIMULATED
from fleet.evidence import layout
from tests.fleet.cli.fleets import certify


def test_a_quarantine_is_added_listed_and_cleared(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D4: an operator's quarantine survives the command and ends only by an operator's word."""
    where = ["--state", str(state), "--json"]
    assert main(["quarantine", "add", "gpu-0", "--node", "node-01", "--reason", "x", *where]) == 0
    added = json.loads(capsys.readouterr().out)
    assert main(["quarantine", "list", *where]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["devices"]
    assert (listed["node"], listed["uuid"]) == ("node-01", added["uuid"])
    assert [reason["code"] for reason in listed["reasons"]] == ["operator"]
    assert main(["node", "adopt", "--operator", "me", *where]) == 0
    capsys.readouterr()
    clear = ["quarantine", "clear", added["uuid"], "--operator", "me"]
    assert main([*clear, *where]) == 2
    capsys.readouterr()
    assert main([*clear, "--reason", "it was the fan", *where]) == 0
    cleared = json.loads(capsys.readouterr().out)
    assert (cleared["state"], cleared["reasons"]) == ("DIRTY", [])


def test_b38_a_board_that_was_replaced_keeps_its_line(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B38: the quarantine of a board that is gone stays in the list and the status; once another
    board has its slot it says so."""
    where = ["--state", str(state)]
    main(["quarantine", "add", "gpu-0", "--node", "node-01", "--reason", "odd", *where, "--json"])
    uuid = json.loads(capsys.readouterr().out)["uuid"]
    path = layout.node_directory(state, "node-01") / "sim" / "topology.json"
    known = json.loads(path.read_text())
    pulled, *known["accelerators"] = known["accelerators"]
    path.write_text(json.dumps(known))
    main(["quarantine", "list", *where, "--json"])
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert (row["uuid"], row["replaced"]) == (uuid, "")
    assert {one["code"] for one in row["reasons"]} == {"operator", "device-lost"}
    old, new = (
        board["devices"][0]["attributes"]["pci"] for board in (pulled, *known["accelerators"])
    )
    path.write_text(path.read_text().replace(new, old))
    for verb in (["quarantine", "list"], ["status"]):
        main([*verb, *where])
        told = " ".join(capsys.readouterr().out.split())
        assert "closed: board replaced by SIM-" in told, verb
        assert "odd" in told or "operator" in told, verb


def test_a_decision_says_that_it_is_about_simulated_devices(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 10: also where a decision is taken, or a record is read."""
    certify(state)
    gpu = ["gpu-0", "--node", "node-01", "--reason", "x"]
    for words in (
        ["quarantine", "add", *gpu],
        ["quarantine", "clear", *gpu],
        ["node", "adopt"],
        ["node", "drain", "node-02", "--reason", "x"],
        ["devices", "retire", *gpu],
        ["evidence", "keys", "list"],
    ):
        main([*words, "--state", str(state)])
        assert capsys.readouterr().out.startswith(SIMULATED), words
    main(["node", "drain", "node-02", "--reason", "x", "--state", str(state), "--json"])
    assert json.loads(capsys.readouterr().out)["simulated"] is True


def test_a_reason_cannot_write_to_the_terminal(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator's words and name are shown as text: no escape, no second line, no markup."""
    where = ["--state", str(state)]
    device = ["gpu-0", "--node", "node-01"]
    reason = ["--reason", "bad\x1b[2J\nnode-01/gpu-1: CLEAN [red]x[/red]"]
    assert main(["quarantine", "add", *device, *reason, "--operator", "\x1b[31mme", *where]) == 0
    assert main(["quarantine", "list", *where]) == 0
    assert main(["status", *where]) == 1
    shown = capsys.readouterr()
    assert shown.out.count(r"bad\x1b[2J\nnode-01/gpu-1: CLEAN [red]x[/red]") == 3
    assert "\x1b" not in shown.out + shown.err
    assert "\nnode-01/gpu-1: CLEAN" not in shown.out
    assert main(["quarantine", "list", *where, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["devices"]
    assert reason[1] in listed["reasons"][0]["detail"]


def test_f40_a_decision_says_what_it_covers(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F40: an operator's word covers exactly what was listed: clearing says which reasons it has
    lifted, and adopting a node's devices takes back none that is retired."""
    certify(state)
    where = ["--node", "node-01", "--reason", "x", "--state", str(state)]
    assert main(["quarantine", "add", "gpu-0", *where]) == 0
    assert main(["devices", "retire", "gpu-1", *where]) == 0
    capsys.readouterr()
    assert main(["quarantine", "clear", "gpu-0", *where]) == 0
    assert "lifted: operator (operator): x" in capsys.readouterr().out
    assert main(["node", "forget", "node-01", "--state", str(state)]) == 0
    assert main(["node", "adopt", "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(["devices", "--state", str(state), "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    found = {one["name"]: one["retired"] for one in devices if one["node"] == "node-01"}
    assert found == {"gpu-0": False, "gpu-1": True}
