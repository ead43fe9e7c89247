"""`fleet report`: which devices answer a requirement, with exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import main
from fleet.core.settings import MIB, EvidenceSettings, Settings
from fleet.evidence import layout, parsed
from fleet.evidence.certificate import Reset
from fleet.evidence.export import export
from fleet.evidence.requirements.mapping import requirements
from fleet.evidence.segments import Damage, Sequence
from fleet.evidence.sources import collect
from fleet.wiring import adapters
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
    asked = ["report", "--requirement", "nist-800-88-clear", "--directory", str(copy), "--all"]
    assert main(asked) == 0
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


def test_f58_a_fleet_of_one_answer_is_a_screen(state: Path, capsys: Capture) -> None:
    """F58: devices of one answer are one line, and the verdict is among the first."""
    certify(state)
    asked = ["report", "--requirement", "SEC21-05", "--state", str(state)]
    assert main(asked) == 1
    told = capsys.readouterr().out.splitlines()
    assert len(told) < 24
    assert "0 of 4 devices have a valid answer" in told[2]
    assert any(line.startswith("4 devices NOT answered: node-01/gpu-0, ") for line in told)
    assert any("set the reset policy to `always`" in line for line in told)
    assert main([*asked, "--all"]) == 1
    assert len(capsys.readouterr().out.splitlines()) > 3 * len(told)


def test_f58_a_requirement_is_a_page_and_a_sheet(copy: Path, tmp_path: Path) -> None:
    """F58: --html and --csv hold every device; what was written by others stays text there."""
    asked = ["report", "--requirement", "SEC21-05", "--directory", str(copy)]
    page, sheet = tmp_path / "page.html", tmp_path / "rows.csv"
    assert main([*asked, "--html", str(page), "--csv", str(sheet)]) == 1
    rows = list(csv.DictReader(sheet.read_text().splitlines()))
    assert [(row["device"], row["answered"]) for row in rows] == [("a", "False"), ("b", "False")]
    assert rows[0]["covered_bytes"] == str(60 * 1024 * 1024)
    assert rows[0]["missing"].startswith("on-chip memory")
    told = page.read_text()
    assert "0 of 2 devices have a valid answer" in told
    assert rows[0]["certificate"] in told
    assert main(["report", "nothing", "--csv", str(sheet), "--directory", str(copy)]) == 2


def test_f58_a_name_is_no_formula(tmp_path: Path) -> None:
    """F58: a sheet takes nothing that a device is called for a formula."""
    site = Site(tmp_path / "state")
    with site.ledger() as ledger:
        named = device_named("=cmd|x", ("0",))
        ledger.append(site.issue(ledger, named, backend="nvidia", simulated=False).envelope)
    sheet = tmp_path / "rows.csv"
    asked = ["report", "--requirement", "B1", "--directory", str(site.state), "--csv", str(sheet)]
    main(asked)
    (row,) = csv.DictReader(sheet.read_text().splitlines())
    assert row["device"] == "'=cmd|x"


@pytest.mark.parametrize(("reset", "passes"), [(False, False), (True, True)])
def test_f50_the_check_of_sec21_05_gets_its_record_and_decides(
    tmp_path: Path, capsys: Capture, *, reset: bool, passes: bool
) -> None:
    """F50: the neutral record has the fields that the check reads, and evidence behind its words.

    The check passes a machine that served a tenant when it is sanitized and not bound any more.
    """
    site = Site(tmp_path / "state")
    with site.ledger() as ledger:
        facts: dict[str, Any] = {"backend": "nvidia", "simulated": False}
        if reset:
            facts["reset"] = Reset(performed=True, method="nvml", reason="policy always")
        ledger.append(site.issue(ledger, device_named("a"), **facts).envelope)
    site.countersign()
    asked = ["report", "--requirement", "SEC21-05", "--directory", str(site.state), "--neutral"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"success", "platform", "site_id", "machines_checked", "machines"}
    (machine,) = found["machines"]
    assert machine.keys() == {
        "machine_id", "status", "available", "in_use", "has_gpu", "served_tenant", "sanitized",
        "stale_tenant_binding", "transitions",
    }  # fmt: skip
    assert (machine["machine_id"], machine["has_gpu"]) == ("node-1", True)
    assert machine["served_tenant"], "who says that nobody was there passes unaudited"
    assert (machine["sanitized"] and not machine["stale_tenant_binding"]) is passes
    assert machine["transitions"][:2] == ["in_use", "sanitizing"]


def test_f50_a_certificate_says_who_answers_for_it_and_where(tmp_path: Path) -> None:
    """F50: operator, site and rack stand in each certificate, and the standard's revision."""
    whose = {"operator": "Example Cloud", "site": "north", "rack": "r7"}
    settings = Settings(evidence=EvidenceSettings.model_validate(whose))
    adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=MIB)
    certify(tmp_path, settings)
    (log,) = collect(tmp_path).ledgers
    (entry,) = (one for one in log.scan(Sequence()) if not isinstance(one, Damage))
    assert entry.envelope is not None
    found = parsed.read(entry.envelope).envelope.predicate
    assert {name: found["posture"][name] for name in whose} == whose
    assert found["sanitization"]["standard"] == "NIST SP 800-88 Rev. 2"


def test_f50_a_simulated_fleet_is_no_answer_there_either(state: Path, capsys: Capture) -> None:
    """F50: a simulated fleet says so to the check, which then fails it; other requirements: 2."""
    certify(state)
    asked = ["report", "--requirement", "SEC21-05", "--state", str(state), "--neutral"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert "simulated" in found["platform"]
    assert [one["sanitized"] for one in found["machines"]] == [False] * len(found["machines"])
    assert {one["status"] for one in found["machines"]} == {"available"}
    assert main(["report", "--requirement", "B1", "--state", str(state), "--neutral"]) == 2


def test_what_is_missing_is_told_with_its_remedy(copy: Path, capsys: Capture) -> None:
    """E3: exit 1 names device, certificate and what to do."""
    assert main(["report", "--requirement", "SEC21-05", "--directory", str(copy)]) == 1
    told = capsys.readouterr().out
    assert "2 devices NOT answered: node-1/a, node-1/b" in told
    assert told.count("on-chip memory (SRAM) was not cleared") == 1
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
