"""What the driver's fault codes mean between two tenants. Pure; the meanings are rows of xids.toml.

Codes are read in the order they were logged, since one may end the incident of an earlier one. A
code without a row is taken seriously: out of service until somebody has looked. A back end lists
the codes since the last driver load or reset, so that a reset answers what came before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fleet.devices.health import tables

ROWS = tables.rows("xids", "xid")
Rows = Sequence[Mapping[str, Any]]


class Severity(IntEnum):
    """What a code asks for; the worst one decides."""

    NONE = 0
    ELSEWHERE = 1
    NOTE = 2
    OURS = 3
    """An application's fault where the application was our own wipe."""
    REVIEW = 4
    RESET = 5
    REBOOT = 6
    REPLACE = 7

    @property
    def serious(self) -> bool:
        """Whether the device goes out of service."""
        return self >= Severity.OURS


@dataclass(frozen=True, slots=True)
class Xid:
    """One fault code as classified. `reason`: code of the quarantine reason it gives."""

    code: int
    text: str
    severity: Severity
    reason: str

    def __str__(self) -> str:
        return f"{self.code} {self.text} ({self.severity.name.lower()})"


def classify(
    codes: Sequence[int],
    *,
    before: Sequence[int] | None = None,
    driver_version: str | None = None,
    severities: Sequence[str] = (),
    rows: Rows = ROWS,
) -> tuple[Xid, ...]:
    """The codes still open, worst first. `before`: codes already there when our wipe began.

    `severities`: what the messages say of themselves, position by position (``fatal``,
    ``nonfatal``, ""); ignored when there are not as many as codes.
    """
    ours = _new(codes, before)
    open_codes: list[Xid] = []
    for position, code in enumerate(codes):
        row = _row(code, driver_version, rows)
        ended = set(row.get("cancels", ()))
        open_codes = [xid for xid in open_codes if xid.code not in ended]
        said = severities[position] if len(severities) == len(codes) else ""
        severity = Severity[row.get(said or "outcome", row["outcome"]).upper()]
        if severity in (Severity.NONE, Severity.NOTE) and position in ours:
            severity = Severity.OURS
        open_codes.append(Xid(code, row["text"], severity, row.get("reason", "xid")))
    return tuple(sorted(open_codes, key=lambda xid: (-xid.severity, xid.code)))


def reason_of(code: int, driver_version: str | None = None) -> str:
    """Code of the quarantine reason that a fault code gives when it is serious."""
    return str(_row(code, driver_version, ROWS).get("reason", "xid"))


def severity_of(code: int, driver_version: str | None = None) -> Severity:
    """What a fault code asks for where its message says nothing of itself."""
    return Severity[_row(code, driver_version, ROWS)["outcome"].upper()]


def _row(code: int, driver_version: str | None, rows: Rows) -> Mapping[str, Any]:
    """The last row that fits code and driver branch; rows for newer drivers follow older ones."""
    branch = _branch(driver_version)
    fitting = [
        row for row in rows if row["code"] == code and branch >= int(row.get("driver_min", 0))
    ]
    return fitting[-1] if fitting else {"text": "not in the table", "outcome": "review"}


def _branch(driver_version: str | None) -> int:
    """The driver's branch (595 of 595.45.04); 0 when unknown, so that newer rows do not apply."""
    head = (driver_version or "").partition(".")[0]
    return int(head) if head.isdecimal() else 0


def _new(codes: Sequence[int], before: Sequence[int] | None) -> frozenset[int]:
    """Positions of codes that were not yet there in `before`, which may have lost its oldest."""
    if before is None:
        return frozenset()
    known = Counter(before)
    fresh = set()
    for position, code in enumerate(codes):
        if known[code]:
            known[code] -= 1
        else:
            fresh.add(position)
    return frozenset(fresh)
