"""`fleet report`: which devices answer a requirement, with exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.compliance.mapping import requirements
from fleet.evidence import layout
from fleet.evidence.export import export
from fleet.evidence.sources import collect
from tests.fleet.cli.fleets import certify
from tests.fleet.evidence.samples import Site, device_named

Capture = pytest.CaptureFixture[str]


@pytest.fixture(name="copy")
def copy_fixture(tmp_path: Path) -> Path:
    """An export of the evidence of two real devices, each wiped twice."""
    site = Site(tmp_path / "state")
    with site.ledger() as ledger:
        for name in ("a", "b", "a", "b"):
            done = site.issue(ledger, device_named(name), backend="nvidia", simulated=False)
            ledger.append(done.envelope)
    site.countersign()
    export(collect(site.state), tmp_path / "export")
    return tmp_path / "export"


def test_a_simulated_fleet_is_wiped_and_answers_nothing(state: Path, capsys: Capture) -> None:
    """Promise 10: every device of a scrubbed simulated fleet is listed, labelled, not answered."""
    assert main(["report", "--requirement", "E3", "--state", str(state), "--json"]) == 1
    empty = json.loads(capsys.readouterr().out)
    assert [one["certificates"] for one in empty["devices"]] == [0] * 4
    certify(state)
    assert main(["report", "--requirement", "E3", "--state", str(state)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("SIMULATED")
    assert "0 of 4 devices have a valid answer" in told
    assert "the device is simulated" in told
    assert main(["report", "--requirement", "E3", "--state", str(state), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [one["verified"] for one in document["devices"]] == [1] * 4
    assert {one["state"] for one in document["devices"]} == {"CLEAN"}
    assert [len(one["missing"]) for one in document["devices"]] == [1] * 4


def test_real_evidence_answers(copy: Path, capsys: Capture) -> None:
    """E3: whole evidence of real devices is exit 0, with figures, gaps and what is to be added."""
    assert main(["report", "--requirement", "nist-800-88-clear", "--directory", str(copy)]) == 0
    told = capsys.readouterr().out
    for words in (
        "2 of 2 devices have a valid answer",
        "bytes.covered = 62914560",
        "60.0 MiB / 64.0 MiB",
        "not covered: Purge and Destroy",
        "the organisation adds:",
        "passed",
    ):
        assert words in told
    assert "SIMULATED" not in told


def test_what_is_missing_is_told_with_its_remedy(copy: Path, capsys: Capture) -> None:
    """E3: exit 1 names device, certificate and what to do."""
    assert main(["report", "--requirement", "SEC21-05", "--directory", str(copy)]) == 1
    told = capsys.readouterr().out
    assert "node-1/a: on-chip memory (SRAM) was not cleared" in told
    assert "do: set the reset policy to `always`" in told
    assert "0 of 2 devices have a valid answer" in told


def test_only_trusted_keys_count(copy: Path, tmp_path: Path, capsys: Capture) -> None:
    """B48: with a key of somebody else's named, nothing is verified and nothing answers."""
    key = layout.node_key(tmp_path / "state", "node-1").with_suffix(".pub")
    asked = ["report", "--requirement", "B3", "--directory", str(copy), "--json"]
    assert main([*asked, "--key", str(key)]) == 0
    stranger = Site(tmp_path / "other")
    stranger.certify(rounds=1)
    other = layout.node_key(tmp_path / "other", "node-1").with_suffix(".pub")
    capsys.readouterr()
    assert main([*asked, "--key", str(other)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [one["verified"] for one in document["devices"]] == [0, 0]
    assert "unknown-key" in document["devices"][0]["missing"][0]["what"]


def test_a_node_left_out_is_told_of_the_fleet(tmp_path: Path, capsys: Capture) -> None:
    """E3: exit 1 though every device that is there has an answer."""
    site = Site(tmp_path / "state")
    for node in ("node-1", "node-2"):
        with site.ledger(node) as ledger:
            done = site.issue(
                ledger, device_named(node), node=node, backend="nvidia", simulated=False
            )
            ledger.append(done.envelope)
    site.countersign()
    export(collect(site.state), tmp_path / "export", node="node-2")
    asked = ["report", "--requirement", "B3", "--directory", str(tmp_path / "export")]
    assert main(asked) == 1
    told = capsys.readouterr().out.replace("\n", " ")
    assert "fleet: the ledger of node-1, 1 entries, is countersigned and is not here" in told
    assert "1 of 1 devices have a valid answer; of the fleet 1 things are missing" in told


def test_a_period_narrows_the_wipes(copy: Path, capsys: Capture) -> None:
    """E3: --since and --until count wipes between them; a date alone is the whole day."""
    asked = ["report", "--requirement", "B1", "--directory", str(copy), "--json"]
    assert main([*asked, "--since", "2023-11-14", "--until", "2023-11-14"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["certificates"] for one in document["devices"]] == [2, 2]
    assert document["until"].startswith("2023-11-14T23:59:59")
    assert main([*asked, "--since", "2023-11-14T22:13:46+00:00"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["certificates"] for one in document["devices"]] == [1, 1]
    assert main([*asked, "--until", "2001-01-01"]) == 1


def test_what_could_not_run_is_exit_2(state: Path, tmp_path: Path, capsys: Capture) -> None:
    """An unknown requirement lists the ids; a wrong time and an empty place are told as well."""
    assert main(["report", "--requirement", "SEC99", "--state", str(state)]) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert all(one.id in told for one in requirements())
    asked = ["report", "--requirement", "B1", "--state", str(state)]
    assert main([*asked, "--since", "yesterday"]) == 2
    assert "is not a time" in capsys.readouterr().err
    assert main(["report", "--requirement", "B1", "--state", str(tmp_path / "none")]) == 2
    assert main(["report", "--state", str(state)]) == 2
