"""What a back end reads off an accelerator at one moment. Pure.

None means *unknown*: asked and not answered. A name in `not_applicable` means the hardware has no
such thing. The two are judged differently: unknown blocks where a check is mandatory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

COUNTERS = (
    "ecc_uncorrected_volatile",
    "ecc_uncorrected_aggregate",
    "ecc_corrected_volatile",
    "sram_uncorrected",
    "uncorrectable_remaps",
    "retired_pages",
    "pcie_replays",
    "aer_fatal",
    "aer_nonfatal",
    "aer_corrected",
    "nvlink_errors",
)
"""Readings that only ever rise while the driver stays loaded: compared before and after a wipe."""

XID_COLUMNS = ("xid_severities", "xid_instances", "xid_times")
"""Readings that go with `xids` position by position."""
XID_PLACES = ("xid_sequences", "xid_heard", "xid_actions")
"""More of these; a back end without them lists codes that nobody can tell the age of."""

VENDOR_ONLY = frozenset(
    {
        "ecc_uncorrected_volatile",
        "ecc_uncorrected_aggregate",
        "ecc_corrected_volatile",
        "ecc_enabled",
        "ecc_change_pending",
        "sram_uncorrected",
        "sram_threshold_exceeded",
        "row_remap_pending",
        "row_remap_failed",
        "uncorrectable_remaps",
        "retired_pages",
        "retired_pages_pending",
        "repair_pending",
        "inforom_valid",
        "pcie_gen_device_max",
        "pcie_replays",
        "nvlinks_up",
        "nvlinks_expected",
        "nvlink_errors",
        "fabric_state",
        "fabric_healthy",
        "pstate",
        "temperature_c",
        "memory_temperature_c",
        "hw_slowdown",
        "thermal_slowdown",
        "power_brake",
        "xids",
        "recovery_action",
        "recovery_logged",
        "reset_required",
        "scrub_on_free",
        "preserves_memory",
        "persistence",
        "accounting",
        "mig_enabled",
        "mig_change_pending",
        "unpartitioned",
    }
)
"""Readings that only a vendor's library or driver knows: not applicable to a bare PCI function,
except those its driver does offer."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Something the kernel log states that has no fault code of the driver."""

    kind: str
    """A word of `fleet.devices.health.kernel_log.Kind`."""
    severity: str = ""
    """``fatal``, ``nonfatal``, ``corrected`` or ""."""
    text: str = ""
    sequence: int | None = None
    at_s: float | None = None
    """When, s since boot by the log's own clock."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the kernel log stood at one moment: what stands there up to it is older."""

    sequence: int | None = None
    """Number of the newest record. None: its records have none."""
    at_s: float | None = None
    """When that record was logged, s since boot by the log's own clock."""
    heard_s: float | None = None
    """That moment itself, s since boot by the node's clock."""


@dataclass(frozen=True, slots=True)
class LogState:
    """How far the kernel log was read, and what of it the kernel overwrote before."""

    place: LogPlace = LogPlace()
    first: int | None = None
    """Number of the first record there was when it was opened."""
    lost: int = 0
    """Times, since it was opened, that records were overwritten before they were read."""


@dataclass(frozen=True, slots=True)
class Readings:
    """One set of readings. Counters are totals since driver load unless named aggregate."""

    at: float
    """When they were taken, seconds since the epoch."""
    under_load: bool = False
    """Whether memory traffic of ours was running: link speed and width are judged only then."""
    present: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    ecc_corrected_volatile: int | None = None
    sram_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    uncorrectable_remaps: int | None = None
    retired_pages: int | None = None
    retired_pages_pending: bool | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    aer_fatal: int | None = None
    aer_nonfatal: int | None = None
    aer_corrected: int | None = None
    nvlinks_up: int | None = None
    nvlinks_expected: int | None = None
    nvlink_errors: int | None = None
    temperature_c: int | None = None
    hw_slowdown: bool | None = None
    thermal_slowdown: bool | None = None
    xids: tuple[int, ...] | None = None
    """Driver fault codes logged since the driver was loaded or the device reset, in order."""
    xid_severities: tuple[str, ...] = ()
    """What the messages of `xids` say of themselves, position by position: ``fatal``, ``nonfatal``
    or "". Empty: not read."""
    xid_instances: tuple[int | None, ...] = ()
    """The GPU instance each of `xids` names, position by position; None: none, the whole device.
    Empty: not read."""
    xid_times: tuple[float | None, ...] = ()
    """When each was logged, s since boot by the log's clock; None: not known. Empty: not read."""
    xid_sequences: tuple[int | None, ...] = ()
    """Number of each one's record in the kernel log; None: it has none. Empty: not read."""
    xid_heard: tuple[float | None, ...] = ()
    """When the driver reported it by itself and the log did not, s since boot; None: it is in the
    log. Empty: not read."""
    xid_actions: tuple[str, ...] = ()
    """The recovery action each asks for, ""; Empty: not read."""
    logged: tuple[Logged, ...] | None = None
    """What else the kernel log has of the device: errors of its bus, what its driver needs, faults
    of the switches before it. None: it was not read."""
    log: LogState | None = None
    """How far the log was read for this; None: it was not."""
    recovery_action: str | None = None
    """The driver's own verdict: NONE, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET ..."""
    recovery_logged: bool = False
    """Whether it is only what the kernel log had last, since the driver gives none."""
    reset_required: bool | None = None
    scrub_on_free: bool | None = None
    """Driver posture: whether the driver zeroes memory when it is freed."""
    driver_version: str | None = None
    sram_threshold_exceeded: bool | None = None
    """The driver's own limit of uncorrected SRAM errors was passed."""
    repair_pending: bool | None = None
    """A repair of channels or cores waits for a reset."""
    inforom_valid: bool | None = None
    """Whether the checksum of the board's non-volatile memory is right: else history is lost."""
    fabric_state: str | None = None
    """``not-started``, ``in-progress``, ``completed`` or ``failed-<driver's code>``."""
    fabric_healthy: bool | None = None
    """What the fabric's health mask and summary say once it is completed."""
    fabric_waited_s: float | None = None
    """How long the fabric has been seen on its way, s; None: not known or not on its way."""
    pcie_gen_device_max: int | None = None
    """What the card alone can do; above `pcie_gen_max` where the slot is the slower one."""
    pstate: int | None = None
    """0: full speed. Link readings under load count only there."""
    power_brake: bool | None = None
    memory_temperature_c: int | None = None
    persistence: bool | None = None
    ecc_enabled: bool | None = None
    ecc_change_pending: bool | None = None
    mig_enabled: bool | None = None
    mig_change_pending: bool | None = None
    unpartitioned: bool | None = None
    """Partitioning is on and nothing can be used before an instance is made."""
    preserves_memory: bool | None = None
    """Driver posture: memory is written to a file at suspend."""
    accounting: bool | None = None
    """Driver posture: process accounting, which tells one tenant of another, is on."""
    reset_methods: tuple[str, ...] | None = None
    """What the kernel offers to reset the device by (PCI)."""
    obstacles: tuple[str, ...] | None = ()
    """What keeps the device from being wiped or handed out as it is, in words, with what to do."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Why a reading is unknown, where that is known, by its name."""
    not_applicable: frozenset[str] = frozenset()

    def counters(self) -> Mapping[str, int]:
        """The counters that were read."""
        return {name: value for name in COUNTERS if (value := getattr(self, name)) is not None}

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        found = asdict(self)
        found["xids"] = None if self.xids is None else list(self.xids)
        found["not_applicable"] = sorted(self.not_applicable)
        for name in (*XID_COLUMNS, *XID_PLACES):
            found[name] = list(getattr(self, name))
        found["logged"] = None if self.logged is None else list(found["logged"])
        found["obstacles"] = None if self.obstacles is None else list(self.obstacles)
        found["reset_methods"] = None if self.reset_methods is None else list(self.reset_methods)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Readings:
        """Rebuild from `as_json`. Unknown keys are ignored: a newer worker may read more."""
        known = {f.name for f in fields(cls)}
        kept = {name: value for name, value in found.items() if name in known}
        xids = kept.get("xids")
        kept["xids"] = None if xids is None else tuple(xids)
        for name in (*XID_COLUMNS, *XID_PLACES):
            kept[name] = tuple(kept.get(name, ()))
        logged, log = kept.get("logged"), kept.get("log")
        kept["logged"] = None if logged is None else tuple(_made(Logged, one) for one in logged)
        if log is not None:
            kept["log"] = log_state_from(log)
        obstacles = kept.get("obstacles", ())
        kept["obstacles"] = None if obstacles is None else tuple(obstacles)
        methods = kept.get("reset_methods")
        kept["reset_methods"] = None if methods is None else tuple(methods)
        kept["not_applicable"] = frozenset(kept.get("not_applicable", ()))
        return cls(**kept)


def log_state_from(found: Mapping[str, Any]) -> LogState:
    """Rebuild from `asdict` of it."""
    state: LogState = _made(LogState, found)
    return replace(state, place=_made(LogPlace, found["place"]))


def narrowed(readings: Readings, concerns: Callable[[int, float | None], bool]) -> Readings:
    """The readings without fault codes of instances that `concerns` denies.

    It is asked with the number of the instance a code names and when that was. Codes of the whole
    device stay, and all of them where it was not read which instance each one names.
    """
    codes = readings.xids or ()
    named = any(gi is not None for gi in readings.xid_instances)
    if not named or any(len(getattr(readings, name)) != len(codes) for name in XID_COLUMNS):
        return readings
    kept = [
        position
        for position, gi in enumerate(readings.xid_instances)
        if gi is None or concerns(gi, readings.xid_times[position])
    ]
    return with_codes(readings, kept)


def with_codes(readings: Readings, positions: Sequence[int]) -> Readings:
    """The readings with only the fault codes at these positions, and all that goes with them."""
    codes = readings.xids or ()
    columns: dict[str, Any] = {
        name: tuple(column[i] for i in positions)
        for name in (*XID_COLUMNS, *XID_PLACES)
        if len(column := getattr(readings, name)) == len(codes)
    }
    kept = replace(readings, xids=tuple(codes[i] for i in positions), **columns)
    if not readings.recovery_logged or len(readings.xid_actions) != len(codes):
        return kept
    asked = [word for word in kept.xid_actions if word]
    return replace(kept, recovery_action=asked[-1] if asked else None)


def _made(kind: type[Any], found: Mapping[str, Any]) -> Any:
    """An object of `kind`; what a newer writer says besides is left out."""
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in found.items() if name in known})


def risen(before: Readings, after: Readings) -> Mapping[str, tuple[int, int]]:
    """Counters that rose, as name: (before, after)."""
    old, new = before.counters(), after.counters()
    return {name: (old[name], new[name]) for name in old if name in new and new[name] > old[name]}
