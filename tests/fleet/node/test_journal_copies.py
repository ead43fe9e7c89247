"""Copy of reasons and witness: never behind the journal in what they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.model import Reason, Source
from fleet.devices.health import reasons
from fleet.node.journal import mirror
from tests.fleet.node.conftest import Lab, wait_for

FAULT = reasons.make("remap-failed", Source.HEALTH, detail="seen", since=1.0)
OTHER = reasons.make("device-lost", Source.HEALTH, detail="seen", since=1.0)


def copy_of(lab: Lab) -> dict[str, frozenset[Reason]]:
    kept = mirror.read(lab.node._registry.place.mirror)
    assert kept.trouble == ""
    return {unit: found for unit, found in kept.reasons.items() if found}


def put(lab: Lab, *wanted: Reason) -> None:
    """Give the first unit of gpu-0 these reasons."""
    registry = lab.node._registry
    with registry.commit() as commit:
        unit = commit.unit(registry.device("gpu-0").units[0])
        commit.put_unit(type(unit)(id=unit.id, boot_id=unit.boot_id, reasons=frozenset(wanted)))


def test_b15_reasons_are_copied_before_the_commit_that_adds_them(lab: Lab) -> None:
    """B15: a node that dies right after a commit, and loses its journal, still knows why."""
    registry = lab.node._registry
    unit = registry.device("gpu-0").units[0]
    with registry.journal.commit() as commit:
        moved = commit.unit(unit)
        known = dict(registry.journal.units)
        after = {unit: type(moved)(id=unit, boot_id=moved.boot_id, reasons=frozenset({FAULT}))}
        registry.copies.foretell(known, after)
    assert registry.journal.units[unit].reasons == frozenset()
    assert copy_of(lab) == {unit: frozenset({FAULT})}


def test_the_copy_forgets_a_reason_only_after_the_journal_did(lab: Lab) -> None:
    """Promise 6: while one reason takes another's place, the copy has both."""
    registry = lab.node._registry
    unit = registry.device("gpu-0").units[0]
    put(lab, FAULT)
    moved = registry.journal.units[unit]
    after = {unit: type(moved)(id=unit, boot_id=moved.boot_id, reasons=frozenset({OTHER}))}
    registry.copies.foretell(dict(registry.journal.units), after)
    assert copy_of(lab) == {unit: frozenset({FAULT, OTHER})}
    put(lab, OTHER)
    assert copy_of(lab) == {unit: frozenset({OTHER})}
    put(lab)
    assert copy_of(lab) == {}


def test_what_a_failed_commit_foretold_goes_with_the_next(lab: Lab) -> None:
    """The copy may have more than the journal for a moment, and never for good."""
    lab.node._registry.copies.foretell(
        (units := dict(lab.node._registry.journal.units)),
        {
            name: type(one)(id=name, boot_id=one.boot_id, reasons=frozenset({FAULT}))
            for name, one in list(units.items())[:1]
        },
    )
    assert copy_of(lab) != {}
    put(lab)
    assert copy_of(lab) == {}


def test_b15_a_start_makes_up_for_a_copy_that_was_not_written(lab: Lab) -> None:
    """B15: what a dying service left uncopied is copied by the next, not by the next fault."""
    put(lab, FAULT)
    place = lab.node._registry.place.mirror
    lab.node.close()
    place.unlink()
    lab.open()
    assert list(copy_of(lab).values()) == [frozenset({FAULT})]


def test_a_copy_that_cannot_be_written_is_told_and_made_up_for(lab: Lab) -> None:
    """The act happens all the same; the node says that it is less protected."""
    place: Path = lab.node._registry.place.mirror
    place.unlink(missing_ok=True)
    place.mkdir()
    put(lab, FAULT)
    assert any("cannot be copied" in text for text in lab.node.view().degraded)
    place.rmdir()
    lab.node.quarantine_add("gpu-1", detail="x", operator="ada")
    wait_for(lambda: lab.node.view().degraded == ())
    assert len(copy_of(lab)) > 1


@pytest.mark.parametrize("boots", [False, True])
def test_b15_reasons_of_a_card_that_is_away_outlast_a_lost_journal(lab: Lab, boots: bool) -> None:
    """B15, promise 6: a card taken out for its fault, a journal lost meanwhile: put back, it is as
    much out of service as before, and the copy has its reasons all the time.
    """
    lab.node.quarantine_add("gpu-0", detail="burnt", operator="ada")
    unit, before = lab.units()[0].id, lab.units()[0].reasons
    lab.node.close()
    put_back = lab.take_out()
    for left in lab.directory.glob("journal.db*"):
        left.unlink()
    lab.open()
    assert copy_of(lab)[unit] == before
    lab.node.quarantine_add("gpu-1", detail="x", operator="ada")
    assert copy_of(lab)[unit] == before
    lab.node.close()
    put_back()
    if boots:
        lab.backend.reboot()
    lab.open()
    assert lab.units()[0].reasons == before
    assert copy_of(lab)[unit] == before
