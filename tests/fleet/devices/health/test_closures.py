"""What a decision or a repair closes in the kernel log, and what stays open (case B58)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.core.settings import HealthPolicy
from fleet.devices.health import closures, kernel_log
from fleet.devices.health.checks import Verdict, judge
from fleet.devices.health.closures import EVERYTHING, RESET, open_only
from fleet.devices.health.readings import Logged, LogPlace, Readings
from fleet.devices.kmsg import KernelLog

CASE = Path(__file__).parents[3] / "corpus/B58-kmsg-replay"
GPU = "0000:1b:00.0"


def readings() -> Readings:
    """What the case's log says of its GPU."""
    log = KernelLog(CASE / "kmsg.txt")
    found = log.records()
    assert found is not None
    faults = kernel_log.faults(found, GPU)
    return Readings(
        at=0.0,
        xids=kernel_log.codes(found, GPU),
        xid_sequences=tuple(fact.sequence for fact in faults),
        xid_times=tuple(fact.at_s for fact in faults),
        xid_instances=tuple(fact.instance for fact in faults),
        log=log.state(910.0),
    )


def test_b58_what_was_logged_before_a_decision_stays_closed() -> None:
    """B58: of a log read again only what came after the place that was closed counts."""
    found = readings()
    assert found.xids == (13, 79, 31, 13, 94, 13)
    assert found.log is not None
    assert (found.log.place.sequence, found.log.place.at_s) == (905, 905.0)
    cursor = json.loads((CASE / "cursor.json").read_text())
    closed = open_only(found, {EVERYTHING: LogPlace(cursor["seq"])})
    assert (closed.xids, closed.xid_sequences) == ((94, 13), (904, 905))
    assert open_only(found, {}) is found
    assert open_only(found, {EVERYTHING: found.log.place}).xids == ()


def test_b58_a_reason_closes_only_what_gives_it() -> None:
    """B58: clearing one reason by name says nothing of what gives another."""
    found = replace(readings(), xid_actions=("", "", "", "", "", "GPU_RESET"))
    end = LogPlace(905)
    assert open_only(found, {"device-lost": end}).xids == (13,), "with its own action"
    assert open_only(found, {"reset-required": end}).xids == (13, 79, 31, 13, 94)
    assert open_only(found, {"xid": LogPlace(903)}).xids == (79, 94, 13), "79 gives another"
    worst = replace(found, xids=(64, 79, 119, 154, 94, 13))
    assert open_only(worst, {"device-lost": end}).xids == (64, 13), "64 is worse, and told apart"
    assert open_only(worst, {"device-lost": LogPlace(901)}).xids == (64, 119, 154, 94, 13)
    assert open_only(worst, {"device-lost": LogPlace(900)}).xids == worst.xids
    assert open_only(found, {"operator": end}).xids == found.xids
    reboot = replace(found, xid_actions=("", "", "", "", "", "NODE_REBOOT"))
    assert open_only(reboot, {"recovery-action": end}).xids == (13, 79, 31, 13, 94)
    assert open_only(reboot, {"reset-required": end}).xids == found.xids


@pytest.mark.parametrize(
    ("place", "end", "is_open"),
    [
        ({"sequence": 5}, LogPlace(5), False),
        ({"sequence": 6}, LogPlace(5), True),
        ({"sequence": 5}, LogPlace(None, 99.0, 99.0), True),
        ({"at_s": 5.0}, LogPlace(None, 5.0), False),
        ({"at_s": 5.1}, LogPlace(None, 5.0), True),
        ({"at_s": 5.0}, LogPlace(9), True),
        ({"heard": 5.0}, LogPlace(1, 1.0, 5.0), False),
        ({"heard": 5.1}, LogPlace(9, 9.0, 5.0), True),
        ({"heard": 5.0}, LogPlace(9, 9.0), True),
        ({}, LogPlace(9, 9.0, 9.0), True),
    ],
)
def test_b58_what_cannot_be_compared_stays_open(
    place: dict[str, Any], end: LogPlace, is_open: bool
) -> None:
    """B58: by its number, else by the clock it was told by; doubt closes nothing."""
    found = Readings(
        at=0.0,
        xids=(79,),
        xid_sequences=(place.get("sequence"),),
        xid_times=(place.get("at_s"),),
        xid_heard=(place.get("heard"),),
    )
    assert bool(open_only(found, {EVERYTHING: end}).xids) is is_open


def test_b58_codes_without_a_place_are_never_closed() -> None:
    """B58: a back end that does not say where its codes stand keeps them all."""
    found = Readings(at=0.0, xids=(79, 48))
    assert open_only(found, {EVERYTHING: LogPlace(9, 9.0, 9.0)}).xids == (79, 48)


def test_b58_a_reset_ends_no_errors_of_the_bus_and_no_fault_of_a_switch() -> None:
    """B58: a reset closes codes and needs of the device; a person's word closes the rest, too."""
    kinds = (("aer", "fatal"), ("switch", "fatal"), ("switch", "nonfatal"), ("needs", ""))
    found = Readings(at=0.0, logged=tuple(Logged(k, s, sequence=1) for k, s in kinds))

    def left(*words: str) -> list[tuple[str, str]]:
        kept = open_only(found, dict.fromkeys(words, LogPlace(1))).logged or ()
        return [(one.kind, one.severity) for one in kept]

    assert left(RESET) == [("aer", "fatal"), ("switch", "fatal"), ("switch", "nonfatal")]
    assert left("aer-fatal") == [("switch", "fatal"), ("switch", "nonfatal"), ("needs", "")]
    assert left("switch-fault") == [("aer", "fatal"), ("switch", "nonfatal"), ("needs", "")]
    assert left("reset-required") == [("aer", "fatal"), ("switch", "fatal"), ("switch", "nonfatal")]
    assert left(EVERYTHING) == []


def test_b58_a_recovery_action_only_the_log_had_is_closed_with_it() -> None:
    """B58: what the driver itself asks for stays; what the log had last goes with its record."""
    found = Readings(
        at=0.0,
        xids=(154,),
        xid_sequences=(7,),
        xid_actions=("GPU_RESET",),
        recovery_action="GPU_RESET",
        recovery_logged=True,
    )
    end = {EVERYTHING: LogPlace(7)}
    assert open_only(found, end).recovery_action is None
    assert open_only(replace(found, recovery_logged=False), end).recovery_action == "GPU_RESET"
    later = replace(found, xids=(154, 154), xid_sequences=(7, 8), xid_actions=("GPU_RESET", "NONE"))
    assert open_only(later, end).recovery_action == "NONE"
    silent = replace(found, xid_actions=())
    assert open_only(silent, end).recovery_action == "GPU_RESET", "which record said so is unknown"


def test_b58_every_reason_of_the_log_is_one_of_the_catalogue() -> None:
    """B58: a word of a decision and the reason of a check are the same word."""
    words = {reason for reason in closures._REASONS.values() if reason}
    assert words == {
        "aer-fatal",
        "counters-rose",
        "link-degraded",
        "switch-fault",
        "reset-required",
    }
    judged = judge(Readings(at=0.0, logged=(Logged("needs"),)), HealthPolicy())
    (needs,) = [one for one in judged if one.check == "driver-needs"]
    assert (needs.verdict, needs.reason) == (Verdict.FAIL, "reset-required")
