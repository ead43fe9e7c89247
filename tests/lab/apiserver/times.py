"""Times as the API writes them: whole seconds in UTC, or microseconds for leases. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?(.*)", re.DOTALL
)
_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"


def stamp(now: float) -> str:
    """Seconds since the epoch as an API time (whole seconds)."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def whole_seconds(text: str) -> str:
    """`text` as stored: in UTC, fractions cut. Raises ValueError with the server's words."""
    return _parsed(text, _LAYOUT).strftime("%Y-%m-%dT%H:%M:%SZ")


def microseconds(text: str) -> str:
    """A lease's time as stored. Exactly six digits are required, as the server demands."""
    match = _RFC3339.fullmatch(text)
    if match is not None and len(match[3] or "") != len(".000000"):
        raise ValueError(f'parsing time "{text}" as "{_MICRO_LAYOUT}": cannot parse the fraction')
    return _parsed(text, _MICRO_LAYOUT).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parsed(text: str, layout: str) -> datetime:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    day, clock, fraction, zone, rest = match.groups()
    if zone is None:
        raise ValueError(f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "Z07:00"')
    if rest:
        raise ValueError(f'parsing time "{text}": extra text: "{rest}"')
    try:
        base = datetime.fromisoformat(f"{day}T{clock}")
    except ValueError as error:
        raise ValueError(f'parsing time "{text}": out of range') from error
    offset = timedelta(0)
    if zone != "Z":
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:]))
        offset = -offset if zone[0] == "-" else offset
    micros = int((fraction or ".0")[1:7].ljust(6, "0"))
    found = base.replace(microsecond=micros, tzinfo=timezone(offset))
    return found.astimezone(UTC)
