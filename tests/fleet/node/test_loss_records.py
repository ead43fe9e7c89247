"""A claim that ends with a device out of service: recorded before it is let go, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.messages import Published
from fleet.core.model import State
from fleet.evidence import layout
from fleet.evidence.losses import Record
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from tests.fleet.node.conftest import Lab


def records(lab: Lab) -> list[Record]:
    """What was recorded, read from disk."""
    return list(lab.node._parts.holding.teardown.losses.log.records())


def test_a_failed_teardown_is_recorded(lab: Lab) -> None:
    """D3: quarantined, and the claim's data-loss record signed; the node's keys verify it."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    before = lab.ledger.heads()
    lab.fault("dirty-word")
    assert lab.node.unprepare("claim-a").quarantined == (lab.device().uuid,)
    (found,) = records(lab)
    assert (found.claim, found.devices, found.simulated) == ("claim-a", (lab.device().uuid,), True)
    (device,) = found.envelope.predicate["devices"]
    assert [one["code"] for one in device["reasons"]] == [r.code for r in lab.units()[0].reasons]
    assert device["last_certificates"] == {unit: before[unit] for unit in found.units}
    report = verify(collect(Path(lab.state)))
    assert (report.defects, report.losses) == ([], 1)


def test_a_clean_end_leaves_no_record(lab: Lab) -> None:
    """D3: what a certificate proves clean is no loss."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    lab.node.unprepare("claim-a")
    assert (lab.device().state, records(lab)) == (State.CLEAN, [])


def test_no_claim_is_let_go_without_its_record(lab: Lab) -> None:
    """D3: a record that cannot be written keeps claim and lease; the repeated teardown ends it."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    lab.fault("dirty-word")
    directory = layout.losses_directory(Path(lab.state), lab.node.view().node)
    directory.write_text("in the way")
    with pytest.raises(errors.LedgerUnavailable):
        lab.node.unprepare("claim-a")
    assert len(lab.node.claims()) == 1
    assert len(lab.leases_of("claim-a")) == 1
    directory.unlink()
    lab.restart()
    lab.node.published(Published())
    assert lab.node.unprepare("claim-a").quarantined == (lab.device().uuid,)
    assert [found.claim for found in records(lab)] == ["claim-a"]
