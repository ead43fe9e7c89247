"""What a decision or a repair has closed in the kernel log (case B58). Pure.

The log is a list of events, and what stands there stays for the whole boot. Read as if it were a
level, a fault whose cause was repaired takes its device out of service again for ever. So each
decision and each verified repair closes what was logged before it, for one device, for the reasons
it was about, and up to a place in the log; what comes later counts.

Decisions:

1. A reason closes what was told with it, `EVERYTHING` all there is, and `RESET` what a reset of
   the device ends: not errors of the bus, whose totals the kernel keeps, and not the switch.
2. What has no place in the log that can be compared is never closed: doubt stays open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.devices.health import xids
from fleet.devices.health.checks import CHECKS, RECOVERY
from fleet.devices.health.kernel_log import BUS, Kind
from fleet.devices.health.readings import Logged, LogPlace, Readings, with_codes

EVERYTHING, RESET = "", "reset"
Closures = Mapping[str, LogPlace]
"""By reason, or one of these words, up to where what was logged is closed."""

_ASKED = "recovery-action"
_REASONS: Mapping[tuple[str, str], str] = {
    (kind, check.rules.get("severity", "")): check.reason
    for check in CHECKS
    for kind in check.rules.get("kinds", ())
}


def open_only(readings: Readings, closed: Closures) -> Readings:
    """The readings without what is closed in the log."""
    if not closed:
        return readings
    found = readings
    if found.xids and len(found.xid_sequences) == len(found.xids):
        found = with_codes(found, [i for i in range(len(found.xids)) if _open(found, i, closed)])
    if found.logged:
        kept = tuple(one for one in found.logged if _stays(one, closed))
        found = replace(found, logged=kept)
    return found


def _open(readings: Readings, position: int, closed: Closures) -> bool:
    place, action = _place(readings, position), _action(readings, position)
    if action:
        words = {RECOVERY.get(action, {}).get("reason") or _ASKED}
    else:
        words = {word for word, end in closed.items() if _named(readings, position, word, end)}
    return not _closed(place, closed, {*words, EVERYTHING, RESET})


def _named(readings: Readings, position: int, word: str, end: LogPlace) -> bool:
    """Whether who decided about reason `word` was told of this code.

    The worst of several codes gives the reason, and all are told with it.
    """
    codes, version = readings.xids or (), readings.driver_version
    worst = max(
        (
            xids.severity_of(code, version)
            for other, code in enumerate(codes)
            if xids.reason_of(code, version) == word and _before(_place(readings, other), end)
        ),
        default=None,
    )
    return worst is not None and xids.severity_of(codes[position], version) <= worst


def _place(readings: Readings, position: int) -> LogPlace:
    def at(column: Sequence[float | None]) -> float | None:
        return column[position] if position < len(column) else None

    sequence = readings.xid_sequences[position]
    return LogPlace(sequence, at(readings.xid_times), at(readings.xid_heard))


def _action(readings: Readings, position: int) -> str:
    return readings.xid_actions[position] if position < len(readings.xid_actions) else ""


def _stays(one: Logged, closed: Closures) -> bool:
    place = LogPlace(one.sequence, one.at_s)
    reason = _REASONS.get((one.kind, one.severity), "")
    words = {EVERYTHING, reason}
    if one.kind not in BUS and one.kind != Kind.SWITCH:
        words.add(RESET)
    return not _closed(place, closed, words)


def _closed(place: LogPlace, closed: Closures, words: set[str]) -> bool:
    return any(_before(place, closed[word]) for word in words if word in closed)


def _before(place: LogPlace, end: LogPlace) -> bool:
    """Whether it was logged no later than `end`; what cannot be compared was not."""
    if place.sequence is not None:
        return end.sequence is not None and place.sequence <= end.sequence
    if place.heard_s is not None:
        return end.heard_s is not None and place.heard_s <= end.heard_s
    return place.at_s is not None and end.at_s is not None and place.at_s <= end.at_s
