"""The answer of a fleet: what counts, what is missing, and that doubt is never an answer."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.core.model import Device, Digest
from fleet.evidence.certificate import Reset
from fleet.evidence.export import export
from fleet.evidence.judged import judge
from fleet.evidence.requirements.mapping import requirement
from fleet.evidence.requirements.report import Asked, ComplianceReport, Period, compare, known
from fleet.evidence.sources import collect
from tests.fleet.evidence.samples import Site, device_named, reset_of, rewrite

REAL: dict[str, Any] = {"backend": "nvidia", "simulated": False}
RESET = Reset(performed=True, method="flr", reason="policy always")
NOW = Period()


class Real(Site):
    """A site of real devices, by their certificates."""

    def wipe(self, device: Device, **changes: Any) -> Digest:
        """One more certificate of `device`."""
        with self.ledger() as ledger:
            return ledger.append(self.issue(ledger, device, **{**REAL, **changes}).envelope)


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Real:
    """Two real devices, wiped twice with a reset, countersigned."""
    site = Real(tmp_path / "state")
    for name in ("a", "b", "a", "b"):
        site.wipe(device_named(name), reset=RESET)
    site.countersign()
    return site


def ask(
    site: Site, wanted: str, devices: Sequence[Asked] | None = None, *, period: Period = NOW
) -> ComplianceReport:
    """The report on the site's evidence."""
    evidence = judge(collect(site.state))
    asked = known(evidence) if devices is None else devices
    return compare(requirement(wanted), evidence, asked, period=period)


def whats(report: ComplianceReport, device: str) -> list[str]:
    """What is missing for a device."""
    return [one.what for each in report.devices if each.device == device for one in each.missing]


def asked(site: Site, name: str) -> Asked:
    """The device, as the evidence knows it."""
    return next(one for one in known(judge(collect(site.state))) if one.name == name)


@pytest.mark.parametrize("wanted", ["NIST-800-88-CLEAR", "SEC21-05", "AISVS-C4.2.4", "B3", "E3"])
def test_verified_wipes_of_real_devices_answer(site: Real, wanted: str) -> None:
    """E3: whole evidence of real wipes answers, with counts, last wipe and figures."""
    report = ask(site, wanted)
    assert (report.exit_code, report.answered, report.simulated) == (0, 2, False)
    (one, _) = report.devices
    assert (one.certificates, one.verified, one.answering) == (2, 2, 2)
    assert one.last is not None
    assert one.last.covered_bytes == 60 << 20
    assert one.last.verification.startswith("passed: full")
    assert all(found for found in one.figures.values())
    assert report.ledger["countersigned"] == 4
    assert report.not_covered
    assert report.operator


def test_validation_is_never_answered_by_a_certificate(site: Real) -> None:
    """E3: what only the organisation can decide is missing, with the figures to decide on."""
    report = ask(site, "NIST-800-88-VALIDATION")
    assert (report.exit_code, report.answered) == (1, 0)
    assert all("organisation's decision" in one.missing[0].what for one in report.devices)
    assert report.devices[0].answering == 0
    assert report.devices[0].figures["validation.status"] == ["not-performed"]


def test_a_wipe_without_reset_does_not_answer_for_sram(site: Real) -> None:
    """B3: SEC21-05 names SRAM; the same wipe answers Clear."""
    newest = site.wipe(device_named("a"))
    site.countersign()
    report = ask(site, "SEC21-05")
    assert (report.exit_code, report.answered) == (1, 1)
    (missing,) = next(one for one in report.devices if one.device == "a").missing
    assert "SRAM" in missing.what
    assert "`always`" in missing.remedy
    assert missing.certificate == newest
    assert ask(site, "NIST-800-88-CLEAR").exit_code == 0


def test_a_device_that_was_only_reset_is_no_answer(site: Real) -> None:
    """B3: a reset is no Clear, and the report says why."""
    device = device_named("c")
    facts = reset_of(device, site.at)
    site.wipe(device, wipe=facts.wipe, reset=facts.reset, backend="pcie")
    assert "its technique is not Clear" in whats(ask(site, "NIST-800-88-CLEAR"), "c")
    assert ask(site, "B1").exit_code == 0


def test_simulated_evidence_never_answers(site: Real) -> None:
    """Promise 10: whole evidence of a simulated device is labelled and is no answer."""
    site.wipe(device_named("c"), backend="simulated", simulated=True, reset=RESET)
    report = ask(site, "NIST-800-88-CLEAR")
    assert (report.exit_code, report.answered, report.simulated) == (1, 2, True)
    (one,) = (each for each in report.devices if each.device == "c")
    assert (one.simulated, one.answered, one.answering, one.verified) == (True, False, 0, 1)
    taken_for_real = replace(asked(site, "c"), simulated=False)
    told = ask(site, "NIST-800-88-CLEAR", [taken_for_real])
    assert "a certificate is of a simulated device" in whats(told, "c")


def test_a_device_without_certificate_is_missing(site: Real) -> None:
    """E3: a device of the fleet that was never wiped is named with what to do."""
    new = Asked(
        node="node-1",
        uuid="GPU-new",
        name="new",
        units=frozenset(device_named("new").units),
        simulated=False,
    )
    report = ask(site, "B1", [asked(site, "a"), new])
    assert (report.exit_code, report.answered) == (1, 1)
    assert whats(report, "new") == ["no certificate of unit SIM-new/0"]
    assert report.devices[1].last is None
    assert ask(site, "B1", []).exit_code == 1


def test_a_device_is_answered_only_when_all_its_units_are(site: Real) -> None:
    """C6: a partition's wipe does not answer for the whole accelerator."""
    whole = device_named("c", ("0", "1"))
    site.wipe(device_named("part", ("0",), accelerator="c"), reset=RESET)
    both = replace(asked(site, "part"), name="c", units=frozenset(whole.units))
    assert whats(ask(site, "B1", [both]), "c") == ["no certificate of unit SIM-c/1"]
    site.wipe(whole, reset=RESET)
    assert ask(site, "B1", [both]).exit_code == 0


def test_failing_certificates_are_named_with_their_place(site: Real) -> None:
    """E3: a forged certificate is no answer, is told where it is, and blames no other device."""
    site.wipe(device_named("b"))
    rewrite(site.segment(), lambda ls: [*ls[:4], ls[4].replace(b'"sig":"', b'"sig":"AAAA', 1)])
    report = ask(site, "B1")
    assert (report.exit_code, report.answered) == (1, 1)
    (one,) = (each for each in report.devices if each.device == "b")
    assert (one.certificates, one.verified) == (3, 2)
    assert any("forged" in each.what or "altered" in each.what for each in one.missing)
    assert all(each.certificate and "entry 5" in each.place for each in one.missing)


def test_a_ledger_that_is_not_whole_answers_for_none_of_its_devices(site: Real) -> None:
    """Promise 8: a tail that was cut may have held a device's newest certificate."""
    rewrite(site.segment(), lambda ls: ls[:3])
    report = ask(site, "B1")
    assert report.answered == 0
    assert any("tail-cut" in what for what in whats(report, "a"))


def partial(site: Site, tmp_path: Path, **choice: str) -> ComplianceReport:
    """The report on a copy of a part."""
    export(collect(site.state), tmp_path / "copy", **choice)
    evidence = judge(collect(tmp_path / "copy"))
    return compare(requirement("SEC21-05"), evidence, known(evidence), period=NOW)


def test_a_node_that_is_left_out_of_a_copy_is_missing(site: Real, tmp_path: Path) -> None:
    """E3: countersignatures name it, so that a copy without it does not answer for the fleet."""
    with site.ledger("node-2") as ledger:
        one = site.issue(ledger, device_named("c"), node="node-2", reset=RESET, **REAL)
        ledger.append(one.envelope)
    site.countersign()
    report = partial(site, tmp_path, node="node-2")
    assert (report.exit_code, report.answered, len(report.devices)) == (1, 1, 1)
    assert "node-1" in report.missing[0].what


def test_what_a_copy_leaves_out_behind_the_countersignature_is_missing(
    site: Real, tmp_path: Path
) -> None:
    """E3: an entry left out and not countersigned may be a newer wipe of the device asked about."""
    assert partial(site, tmp_path, device="a").exit_code == 0
    shutil.rmtree(tmp_path / "copy")
    site.wipe(device_named("b"), reset=RESET)
    report = partial(site, tmp_path, device="a")
    assert (report.exit_code, report.missing) == (1, ())
    assert "entry 5 is left out" in whats(report, "a")[0]


@pytest.mark.parametrize("wanted", ["SEC21-05", "NIST-800-88-VERIFICATION"])
def test_a_wipe_that_is_not_countersigned_does_not_answer(site: Real, wanted: str) -> None:
    """E3: where the claim says that nothing was cut off, a second key must have signed the end."""
    site.wipe(device_named("a"), reset=RESET)
    report = ask(site, wanted)
    assert (report.exit_code, report.answered) == (1, 1)
    assert "not countersigned" in whats(report, "a")[0]
    assert report.devices[0].answering == 2
    site.countersign()
    assert ask(site, wanted).exit_code == 0


def test_a_period_asks_about_every_wipe_in_it(site: Real) -> None:
    """E3: with a period each wipe must answer, and wipes outside it do not count."""
    first = site.at
    site.wipe(device_named("a"))
    middle = site.at
    site.wipe(device_named("a"), reset=RESET)
    site.countersign()
    assert ask(site, "SEC21-05").exit_code == 0
    assert "SRAM" in whats(ask(site, "SEC21-05", period=Period(since=first)), "a")[0]
    early = ask(site, "SEC21-05", period=Period(until=first + 4))
    assert (early.exit_code, early.devices[0].certificates) == (0, 2)
    late = ask(site, "SEC21-05", period=Period(since=middle + 4))
    assert (late.devices[0].certificates, late.devices[0].answered) == (1, True)
    assert whats(late, "b") == ["no certificate of unit SIM-b/0 in the period"]


@pytest.mark.parametrize("state", ["CLEAN", "IN_USE"])
def test_a_device_handed_out_rests_on_a_certificate_that_answers(site: Real, state: str) -> None:
    """Promise 1: what the node has in force must be in the evidence, whole, and answer."""
    one = asked(site, "a")
    newest = judge(collect(site.state)).lineage(site.ledger().heads()[device_named("a").units[0]])
    digest = newest[0].certificate.digest  # type: ignore[union-attr]
    good = replace(one, state=state, certificate=digest)
    assert ask(site, "SEC21-05", [good]).exit_code == 0
    lost = replace(good, certificate="sha256:" + "0" * 64)
    assert "not in the evidence" in whats(ask(site, "SEC21-05", [lost]), "a")[0]
    bare = replace(good, certificate="")
    assert whats(ask(site, "SEC21-05", [bare]), "a") == [f"it is {state} without a certificate"]
    assert ask(site, "SEC21-05", [replace(bare, state="DIRTY")]).exit_code == 0
    ended = Period(until=site.at + 100)
    assert ask(site, "SEC21-05", [bare], period=ended).exit_code == 0
