"""Certificates: durable first, chained from the ledger, none after the hand-over."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import metadata

import pytest

from fleet.core import errors
from fleet.core.messages import Outcome
from fleet.core.model import Digest, State, UnitId
from fleet.devices.health.readings import Readings
from fleet.node import partition_mode
from fleet.node.certification import software_version
from tests.fleet.node.conftest import Lab


def test_a_certificate_names_token_boot_previous_holder_and_predecessor(lab: Lab) -> None:
    """E3: evidence is chained per unit and says under which token the wipe was made."""
    first = lab.scrub()
    lab.let_go()
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    answer = lab.node.unprepare("claim-a")
    ledger = lab.ledger
    (unit,) = lab.device().units
    last = ledger.certificate(Digest(answer.certificates[0]))
    told = str(last.envelope.predicate)
    assert "claim:claim-a" in told
    assert lab.node.view().boot_id in told
    assert last.chain[UnitId(unit)].sequence == 3
    assert ledger.certificate(Digest(first.certificate)).chain[UnitId(unit)].previous is None


def test_a_certificate_names_the_version_that_is_installed(lab: Lab) -> None:
    """E3: who reads it years later knows which software said so."""
    lab.scrub()
    (entry,) = lab.ledger.entries()
    told = lab.ledger.certificate(entry.digest).predicate
    assert told["software"]["version"] == software_version() == metadata.version("fleetscrub")


def test_a_ledger_that_cannot_be_written_never_makes_clean(lab: Lab) -> None:
    """Promise 8: evidence precedes CLEAN; without it the device is out of service."""
    ledger = lab.directory / "ledger"
    for path in sorted(ledger.rglob("*"), reverse=True) if ledger.is_dir() else []:
        path.unlink()
    if ledger.is_dir():
        ledger.rmdir()
    ledger.write_text("in the way")
    result = lab.scrub()
    assert (result.outcome, result.state) == (Outcome.QUARANTINED, State.QUARANTINED)
    assert {"backend-failed", "LedgerUnavailable"} <= {f.check for f in result.findings}
    assert all(reason.liftable for reason in lab.device().reasons)
    ledger.unlink()
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_nothing_is_certified_after_the_hand_over(lab: Lab) -> None:
    """B50: a thread that outlives its service cannot take the ledger from the next owner."""
    lab.scrub()
    certifier = lab.node._parts.certifier
    lab.restart()
    (entry, *_) = lab.ledger.entries()
    assert entry.envelope is not None
    with pytest.raises(errors.NotOwner):
        certifier.keep(entry.envelope)
    assert lab.scrub("gpu-1").outcome is Outcome.CERTIFIED


def test_8_33_a_partition_s_certificate_names_mode_and_baseline(lab: Lab) -> None:
    """gpus-8.33, gpus-10.22: under partitioning memory errors are known from the baseline only."""
    certifier, registry = lab.node._parts.certifier, lab.node._registry
    device = registry.device("gpu-1")
    on = Readings(at=1.0, mig_enabled=True, unpartitioned=True)
    assert certifier._partitioning(device, on) == {
        "partitioning": "on, no instance",
        "baseline": "none",
    }
    assert certifier._partitioning(device, Readings(at=1.0, mig_enabled=False)) == {}
    kept = partition_mode.Baseline(at=0.0, passed=True)
    with registry.commit() as commit:
        commit.set_meta(f"baseline:{device.uuid}", json.dumps(asdict(kept)))
    used = Readings(at=1.0, mig_enabled=True, unpartitioned=False)
    assert certifier._partitioning(device, used) == {
        "partitioning": "on",
        "baseline": "whole-GPU baseline 1970-01-01T00:00:00+00:00: passed",
    }
