"""What a wipe worker reports. Pure; crosses the process border as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleet.core.model import Process, ProcessKind, UnitId, Uuid
from fleet.devices.base import Coverage, Mismatch, ResetScrub
from fleet.devices.health.readings import Readings

PASSES = ("fill", "verify", "zero", "verify-zero")


class Failure(StrEnum):
    """Why a wipe did not end verified. Each is a reason code of `fleet.devices.health.reasons`."""

    COVERAGE = "coverage-below-floor"
    MISMATCH = "memory-mismatch"
    VERIFIER = "verifier-unsound"
    SLOW = "slow-memory"
    LOST = "device-lost"
    HOLDER = "foreign-holder"
    COUNTERS = "counters-rose"
    BACKEND = "backend-failed"


class Kind(StrEnum):
    """What a wipe is made of."""

    MEMORY = "memory"
    """All memory overwritten and read back."""
    RESET = "reset"
    """A reset with nobody on the device: its memory cannot be reached, and is not read back."""


NOTHING = Coverage(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over all memory covered."""

    name: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WipeResult:
    """The whole story of one run, told by its worker at its end. `failure` None: verified."""

    accelerator: Uuid
    units: tuple[UnitId, ...]
    started_at: float
    ended_at: float
    failure: Failure | None = None
    detail: str = ""
    coverage: Coverage = NOTHING
    passes: tuple[Pass, ...] = ()
    self_test_passed: bool = False
    """One seeded mismatch was found by the verifier and put back."""
    pattern: str = ""
    nonce_sha256: str = ""
    mismatches: tuple[Mismatch, ...] = ()
    """The first few; `mismatched_bytes` counts all."""
    mismatched_bytes: int = 0
    before: Readings | None = None
    under_load: Readings | None = None
    after: Readings | None = None
    holders: tuple[Process, ...] = ()
    """Every process seen on the device before, during or after, ours excluded."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = Kind.MEMORY
    scrub: ResetScrub | None = None
    """What was done in place of writing; only of kind `RESET`."""

    @property
    def verified(self) -> bool:
        """Whether every condition of a verified wipe holds, not merely the absence of a failure.

        Of kind `RESET` it means that all was done that can be: nothing was read back.
        """
        if self.kind is Kind.RESET:
            return self._reset_as_intended
        return (
            self.failure is None
            and self.self_test_passed
            and tuple(p.name for p in self.passes) == PASSES
            and all(p.bytes == self.coverage.covered for p in self.passes)
            and self.coverage.covered > 0
            and not self.mismatches
            and self.mismatched_bytes == 0
            and bool(self.nonce_sha256)
        )

    @property
    def _reset_as_intended(self) -> bool:
        scrub = self.scrub
        seen = (*self.holders, *(scrub.before if scrub else ()), *(scrub.after if scrub else ()))
        return (
            self.failure is None
            and scrub is not None
            and scrub.performed
            and bool(scrub.method)
            and not scrub.problem
            and self.coverage.covered == 0
            and not self.passes
            and not any(holder.kind is ProcessKind.FOREIGN for holder in seen)
        )

    @property
    def seconds(self) -> float:
        """Time of the four passes."""
        return sum(p.seconds for p in self.passes)

    @property
    def rate(self) -> float:
        """Bytes per second over all passes."""
        return sum(p.bytes for p in self.passes) / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form; `from_json` reads it back."""
        readings = {
            name: found.as_json() if (found := getattr(self, name)) else None
            for name in ("before", "under_load", "after")
        }
        return {
            "accelerator": self.accelerator,
            "units": list(self.units),
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "failure": self.failure,
            "detail": self.detail,
            "coverage": [self.coverage.total, self.coverage.reserved, self.coverage.covered],
            "passes": [[p.name, p.bytes, p.seconds] for p in self.passes],
            "self_test_passed": self.self_test_passed,
            "pattern": self.pattern,
            "nonce_sha256": self.nonce_sha256,
            "mismatches": [[m.unit, m.offset_bytes, m.length_bytes] for m in self.mismatches],
            "mismatched_bytes": self.mismatched_bytes,
            "holders": [[p.pid, p.name, p.kind] for p in self.holders],
            "extra": dict(self.extra),
            "kind": self.kind,
            "scrub": _scrub_as_json(self.scrub),
            **readings,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> WipeResult:
        """Rebuild from `as_json`. Raises KeyError, TypeError or ValueError if malformed."""
        readings = {
            name: Readings.from_json(found[name]) if found[name] else None
            for name in ("before", "under_load", "after")
        }
        return cls(
            accelerator=Uuid(found["accelerator"]),
            units=tuple(UnitId(unit) for unit in found["units"]),
            started_at=found["started_at"],
            ended_at=found["ended_at"],
            failure=Failure(found["failure"]) if found["failure"] else None,
            detail=found["detail"],
            coverage=Coverage(*found["coverage"]),
            passes=tuple(Pass(*p) for p in found["passes"]),
            self_test_passed=found["self_test_passed"],
            pattern=found["pattern"],
            nonce_sha256=found["nonce_sha256"],
            mismatches=tuple(Mismatch(UnitId(u), o, n) for u, o, n in found["mismatches"]),
            mismatched_bytes=found["mismatched_bytes"],
            holders=_processes(found["holders"]),
            extra=found["extra"],
            kind=Kind(found.get("kind", Kind.MEMORY)),
            scrub=_scrub_from_json(found.get("scrub")),
            **readings,
        )


def _processes(found: Iterable[Iterable[Any]]) -> tuple[Process, ...]:
    return tuple(Process(pid, name, ProcessKind(kind)) for pid, name, kind in found)


def _scrub_as_json(scrub: ResetScrub | None) -> dict[str, Any] | None:
    if scrub is None:
        return None
    holders = {
        name: [[p.pid, p.name, p.kind] for p in getattr(scrub, name)]
        for name in ("before", "after")
    }
    return {
        "performed": scrub.performed,
        "method": scrub.method,
        "vendor_scrub": scrub.vendor_scrub,
        "switch": scrub.switch,
        "problem": scrub.problem,
        **holders,
    }


def _scrub_from_json(found: Mapping[str, Any] | None) -> ResetScrub | None:
    if found is None:
        return None
    holders = {name: _processes(found[name]) for name in ("before", "after")}
    return ResetScrub(**{**found, **holders})
