"""The order a wipe worker receives, and the arithmetic that judges a wipe. Pure.

Kept free of the settings module: a worker starts once per device, and validating models again in
every worker would cost more than a small wipe. The node validates, the order carries the figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from fleet.core.errors import InputInvalid
from fleet.core.model import UnitId, Uuid
from fleet.devices.base import Coverage
from fleet.devices.health.readings import COUNTERS, Readings

GIB = 1 << 30
WORD_BYTES = 8
"""The piece of memory the self-test disturbs and mismatches are located by."""
PASSES_OVER_MEMORY = 4
SLOW_ALLOWANCE_S = 5.0
"""Time, s, a pass may lose to a busy host before slowness is the memory's fault."""
LEFT_BYTES_MAX = 64 << 20
"""What may stay free after all was taken: pieces too small, and what the kernels needed."""
CONTEXT_BYTES_MAX = 1 << 30
"""What the worker's own context may have of a device, all that its driver sets up included."""
HEALTHY_FRACTION = 0.5
"""Of its memory's peak rate, what a healthy device reaches at least in a pass."""
DEVICE_ALLOWANCE_S = 0.05
"""Time, s, by the device's own clock, that launches may cost a pass of any size."""
UNREAD = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""What a register that cannot be read returns: never a count (case B06)."""
JUDGED_BY_POLICY = frozenset({"ecc_corrected_volatile", "aer_corrected", "pcie_replays"})
"""Corrected errors: the health checks allow some, so a rise alone does not fail the wipe."""
_UUID = re.compile(r"[A-Za-z]{2,}-[0-9A-Za-z]{8}(-[0-9A-Za-z]{4}){3}-[0-9A-Za-z]{12}")
_HEX = re.compile(r"[0-9a-f]+")
_NONCE_HEX = (32, 64)


class Figures(Protocol):
    """The figures of `fleet.core.settings.WipePolicy` that a wipe needs, without importing it."""

    @property
    def coverage_floor(self) -> float: ...
    @property
    def chunk_largest_bytes(self) -> int: ...
    @property
    def chunk_smallest_bytes(self) -> int: ...
    @property
    def expected_bytes_per_s(self) -> float: ...
    @property
    def slow_factor(self) -> float: ...
    @property
    def deadline_base_s(self) -> float: ...
    @property
    def deadline_s_per_gib(self) -> float: ...


@dataclass(frozen=True, slots=True)
class WipeOrder:
    """One wipe by one worker. Sizes are bytes; `deadline_s` counts from the worker's go.

    `worker_id` is 32 hex digits (a uuid), `nonce` 32 to 64 hex digits from a cryptographic source.
    Raises InputInvalid when a field cannot be what it should be: a device is named by its whole
    UUID, never by an index or a part of it (case B13).
    """

    worker_id: str
    backend: str
    settings: Mapping[str, Any]
    accelerator: Uuid
    device: Uuid
    """What is wiped: the accelerator itself or one of its partitions."""
    units: tuple[UnitId, ...]
    nonce: str
    deadline_s: float
    coverage_floor: float = 0.98
    chunk_largest_bytes: int = 8 * GIB
    chunk_smallest_bytes: int = 64 * 1024
    expected_bytes_per_s: float = 200e6
    slow_factor: float = 10.0
    slow_allowance_s: float = SLOW_ALLOWANCE_S
    visible: str = ""
    """What the driver shows the worker, as it names it; "": the device under its own UUID."""
    device_bytes_per_s: float = 0.0
    """Slowest rate expected of a pass by the device's own clock; 0: not judged by it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Passed through to the result's `extra`: what the node wants to find there again."""

    def __post_init__(self) -> None:
        for name in ("accelerator", "device"):
            if not _UUID.fullmatch(getattr(self, name)):
                raise InputInvalid(
                    f"{name} {getattr(self, name)!r} is not a device UUID",
                    remedy="name the device by its full UUID; indexes and prefixes name others too",
                )
        if not (_HEX.fullmatch(self.worker_id) and len(self.worker_id) == 32):
            raise InputInvalid(f"worker_id {self.worker_id!r} is not 32 hex digits")
        low, high = _NONCE_HEX
        even = len(self.nonce) % 2 == 0
        if not (_HEX.fullmatch(self.nonce) and even and low <= len(self.nonce) <= high):
            raise InputInvalid(f"the nonce is not {low} to {high} hex digits")
        if not self.units:
            raise InputInvalid(f"no units to wipe on {self.device}")
        if not 0 < self.chunk_smallest_bytes <= self.chunk_largest_bytes:
            raise InputInvalid(
                f"chunk sizes {self.chunk_smallest_bytes} and {self.chunk_largest_bytes} B"
                " are not smallest and largest"
            )

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        found = asdict(self)
        found["units"] = list(self.units)
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> WipeOrder:
        """Rebuild from `as_json`. Raises InputInvalid, TypeError on missing or unknown fields."""
        return cls(**{**found, "units": tuple(UnitId(unit) for unit in found.get("units", ()))})


@dataclass(frozen=True, slots=True)
class Target:
    """What to wipe: the back end that reaches it, the accelerator, the device and its units."""

    backend: str
    settings: Mapping[str, Any]
    accelerator: Uuid
    device: Uuid
    units: tuple[UnitId, ...]
    size_bytes: int
    visible: str = ""
    peak_bytes_per_s: float = 0.0
    """What its memory can do by its data sheet; 0: unknown."""


def order(target: Target, policy: Figures, *, worker_id: str, nonce: str) -> WipeOrder:
    """The order to wipe `target` under `policy`. Raises InputInvalid as `WipeOrder` does."""
    return WipeOrder(
        worker_id=worker_id,
        backend=target.backend,
        settings=target.settings,
        accelerator=target.accelerator,
        device=target.device,
        units=target.units,
        nonce=nonce,
        deadline_s=deadline_s(target.size_bytes, policy),
        coverage_floor=policy.coverage_floor,
        chunk_largest_bytes=policy.chunk_largest_bytes,
        chunk_smallest_bytes=policy.chunk_smallest_bytes,
        expected_bytes_per_s=policy.expected_bytes_per_s,
        slow_factor=policy.slow_factor,
        visible=target.visible,
        device_bytes_per_s=target.peak_bytes_per_s * HEALTHY_FRACTION,
    )


def deadline_s(size_bytes: int, policy: Figures) -> float:
    """Seconds a wipe of `size_bytes` may take from go to report."""
    return policy.deadline_base_s + policy.deadline_s_per_gib * size_bytes / GIB


def coverage_problem(coverage: Coverage, floor: float) -> str:
    """Why the coverage is not enough, or "" when it is.

    Residual is judged against what could be reached (total - reserved). Figures that do not add up
    (more covered than there is) are a failure too: they mean that somebody miscounted.
    """
    reachable = coverage.total - coverage.reserved
    figures = (
        f"{coverage.covered} of {reachable} B covered ({coverage.residual} B not reached,"
        f" {coverage.reserved} B reserved of {coverage.total} B)"
    )
    if min(coverage.total, coverage.reserved, coverage.covered, coverage.residual) < 0:
        return f"the byte figures do not add up: {figures}"
    if reachable <= 0 or coverage.covered == 0:
        return f"nothing could be reached: {figures}"
    if coverage.covered < floor * reachable:
        return f"{figures}; the floor is {floor:.2%}"
    return _taken_by_others(coverage, figures)


def _taken_by_others(coverage: Coverage, figures: str) -> str:
    """Why memory that a share of the whole may hide is too much, or "" (F86): of large memory the
    floor leaves gigabytes."""
    if coverage.free is None:
        return ""
    left = coverage.free - coverage.covered
    if left > LEFT_BYTES_MAX:
        return f"{figures}; {left} B of it were free at the start and could not be taken"
    before = coverage.total - coverage.reserved - coverage.free
    if before > CONTEXT_BYTES_MAX:
        return (
            f"{figures}; {before} B were in use before anything was taken, more than the worker's"
            f" own context has ({CONTEXT_BYTES_MAX} B)"
        )
    return ""


def slow_problem(order: WipeOrder, done_bytes: int, seconds: float) -> str:
    """Why a pass that did `done_bytes` in `seconds` is too slow, or "" when it is not."""
    limit = order.expected_bytes_per_s / order.slow_factor
    if seconds <= order.slow_allowance_s + done_bytes / limit:
        return ""
    rate = done_bytes / seconds
    return (
        f"{done_bytes} B in {seconds:.1f} s is {rate / 1e6:.1f} MB/s; healthy memory does"
        f" {order.expected_bytes_per_s / 1e6:.0f} MB/s, the limit is {limit / 1e6:.0f} MB/s"
    )


def slow_on_device(order: WipeOrder, done_bytes: int, seconds: float) -> str:
    """Why a pass is too slow by the device's own clock, or "" when it is not, or not judged.

    That clock knows nothing of a busy host: what it shows is the memory's own.
    """
    limit = order.device_bytes_per_s / order.slow_factor
    if not limit or seconds <= DEVICE_ALLOWANCE_S + done_bytes / limit:
        return ""
    return (
        f"{done_bytes} B in {seconds:.3f} s on the device is {done_bytes / seconds / 1e9:.1f} GB/s;"
        f" such memory does {order.device_bytes_per_s / 1e9:.0f} GB/s, the limit is"
        f" {limit / 1e9:.1f} GB/s"
    )


def unread(readings: Readings) -> str:
    """Counters that came back as all ones, as text; "" when there is none."""
    return ", ".join(
        f"{name} reads {value:#x}" for name, value in readings.counters().items() if value in UNREAD
    )


def shrunk(before: Readings, after: Readings) -> str:
    """Counters that got smaller, as text; "" when there is none. Counters only ever rise."""
    old, new = before.counters(), after.counters()
    return ", ".join(
        f"{name} fell from {old[name]} to {new[name]}"
        for name in COUNTERS
        if name in old and name in new and new[name] < old[name]
    )
