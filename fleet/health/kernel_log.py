"""Facts of the kernel log: fault codes, lost devices, PCIe errors, driver loads, our resets. Pure.

Reads the raw form of /dev/kmsg and what dmesg and the journal make of it. A device is told by its
slot alone (`fleet.pci.slot`), so that this works for one whose driver answers nothing any more.

Decisions:

1. Only the kernel's own records, and of a record only its first line, can state a fault: programs
   may write into the log, and a process may have any name.
2. What is doubtful is kept: a code that is no number is `UNKNOWN_CODE`, a slot that cannot be read
   is "", which is no device's (`strays`), and a record without a time lies in every window.
3. A driver load ends what was open on every device, our own mark what was open on one slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet import errors, pci
from fleet.health import tables

FALLEN_CODE = 79
"""What the driver logs for a device that left the bus, when it gives it a number at all."""
UNKNOWN_CODE = 999
"""The driver's library says so of a fault without a number."""
RECOVERY_CODE = 154
NVLINK_CODES = frozenset(range(144, 151))
MARK = "fleetscrub: reset of"
"""How a reset of ours is written down: the driver logs none."""

_HEX = r"[0-9a-fA-F]"
_PLACE = rf"(?:PCI:)?(?:{_HEX}{{4,8}}:)?{_HEX}{{2}}:{_HEX}{{2}}(?:\.[0-7])?"
_RAW = re.compile(r"(?P<priority>\d+),(?P<sequence>\d+),(?P<usec>\d+),[^;]*;(?P<text>.*)")
_DICTIONARY = re.compile(r"\s[A-Z_0-9]+=")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_PRINTED = re.compile(
    r"(?:<(?P<priority>\d+)>)?(?:(?P<facility>[a-z0-9]+) *:[a-z]+ *: ?)?"
    r"(?:\[ *(?P<at>\d+\.\d+)\] ?(?:\S+ kernel: )?|\[[A-Z][a-z]{2} [^\]]*\] ?"
    r"|(?:[A-Z][a-z]{2} +\d+ [\d:.]+|\d{4}-\d\d-\d\dT\S+) \S+ kernel: "
    r"(?:\[ *(?P<inner>\d+\.\d+)\] ?)?)?"
    r"(?P<text>.*)"
)
_XID = re.compile(
    r"NVRM: Xid \((?P<place>[^\s)]*)(?: GPU-I:(?P<gi>\d+))?(?: GPU-CI:(?P<ci>\d+))?[^)]*\): *"
    r"(?P<code>[^\s,]*),?(?P<rest>.*)",
    re.DOTALL,
)
_PID = re.compile(r"\s*pid='?(?P<pid>\d+|<unknown>)'?(?:, name=[^,]*(?:,[^ ][^,]*)*)?,\s*")
_NVLINK = re.compile(
    r"\b(?P<unit>[A-Z][A-Z0-9_]+)\s+(?:Fatal|Non-?fatal)\b.*?\bLink\s+(?P<link>\d+)"
)
_RECOVERY = re.compile(r"\bto\s+0x(?P<number>[0-9a-f]+)\s*\((?P<says>[^)]*)\)", re.IGNORECASE)
_FALLEN = re.compile(r"fallen\s+off\s+the\s+bus", re.IGNORECASE)
_NAMED = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?P<place>{_PLACE})(?=[\s:,]|$)")
_ANY_PLACE = re.compile(
    rf"(?<![\w:.])(?:PCI:)?{_HEX}{{4,8}}:{_HEX}{{2}}:{_HEX}{{2}}(?:\.[0-7])?(?![\w.])"
)
_LOADED = re.compile(r"NVRM: loading NVIDIA (?P<text>.*)", re.DOTALL)
_MARKED = re.compile(rf"{MARK} (?P<place>\S+)")
_AER = re.compile(
    rf"\S+ (?P<place>{_PLACE}): (?:AER: )?PCIe Bus Error: severity=(?P<severity>[^,]*)(?P<rest>.*)"
)
_AER_PORT = re.compile(
    rf"\S+ {_PLACE}: AER: (?:Multiple )?(?P<severity>[\w() -]*?) error (?:message )?received"
    rf"(?::| from) (?P<place>{_PLACE})"
)
_DIGITS_MAX = 20
"""Digits of the largest number a kernel prints; longer ones are no time and no priority."""
_LINES_TOGETHER = 4
"""Lines of one message that the log may show one by one, beyond its first."""


class Kind(StrEnum):
    """What a record says."""

    XID = "xid"
    FALLEN = "fallen-off-the-bus"
    AER = "aer"
    AER_PORT = "aer-port"
    LOADED = "driver-loaded"
    RESET = "reset"


FAULTS = frozenset({Kind.XID, Kind.FALLEN})


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log."""

    text: str
    more: tuple[str, ...] = ()
    """Further lines of the same record."""
    at_s: float | None = None
    """The log's own clock, seconds since boot: steps of the wall clock do not move it."""
    sequence: int | None = None
    kernel: bool = True
    """False for what a program wrote into the log."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What one record, or several lines that belong together, say about a device."""

    kind: Kind
    slot: str
    """PCI address without function; "" when the record does not say it clearly."""
    at_s: float | None = None
    sequence: int | None = None
    code: int | None = None
    text: str = ""
    pid: int | None = None
    severity: str = ""
    """``fatal``, ``nonfatal``, ``corrected``, or "" where the record says none."""
    unit: str = ""
    link: int | None = None
    recovery: str = ""
    """Word of recovery.toml a record of code 154 asks for."""
    instance: int | None = None
    compute_instance: int | None = None


def records(text: str) -> tuple[Record, ...]:
    """The records of a log in any of its forms, in order."""
    found: list[Record] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if line[:1] in (" ", "\t") and found:
            if not _DICTIONARY.match(line):
                last = found[-1]
                found[-1] = Record(
                    last.text, (*last.more, line.strip()), last.at_s, last.sequence, last.kernel
                )
        elif line.strip():
            found.append(_record(line))
    return tuple(found)


def relevant(record: Record) -> bool:
    """Whether the record may say anything that `facts` reads."""
    return any(word in record.text for word in ("NVRM:", "AER:", "PCIe Bus Error", MARK))


def facts(found: Iterable[Record]) -> tuple[Fact, ...]:
    """What the records say, in order. Never raises on any text."""
    return tuple(_facts(found))


def faults(found: Iterable[Record], address: str, since_s: float | None = None) -> tuple[Fact, ...]:
    """Faults of the slot still open: since the driver was loaded or we reset the device.

    `since_s` (the log's clock) leaves out what is older. Raises `InputInvalid` when `address` is
    no PCI address.
    """
    place = _slot_of(address)
    return tuple(fact for fact in _open(found, since_s) if fact.slot == place)


def codes(found: Iterable[Record], address: str, since_s: float | None = None) -> tuple[int, ...]:
    """The codes of `faults`, in the order they were logged."""
    return tuple(fact.code or UNKNOWN_CODE for fact in faults(found, address, since_s))


def severities(
    found: Iterable[Record], address: str, since_s: float | None = None
) -> tuple[str, ...]:
    """What the messages of `codes` say about themselves, position by position."""
    return tuple(fact.severity for fact in faults(found, address, since_s))


def strays(
    found: Iterable[Record], known: Iterable[str], since_s: float | None = None
) -> tuple[Fact, ...]:
    """Open faults of slots that are none of `known`: the node's matter, never another device's."""
    places = {pci.slot(address) for address in known} - {""}
    return tuple(fact for fact in _open(found, since_s) if fact.slot not in places)


def told(strays_found: Iterable[Fact]) -> tuple[str, ...]:
    """Facts of `strays` as a person reads them, each once, with how often."""
    counts: dict[str, int] = {}
    for fact in strays_found:
        named = f"of slot {fact.slot}, where no device of this node is"
        where = named if fact.slot else "of no slot"
        line = f"fault {fact.code or UNKNOWN_CODE} {where}"
        counts[line] = counts.get(line, 0) + 1
    return tuple(
        f"the kernel log has {line}" + (f" ({count} times)" if count > 1 else "")
        for line, count in counts.items()
    )


def recovery(found: Iterable[Record], address: str, since_s: float | None = None) -> str | None:
    """The recovery action last logged for the slot and still open; None when none was."""
    words = [
        fact.recovery for fact in faults(found, address, since_s) if fact.code == RECOVERY_CODE
    ]
    return words[-1] if words else None


def aer(found: Iterable[Record], address: str, since_s: float | None = None) -> Mapping[str, int]:
    """PCIe errors logged of the slot, by severity: for devices without counters.

    A port announces what the device then describes; both are one error.
    """
    place, counts = _slot_of(address), {Kind.AER: dict.fromkeys(_SEVERITIES, 0)}
    counts[Kind.AER_PORT] = dict.fromkeys(_SEVERITIES, 0)
    for fact in facts(found):
        if _before(fact, since_s) or fact.slot != place:
            continue
        if fact.kind in counts and fact.severity:
            counts[fact.kind][fact.severity] += 1
    return {name: max(counts[Kind.AER][name], counts[Kind.AER_PORT][name]) for name in _SEVERITIES}


_SEVERITIES = ("fatal", "nonfatal", "corrected")
_WORDS: Mapping[int, str] = {
    row["number"]: row["word"] for row in tables.rows("recovery", "recovery")
}
_SAYINGS: Mapping[str, str] = {
    said: row["word"] for row in tables.rows("recovery", "recovery") for said in row["says"]
}


def _slot_of(address: str) -> str:
    place = pci.slot(address)
    if not place:
        raise errors.InputInvalid(
            f"{address!r} is no PCI address",
            remedy="give it as sysfs does: 0000:3b:00.0",
            address=address,
        )
    return place


def _open(found: Iterable[Record], since_s: float | None) -> Sequence[Fact]:
    kept: list[Fact] = []
    for fact in facts(found):
        if fact.kind is Kind.LOADED:
            kept.clear()
        elif fact.kind is Kind.RESET:
            kept = [fault for fault in kept if not fact.slot or fault.slot != fact.slot]
        elif fact.kind not in FAULTS or _before(fact, since_s):
            continue
        elif fact.kind is Kind.XID or not _same(kept, fact):
            kept.append(fact)
    return kept


def _before(fact: Fact, since_s: float | None) -> bool:
    return since_s is not None and fact.at_s is not None and fact.at_s < since_s


def _same(kept: Sequence[Fact], fallen: Fact) -> bool:
    """Whether the loss was logged before: the driver says it with its number and again without."""
    return any(fact.slot == fallen.slot and fact.code == FALLEN_CODE for fact in kept)


def _record(line: str) -> Record:
    raw = _RAW.fullmatch(line)
    if raw is not None:
        text, *more = _ESCAPE.sub(lambda hit: chr(int(hit[1], 16)), raw["text"]).split("\n")
        kernel = (_number(raw["priority"]) or 0) >> 3 == 0
        rest, usec = tuple(part.strip() for part in more), _number(raw["usec"])
        at_s = None if usec is None else usec / 1e6
        return Record(text, rest, at_s, _number(raw["sequence"]), kernel)
    printed = _PRINTED.fullmatch(line)
    if printed is None:
        return Record(line)
    at = printed["at"] or printed["inner"]
    kernel = (_number(printed["priority"]) or 0) >> 3 == 0
    kernel = kernel and printed["facility"] in (None, "kern")
    at_s = None if at is None or len(at) > 2 * _DIGITS_MAX else float(at)
    return Record(printed["text"], (), at_s, None, kernel)


def _number(text: str | None) -> int | None:
    """The number of these digits. None: there are none, or more than the kernel ever writes."""
    return int(text) if text and len(text) <= _DIGITS_MAX else None


def _facts(found: Iterable[Record]) -> Iterator[Fact]:
    parts: list[str] = []
    place = ""
    for record in found:
        marked = _MARKED.match(record.text)
        if marked is not None:
            where = pci.slot(marked["place"])
            if where:
                yield Fact(Kind.RESET, where, record.at_s, record.sequence)
            continue
        if not record.kernel:
            continue
        stated = _stated(record)
        if stated is not None:
            parts, place = [], ""
            yield stated
            continue
        if not record.text.startswith("NVRM:"):
            continue
        named = _NAMED.match(record.text)
        if named is not None or len(parts) > _LINES_TOGETHER:
            parts, place = [], ""
        if named is not None:
            place = pci.slot(named["place"])
        lines = [line.removeprefix("NVRM:").strip() for line in (record.text, *record.more)]
        parts += lines
        if _FALLEN.search(" ".join(parts)):
            own = _ANY_PLACE.search(" ".join(lines))
            where = place or (pci.slot(own[0]) if own else "")
            said = " ".join(parts if place else lines)
            yield Fact(Kind.FALLEN, where, record.at_s, record.sequence, FALLEN_CODE, said)
            parts, place = [], ""


def _stated(record: Record) -> Fact | None:
    """What the first line of a record says by itself."""
    text = record.text
    if (xid := _XID.match(text)) is not None:
        return _xid(record, xid)
    if (loaded := _LOADED.match(text)) is not None:
        return Fact(Kind.LOADED, "", record.at_s, record.sequence, text=loaded["text"])
    for kind, pattern in ((Kind.AER, _AER), (Kind.AER_PORT, _AER_PORT)):
        if (hit := pattern.match(text)) is not None:
            return Fact(
                kind,
                pci.slot(hit["place"]),
                record.at_s,
                record.sequence,
                text=text,
                severity=_severity(hit["severity"]),
            )
    return None


def _xid(record: Record, xid: re.Match[str]) -> Fact:
    number = xid["code"]
    code = int(number) if number.isdecimal() and len(number) < len("1000000") else UNKNOWN_CODE
    who = _PID.match(xid["rest"])
    text = (xid["rest"][who.end() :] if who else xid["rest"]).strip()
    link = _NVLINK.search(text) if code in NVLINK_CODES else None
    return Fact(
        Kind.XID,
        pci.slot(xid["place"]),
        record.at_s,
        record.sequence,
        code,
        text,
        pid=_number(who["pid"]) if who and who["pid"].isdecimal() else None,
        severity=_severity(xid["rest"]) if code in NVLINK_CODES else "",
        unit=link["unit"] if link else "",
        link=_number(link["link"]) if link else None,
        recovery=_asked(text) if code == RECOVERY_CODE else "",
        instance=_number(xid["gi"]),
        compute_instance=_number(xid["ci"]),
    )


def _severity(text: str) -> str:
    """The worst severity the text names: a process in it may be called anything."""
    plain = text.lower().replace("non-fatal", "nonfatal")
    words = set(re.findall(r"[a-z]+", plain))
    if "fatal" in words:
        return "fatal"
    if "nonfatal" in words:
        return "nonfatal"
    return "corrected" if words & {"corrected", "correctable"} else ""


def _asked(text: str) -> str:
    """The word of recovery.toml for the action a message names.

    The words go before the number, whose meaning the driver may change; what neither table knows
    stays as it was written, and the check takes it at its worst.
    """
    found = _RECOVERY.search(text)
    if found is None:
        return "UNREADABLE"
    says = found["says"].strip()
    known = _SAYINGS.get(says.lower().removesuffix(" required"))
    return known or _WORDS.get(int(found["number"], 16)) or says.upper().replace(" ", "_")
