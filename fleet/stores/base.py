"""What the fleet asks of a store of leases and campaign runs, and the rules every adapter shares.

1. A batch is one transaction (group commit); each of its requests is all or nothing and stands
   alone: one refused never harms its neighbours. Only what concerns the store as a whole (behind,
   suspended) refuses a whole batch.
2. Decisions are made inside the transaction that writes them, never on something read before it
   (cases B08, B22).
3. A store that a node has outrun (restored backup) suspends itself durably and grants nothing until
   `adopt`. Renewals and releases go on: they hand out no token.
4. A lease with a ttl is over once this process has seen it unchanged for its whole length, on the
   monotonic clock of the `Clock` given to the adapter (`fleet.stores.observation`). The end that is
   answered is reckoned on the adapter's wall clock, for people and for renewing in time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pydantic import Field, JsonValue

from fleet.core import errors
from fleet.core.leases import AcquireRequest, Closure
from fleet.core.messages import DeviceResult, Message, Moment, MomentOrNone
from fleet.core.model import Holder, Lease, RunId, Token, UnitId

HISTORY_KEPT = 10_000
"""Entries of the history kept: weeks of a busy fleet at about 100 bytes each."""
RUNS_KEPT = 200
"""Finished runs kept: half a year of daily campaigns; the certificates outlive them."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Ask for `ttl_s` more seconds, counted from now, for what `holder` has under `token`."""

    holder: Holder
    token: Token
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """Give back what `holder` has under `token`; a claim's only with its node's closure."""

    holder: Holder
    token: Token
    closure: Closure | None = None


class Event(StrEnum):
    """What the history of a lease store records."""

    INITIALISED = "initialised"
    GRANTED = "granted"
    EXPIRED = "expired"
    RELEASED = "released"
    SUSPENDED = "suspended"
    ADOPTED = "adopted"
    REINSTATED = "reinstated"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One thing that happened; `detail` names who closed, who adopted, what was seen."""

    at: float
    event: Event
    holder: str
    token: Token
    units: tuple[UnitId, ...] = ()
    detail: str = ""


class LeaseStore(Protocol):
    """Exclusive rights to units under tokens that never repeat; safe for threads and processes.

    All methods raise `StoreUnavailable` when the store does not answer in time, and
    `SettingsInvalid` when it is not initialised or belongs to another host.
    """

    def init(self) -> Token:
        """Mint the epoch of a new store; an initialised one stays. Returns `newest`."""
        ...

    def adopt(self, at_least: Token, operator: str) -> Token:
        """Mint an epoch above `at_least` and all own ones, lift a suspension, claim this host.

        Leases and history stay; the act is recorded with `operator`. Returns the new `newest`.
        """
        ...

    def reinstate(self, leases: Sequence[Lease]) -> list[bool | errors.FleetError]:
        """After `adopt`: take in leases of claims that nodes have in their records.

        Whether anything was missing, for each. A unit that another has under an older token is
        taken from it: its node accepted a newer one, so that one had ended when this copy of the
        store was made. A quarantine gives way too, and follows again once the claim has left.
        `LeaseHeld` for a unit that another has under a newer token, `InputInvalid` for what is no
        claim's or of an epoch that `adopt` has not put behind.
        """
        ...

    def newest(self) -> Token:
        """The epoch and the last counter issued."""
        ...

    def suspended(self) -> Token | None:
        """The floor by which the store was found behind, or None while it grants."""
        ...

    def learn(self, floor: Token) -> None:
        """Compare with a node's floor. `StoreBehind` after suspending, or `EpochForeign`."""
        ...

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """Grant each request, or say why not.

        `LeaseHeld`, `InputInvalid`, `EpochForeign` or `StoreBehind`. With `out_of_service_max`,
        campaign requests that would put more devices than that out of service (campaign and
        quarantine leases together, case B50) get `FleetRefused`; quarantine requests never do.
        """
        ...

    def renew(self, renewals: Sequence[Renewal]) -> list[Lease | errors.FleetError]:
        """Prolong leases. `LeaseLost` for one that expired, was released or superseded."""
        ...

    def release(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        """Give leases back; whether anything was held. Repeating is harmless.

        `InputInvalid` for a claim's lease whose node has not closed its token.
        """
        ...

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`."""
        ...

    def held_by(self, holders: Collection[Holder], *, lapsed: bool = False) -> list[Lease]:
        """The leases in force of these holders, ordered by token: cheap among many others.

        `lapsed`: also those that are over and were never given back. One who has not watched them
        run out takes them for leases in force.
        """
        ...

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """All leases in force, or those of one holder, ordered by token."""
        ...

    def history(self, limit: int) -> list[HistoryEntry]:
        """The newest entries first; bounded by `HISTORY_KEPT`."""
        ...


class RunState(StrEnum):
    """Where a campaign run stands. STOPPED may be resumed, FINISHED is final."""

    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"


class Target(Message):
    """One device a run is about."""

    node: str
    uuid: str
    name: str


class RunRecord(Message):
    """A campaign run with its results so far. Times are seconds since the epoch."""

    id: str
    state: RunState = RunState.RUNNING
    started_at: Moment
    finished_at: MomentOrNone = None
    policy: dict[str, JsonValue] = Field(default_factory=dict)
    plan: dict[str, JsonValue] = Field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    results: dict[str, DeviceResult] = Field(default_factory=dict)
    """Newest result by device UUID."""
    exit_reason: str = ""
    simulated: bool = False


class RunStore(Protocol):
    """Campaign runs that survive the process that drives them. Unknown ids raise `RunUnknown`."""

    def create(self, record: RunRecord) -> RunRecord:
        """Store a new run. Repeating it with the same content returns what is stored.

        Raises `InputInvalid` when the id is taken by another run or the record is not a fresh one.
        """
        ...

    def append(self, run: RunId, results: Sequence[DeviceResult]) -> int:
        """Store results; returns how many were new. A repeated one changes nothing.

        The newest result of a device counts, and an old one sent again never displaces it. Raises
        `InputInvalid` for a new result of a finished run.
        """
        ...

    def finish(self, run: RunId, state: RunState, exit_reason: str) -> RunRecord:
        """End a run as STOPPED (resumable) or FINISHED. Repeating is harmless.

        Raises `InputInvalid` for RUNNING, and for stopping a finished run.
        """
        ...

    def resume(self, run: RunId) -> RunRecord:
        """Set a stopped or crashed run RUNNING again. Raises `InputInvalid` for a finished one."""
        ...

    def state(self, run: RunId) -> RunState:
        """The state alone, cheaply."""
        ...

    def get(self, run: RunId) -> RunRecord:
        """The run with all its results."""
        ...

    def runs(self, limit: int) -> list[RunRecord]:
        """The newest runs first, with their results."""
        ...

    def open_runs(self) -> list[RunId]:
        """Ids of all runs that are RUNNING or STOPPED, oldest first; reads no result."""
        ...

    def unfinished(self) -> list[RunRecord]:
        """All runs that are RUNNING or STOPPED, oldest first."""
        ...
