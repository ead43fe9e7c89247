"""Facts of the kernel log: fault codes, lost devices, switches, PCIe errors, resets. Pure.

Reads the raw form of /dev/kmsg and what dmesg and the journal make of it. A device is told by its
slot alone (`fleet.core.pci.slot`), so that this works for one whose driver answers nothing any
more.

Decisions:

1. Only the kernel's own records, and of a record only its first line, can state a fault: programs
   may write into the log, and a process may have any name. A record that begins with the name of
   a process states nothing of a device.
2. What is doubtful is kept: a code that is no number is `UNKNOWN_CODE`, a slot that cannot be read
   is "", which is no device's (`strays`), a record without a time lies in every window, and a fault
   in a line of a form nobody knows is the node's matter (F07).
3. A driver load ends what was open on every device, our own mark what was open on one slot. Neither
   ends errors of the bus: the kernel's own totals do not go back by them either.
4. What was closed by a decision or a repair stays in the log: who judges leaves it out by its place
   there (`Fact.sequence`, `fleet.devices.health.closures`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fleet.core import errors, pci
from fleet.devices.health import tables

FALLEN_CODE = 79
"""What the driver logs for a device that left the bus, when it gives it a number at all."""
UNKNOWN_CODE = 999
"""The driver's library says so of a fault without a number."""
RECOVERY_CODE = 154
NVLINK_CODES = frozenset(range(144, 151))
MARK = "fleetscrub: reset of"
"""How a reset of ours is written down: the driver logs none."""

_HEX = r"[0-9a-fA-F]"
_OF_PROCESS = re.compile(r".{0,15}\[\d+\]: ", re.DOTALL)
"""How the kernel's own records about a process begin (its crash): with its name, 15 characters of
its own choice, and further on they have the name of a file of its choice."""
_PLACE = rf"(?:PCI:)?(?:{_HEX}{{4,8}}:)?{_HEX}{{2}}:{_HEX}{{2}}(?:\.[0-7])?"
_RAW = re.compile(r"(?P<priority>\d+),(?P<sequence>\d+),(?P<usec>\d+),[^;]*;(?P<text>.*)")
_DICTIONARY = re.compile(r"\s[A-Z_0-9]+=")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_BEFORE = re.compile(
    r"<(?P<priority>\d+)>"
    r"|(?P<facility>[a-z0-9]+) *:[a-z]+ *: ?"
    r"|\[ *(?P<at>\d+\.\d+)(?: *<[^>\]]*>)?\] ?"
    r"|\[ *[+<] *[\d.]+>?\] ?|\[[A-Z][a-z]{2} [^\]]*\] ?|\[ *[TC]\d+ *\] ?"
    r"|(?P<stamp>[A-Z][a-z]{2} +\d+ [\d:.]+|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)?) "
    r"|(?:\S+ )?(?P<kernel>kernel): ?"
    r"|(?P<program>\S+ \S+\[\d+\]: )"
)
"""What the many forms of dmesg and the journal put before a message, one piece at a time: priority,
facility, the log's clock (with or without the step since), other clocks, the calling thread, host
and program."""
_PIECES_MAX = 8
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
_HIDDEN = re.compile(r"NVRM: Xid \(|nvidia-nvswitch\d+: SXid \(")
_SWITCH = re.compile(
    r"nvidia-nvswitch\d+: SXid \((?P<place>[^\s)]*)\): *(?P<code>\d+), (?P<says>(?:Non-)?[Ff]atal"
    r"\b.*)",
    re.DOTALL,
)
"""The first line of a switch's fault. Those that follow (Severity, Data) say more of the same."""
_ADAPTER = re.compile(
    rf"NVRM: GPU (?P<place>{_PLACE}): (?:RmInitAdapter|rm_init_adapter) failed(?P<rest>.*)",
    re.DOTALL,
)
_NEEDS = re.compile(
    r"reset required|NV_ERR_RESET_REQUIRED|requiring (?:os|node|system) reboot"
    r"|GPU lost from the bus|NV_ERR_GPU_IS_LOST",
    re.IGNORECASE,
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
_FIRMWARE = re.compile(r"(?:\{(?P<event>\d+)\})?\[Hardware Error\]: *(?P<text>.*)")
"""An error the firmware took first and then told the kernel, in several records."""
_FIRMWARE_SEVERITY = re.compile(r"(?:event severity|Error \d+, type): (?P<word>[a-z]+)")
_FIRMWARE_DEVICE = re.compile(rf"device_id: (?P<place>{_PLACE})")
_FIRMWARE_WORDS = {"fatal": "fatal", "recoverable": "nonfatal", "corrected": "corrected"}
_STATUS = re.compile(rf"\S+ (?P<place>{_PLACE}): (?:AER: )?aer_status: 0x(?P<bits>[0-9a-f]+)")
_STATUS_SEVERITY = re.compile(
    rf"\S+ (?P<place>{_PLACE}): (?:AER: )?aer_uncor_severity: 0x(?P<bits>[0-9a-f]+)"
)
_CONTAINED = re.compile(
    rf"\S+ (?P<place>{_PLACE}): DPC: containment event, status:0x(?P<bits>[0-9a-f]+)"
    r"(?:,)? source:(?:0x(?P<source>[0-9a-f]{4})\b|(?P<named>\S+))"
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
    FIRMWARE = "aer-firmware"
    STATUS = "aer-status"
    CONTAINED = "aer-contained"
    SWITCH = "switch"
    NEEDS = "needs"
    """The driver could not start the adapter, or says what it needs, without a fault code."""
    LOADED = "driver-loaded"
    RESET = "reset"


FAULTS = frozenset({Kind.XID, Kind.FALLEN})
BUS = frozenset({Kind.AER, Kind.AER_PORT, Kind.FIRMWARE, Kind.STATUS, Kind.CONTAINED})
"""Ways to tell one error of the bus: each may come for the same error, so that the most counts."""
OF_NODE = FAULTS | {Kind.SWITCH, Kind.NEEDS}
"""What is told of a slot that is no device's."""


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
    clear: bool = True
    """False for a line that begins as no form of the log known to us does."""


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
    doubtful: bool = False
    """Whether it stands in a line whose form nobody knows."""


def records(text: str) -> tuple[Record, ...]:
    """The records of a log in any of its forms, in order."""
    found: list[Record] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if line[:1] in (" ", "\t") and found:
            if not _DICTIONARY.match(line):
                last = found[-1]
                found[-1] = replace(last, more=(*last.more, line.strip()))
        elif line.strip():
            found.append(_record(line))
    return tuple(found)


def relevant(record: Record) -> bool:
    """Whether the record may say anything that `facts` reads."""
    return any(word in record.text for word in _WORDS_OF_INTEREST)


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
    return tuple(
        fact
        for fact in _all_open(found, since_s)
        if fact.kind in OF_NODE and fact.slot not in places
    )


def others(found: Iterable[Record], address: str, since_s: float | None = None) -> tuple[Fact, ...]:
    """What is open and has no code of the driver: errors of the slot's bus, what its driver needs,
    and faults of any switch of the node.

    Raises `InputInvalid` when `address` is no PCI address.
    """
    place = _slot_of(address)
    kinds = BUS | {Kind.NEEDS}
    return tuple(
        fact
        for fact in _all_open(found, since_s)
        if fact.kind is Kind.SWITCH or (fact.kind in kinds and fact.slot == place)
    )


def told(strays_found: Iterable[Fact]) -> tuple[str, ...]:
    """Facts of `strays` as a person reads them, each once, with how often."""
    counts: dict[str, int] = {}
    for fact in strays_found:
        line = _line(fact)
        counts[line] = counts.get(line, 0) + 1
    told_of = [
        f"the kernel log has {line}" + (f" ({count} times)" if count > 1 else "")
        for line, count in counts.items()
    ]
    more = len(told_of) - _TOLD_MAX
    rest = [f"the kernel log has {more} more faults of no device of this node"] if more > 0 else []
    return (*told_of[:_TOLD_MAX], *rest)


_TOLD_MAX = 32


def plain(text: str) -> str:
    """Text of a record for a person: in one line, printable, not longer than one reads."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."


_SHOWN_MAX = 160


def _line(fact: Fact) -> str:
    if fact.kind is Kind.SWITCH:
        said = f"a {fact.severity} fault {fact.code} of a switch"
        return f"{said} in slot {fact.slot}" if fact.slot else said
    named = f"of slot {fact.slot}, where no device of this node is"
    where = named if fact.slot else "of no slot"
    if fact.kind is Kind.NEEDS:
        hit = _NEEDS.search(fact.text)
        says = hit[0] if hit else "the adapter could not be started"
        return f"a fault without a code {where}: {says}"
    doubt = f", in a line of a form that is not known: {plain(fact.text)}" if fact.doubtful else ""
    return f"fault {fact.code or UNKNOWN_CODE} {where}{doubt}"


def recovery(found: Iterable[Record], address: str, since_s: float | None = None) -> str | None:
    """The recovery action last logged for the slot and still open; None when none was."""
    words = [
        fact.recovery for fact in faults(found, address, since_s) if fact.code == RECOVERY_CODE
    ]
    return words[-1] if words else None


def aer(found: Iterable[Record], address: str, since_s: float | None = None) -> Mapping[str, int]:
    """PCIe errors logged of the slot, by severity: for devices without counters.

    A port announces what the device then describes, and firmware what the kernel repeats: one
    error.
    """
    place = _slot_of(address)
    return counted(
        (fact.kind, fact.severity)
        for fact in _all_open(found, since_s)
        if fact.kind in BUS and fact.slot == place
    )


def counted(told_of: Iterable[tuple[str, str]]) -> Mapping[str, int]:
    """Errors of a bus by severity, of (kind, severity) of each record of `BUS`."""
    counts: dict[str, dict[str, int]] = {}
    for kind, severity in told_of:
        if severity in _SEVERITIES:
            of_kind = counts.setdefault(kind, dict.fromkeys(_SEVERITIES, 0))
            of_kind[severity] += 1
    return {
        name: max((of_kind[name] for of_kind in counts.values()), default=0) for name in _SEVERITIES
    }


_SEVERITIES = ("fatal", "nonfatal", "corrected")
_WORDS_OF_INTEREST = (
    "NVRM:", "SXid", "AER:", "PCIe Bus Error", "aer_", "[Hardware Error]", "DPC:", MARK,
)  # fmt: skip
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
    return [fact for fact in _all_open(found, since_s) if fact.kind in FAULTS]


def _all_open(found: Iterable[Record], since_s: float | None) -> Sequence[Fact]:
    kept: list[Fact] = []
    for fact in facts(found):
        if fact.kind is Kind.LOADED:
            kept = [one for one in kept if one.kind in BUS]
        elif fact.kind is Kind.RESET:
            kept = [one for one in kept if not _ended(one, fact)]
        elif _before(fact, since_s):
            continue
        elif fact.kind is not Kind.FALLEN or not _same(kept, fact):
            kept.append(fact)
    return kept


def _ended(open_one: Fact, reset: Fact) -> bool:
    """Whether a reset of ours ends what is open: of its slot, and not of the bus."""
    return bool(reset.slot) and open_one.slot == reset.slot and open_one.kind not in BUS


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
    return _printed(line)


def _printed(line: str) -> Record:
    """A line of dmesg or of the journal, without what stands before its message."""
    at_s, kernel, rest = None, True, line
    stamped = named = known = False
    for _ in range(_PIECES_MAX):
        piece = _BEFORE.match(rest)
        if piece is None or (piece["program"] and not stamped):
            break
        if piece["program"]:  # behind a time it is the journal's word for who wrote the line
            return Record(line, (), at_s, None, kernel=False)
        kernel = kernel and (_number(piece["priority"]) or 0) >> 3 == 0
        kernel = kernel and piece["facility"] in (None, "kern")
        if at_s is None and piece["at"] and len(piece["at"]) <= 2 * _DIGITS_MAX:
            at_s = float(piece["at"])
        stamped, named = stamped or bool(piece["stamp"]), named or bool(piece["kernel"])
        known, rest = True, rest[piece.end() :]
    hidden = _HIDDEN.search(rest)
    understood = named or at_s is not None or (known and not stamped)
    clear = hidden is None or hidden.start() == 0 or understood
    return Record(rest, (), at_s, None, kernel, clear)


def _number(text: str | None) -> int | None:
    """The number of these digits. None: there are none, or more than the kernel ever writes."""
    return int(text) if text and len(text) <= _DIGITS_MAX else None


def _facts(found: Iterable[Record]) -> Iterator[Fact]:
    parts: list[str] = []
    place = ""
    bus = _Bus()
    for record in found:
        marked = _MARKED.match(record.text)
        if marked is not None:
            where = pci.slot(marked["place"])
            if where:
                yield Fact(Kind.RESET, where, record.at_s, record.sequence)
            continue
        if not record.kernel or _OF_PROCESS.match("\n".join((record.text, *record.more))):
            continue
        stated = _stated(record) or _doubtful(record)
        if stated is not None:
            parts, place = [], ""
            yield stated
            continue
        told_of_bus = bus.told(record)
        if told_of_bus is not None:
            yield told_of_bus
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
        elif (needs := _needs(record, lines)) is not None:
            parts, place = [], ""
            yield needs
    yield from bus.rest()


def _stated(record: Record) -> Fact | None:
    """What the first line of a record says by itself."""
    text = record.text
    if (xid := _XID.match(text)) is not None:
        return _xid(record, xid)
    if (switch := _SWITCH.match(text)) is not None:
        return Fact(
            Kind.SWITCH,
            pci.slot(switch["place"]),
            record.at_s,
            record.sequence,
            _number(switch["code"]),
            switch["says"],
            severity=_severity(switch["says"].partition(",")[0]),
        )
    if (failed := _ADAPTER.match(text)) is not None:
        where, said = pci.slot(failed["place"]), text.removeprefix("NVRM:").strip()
        return Fact(Kind.NEEDS, where, record.at_s, record.sequence, text=said)
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


def _doubtful(record: Record) -> Fact | None:
    """A fault in a line nobody can read the beginning of: kept, and held against no device."""
    hidden = None if record.clear else _HIDDEN.search(record.text)
    if hidden is None:
        return None
    inside = _stated(replace(record, text=record.text[hidden.start() :]))
    kind = Kind.XID if inside is None else inside.kind
    code = None if inside is None else inside.code
    return Fact(
        kind,
        "",
        record.at_s,
        record.sequence,
        code,
        record.text,
        severity="" if inside is None else inside.severity,
        doubtful=True,
    )


def _needs(record: Record, lines: Sequence[str]) -> Fact | None:
    """What the driver says a device, or the machine, needs, where it gives no code for it."""
    said = " ".join(lines)
    if _NEEDS.search(said) is None:
        return None
    place = _ANY_PLACE.search(said)
    where = pci.slot(place[0]) if place else ""
    return Fact(Kind.NEEDS, where, record.at_s, record.sequence, text=said)


class _Bus:
    """Errors of the bus that take several records: those of the firmware, and bare registers."""

    def __init__(self) -> None:
        self._severity: dict[str, str] = {}
        """By the number of the firmware's event, the severity last named."""
        self._status: Fact | None = None
        self._bits = 0

    def told(self, record: Record) -> Fact | None:
        """What is complete with this record."""
        if (firmware := _FIRMWARE.match(record.text)) is not None:
            return self._of_firmware(record, firmware["event"] or "", firmware["text"])
        if (status := _STATUS.match(record.text)) is not None:
            before = self._status
            place = pci.slot(status["place"])
            self._bits = int(status["bits"][-8:], 16)
            self._status = Fact(
                Kind.STATUS,
                place,
                record.at_s,
                record.sequence,
                text=record.text,
                # The kernel prints the severities only of what was not corrected.
                severity="corrected",
            )
            return before
        severity = _STATUS_SEVERITY.match(record.text)
        status_open = self._status
        if severity is not None and status_open and status_open.slot == pci.slot(severity["place"]):
            fatal = self._bits & int(severity["bits"][-8:], 16)
            self._status = None
            return replace(status_open, severity="fatal" if fatal else "nonfatal")
        if (contained := _CONTAINED.match(record.text)) is not None:
            return _contained(record, contained)
        return None

    def rest(self) -> Iterator[Fact]:
        """What was begun and is as complete as it will be."""
        if self._status is not None:
            yield self._status

    def _of_firmware(self, record: Record, event: str, text: str) -> Fact | None:
        if (said := _FIRMWARE_SEVERITY.match(text)) is not None:
            if len(self._severity) > _EVENTS_MAX:
                self._severity.clear()
            self._severity[event] = said["word"]
            return None
        device = _FIRMWARE_DEVICE.match(text)
        if device is None:
            return None
        # A record whose severity was lost or is new to us is taken at its worst but one.
        word = self._severity.get(event, "")
        severity = "" if word == "info" else _FIRMWARE_WORDS.get(word, "nonfatal")
        return Fact(
            Kind.FIRMWARE,
            pci.slot(device["place"]),
            record.at_s,
            record.sequence,
            text=f"firmware told of a {word or 'PCIe'} error: {text}",
            severity=severity,
        )


_EVENTS_MAX = 64
_DPC_NONFATAL = 1
"""Trigger reason of downstream port containment: the device sent an ERR_NONFATAL."""


def _contained(record: Record, hit: re.Match[str]) -> Fact:
    """A port cut its link off. Who was the cause is told as bus, device and function."""
    domain = pci.slot(hit["place"]).partition(":")[0]
    where = pci.slot(hit["named"] or "")
    if hit["source"]:
        source = int(hit["source"], 16)
        where = f"{domain}:{source >> 8:02x}:{source >> 3 & 0x1F:02x}"
    reason = int(hit["bits"][-4:], 16) >> 1 & 0b11
    return Fact(
        Kind.CONTAINED,
        where,
        record.at_s,
        record.sequence,
        text=record.text,
        severity="nonfatal" if reason == _DPC_NONFATAL else "fatal",
    )


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
