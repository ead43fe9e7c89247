"""The coordinator: who may act on which unit, and which campaign runs exist.

Plain, synchronous and safe for several threads; an actor only forwards to it.

1. Every decision is one conditional write of the stores; nothing here decides from memory (case
   B08). What is remembered (floors of nodes) can only make an answer stricter, and is learnt again.
2. It starts from the stores alone, so a restarted one knows the open runs and every lease (case
   B42). A campaign's leases live only as long as its run is RUNNING: nobody prolongs those of a
   stopped or crashed run but the process that resumes it, under new tokens.
3. A repeated call is harmless (case B43): the same holder gets the same token, a result is kept
   once, a release of nothing changes nothing.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from fleet.control.campaign.report import ExitReason
from fleet.control.coordinator_api import CoordinatorApi, CoordinatorView
from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.leases import AcquireRequest, Closure
from fleet.core.messages import DeviceResult, Replication
from fleet.core.model import Holder, HolderKind, Lease, NodeName, RunId, Token, UnitId
from fleet.evidence.ledger import LedgerHead
from fleet.stores import decisions, lease_operations
from fleet.stores.base import (
    HistoryEntry,
    LeaseStore,
    Release,
    Renewal,
    RunRecord,
    RunState,
    RunStore,
)

Answered = TypeVar("Answered")

FINAL = frozenset({ExitReason.COMPLETE, ExitReason.NO_DEVICES})
"""Reasons after which a run cannot be resumed: there is nothing left to do."""


class HeadSigner(Protocol):
    """Countersigns the newest certificate of each unit, so that a cut-off ledger shows."""

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Store a signed statement of these heads. Raises `LedgerUnavailable` or `KeyUnusable`."""
        ...


class Copies(Protocol):
    """Copies what was signed and what ended to an archive."""

    def copy(self, ended: RunRecord | None = None, *, waits: bool = True) -> None:
        """Begin to, with a run that just ended; raises nothing, goes on in the background.

        `waits`: an archive that answers is waited for shortly.
        """
        ...

    def view(self) -> Replication:
        """How far it is."""
        ...


class Coordinator(CoordinatorApi):
    """Leases, runs and chain heads of one fleet.

    Every method raises `StoreUnavailable` when the store does not answer, and `SettingsInvalid`
    when it is not initialised or is another host's.
    """

    def __init__(
        self,
        leases: LeaseStore,
        runs: RunStore,
        *,
        clock: Clock,
        signer: HeadSigner,
        copies: Copies | None = None,
        incarnation: str = "",
    ) -> None:
        """Reads the stores before it answers anything; `incarnation` is new for every start."""
        self.incarnation = incarnation or secrets.token_hex(8)
        self._leases = leases
        self._runs = runs
        self._clock = clock
        self._signer = signer
        self._copies = copies
        self._lock = threading.Lock()
        self._floors: dict[UnitId, Token] = {}
        self._operations: Counter[str] = Counter()
        leases.newest()
        self.restored: tuple[RunId, ...] = tuple(runs.open_runs())
        """Runs that an earlier coordinator or job left unfinished."""

    # --- leases ------------------------------------------------------------------------------

    def newest(self) -> Token:
        """Epoch and last counter issued."""
        return self._leases.newest()

    def learn(self, floors: Mapping[UnitId, Token]) -> None:
        """Take in the floors a node reports; later grants on these units are never below them.

        Raises `StoreBehind`, after which the store grants nothing until it is adopted, or
        `EpochForeign` for a node that follows another store. With no floors the store is read.
        """
        if not floors:
            self._leases.newest()
            return
        with self._lock:
            for unit, floor in floors.items():
                self._floors[unit] = max(floor, self._floors.get(unit, floor))
        self._leases.learn(max(floors.values()))

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> list[Lease | errors.FleetError]:
        """One answer for each request, in order, all decided in one transaction.

        A campaign's request needs its run to be RUNNING (`RunUnknown`, `LeaseLost`), still so once
        it is granted: a run that ends meanwhile may have given its leases up before it had this
        one. For `out_of_service_max` and the other refusals see `LeaseStore.acquire`.
        """
        holders = {request.holder for request in requests}
        refused = self._refused_runs(holders)
        asked = [self._fenced(request) for request in requests if request.holder not in refused]

        def ask() -> list[Lease | errors.FleetError]:
            granted = iter(self._leases.acquire(asked, out_of_service_max=out_of_service_max))
            answers = [refused.get(request.holder) or next(granted) for request in requests]
            ended = self._refused_runs(holders - refused.keys())
            for holder in ended:
                self._give_up(RunId(holder.name))
            return [
                ended.get(request.holder) or answer
                for request, answer in zip(requests, answers, strict=True)
            ]

        return self._counted("acquire", len(requests), ask)

    def renew_all(self, renewals: Sequence[Renewal]) -> list[Lease | errors.FleetError]:
        """Prolong leases; a campaign's only while its run is RUNNING, else `LeaseLost`."""
        refused = self._refused_runs({renewal.holder for renewal in renewals})
        asked = [renewal for renewal in renewals if renewal.holder not in refused]

        def ask() -> list[Lease | errors.FleetError]:
            renewed = iter(self._leases.renew(asked))
            return [refused.get(renewal.holder) or next(renewed) for renewal in renewals]

        return self._counted("renew", len(renewals), ask)

    def renew(self, holder: Holder, token: Token, ttl_s: float) -> None:
        """Prolong one lease to `ttl_s` from now. Raises `LeaseLost`."""
        (answer,) = self.renew_all([Renewal(holder, token, ttl_s)])
        if isinstance(answer, errors.FleetError):
            raise answer

    def release_all(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        """Give leases back; whether anything was held. Works also while nothing is granted."""
        return self._counted("release", len(releases), lambda: self._leases.release(releases))

    def release(self, holder: Holder, token: Token, closure: Closure | None = None) -> None:
        """Give one lease back; repeating is harmless. Raises `InputInvalid` without a closure."""
        (answer,) = self.release_all([Release(holder, token, closure)])
        if isinstance(answer, errors.FleetError):
            raise answer

    def holder(self, unit: UnitId) -> Lease | None:
        """The lease in force on `unit`."""
        return self._leases.holder(unit)

    def held_by(self, holders: Collection[Holder]) -> list[Lease]:
        """The leases in force of these holders, by token."""
        return self._leases.held_by(holders)

    def leases(self, holder: Holder | None = None) -> list[Lease]:
        """The leases in force, by token."""
        return self._leases.leases(holder)

    def history(self, limit: int) -> list[HistoryEntry]:
        """What happened to leases and store, newest first."""
        return self._leases.history(limit)

    def out_of_service(self) -> int:
        """Devices kept from tenants because of us: campaign and quarantine leases (case B50)."""
        return len(decisions.out_of_service(self._leases.leases(), self._clock.now()))

    # --- runs --------------------------------------------------------------------------------

    def open(self, record: RunRecord) -> RunRecord:
        """Begin a run. Repeating it with the same content returns what is stored."""
        return self._runs.create(record)

    def resume(self, run: RunId) -> RunRecord:
        """Go on with a run that was stopped or whose job died.

        The leases of its earlier job are given up first: the new job acquires under new tokens, and
        an earlier job that still lives loses its leases at its next renewal. Raises `RunUnknown`,
        or `InputInvalid` for a finished run.
        """
        record = self._runs.resume(run)
        self._give_up(run)
        return record

    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        """Keep results with the run; a repeated one changes nothing."""
        self._runs.append(RunId(run), results)

    def close(self, run: str, exit_reason: str) -> None:
        """End a run and give its leases up. It can be resumed unless the reason is final.

        The end of a finished run stays as it is: a late stop comes to nothing.
        """
        state = RunState.FINISHED if exit_reason in FINAL else RunState.STOPPED
        if self._runs.state(RunId(run)) is not RunState.FINISHED:
            self._runs.finish(RunId(run), state, exit_reason)
        self._give_up(RunId(run))
        if self._copies is not None:
            with suppress(errors.FleetError):  # found again when the archive is opened anew
                self._copies.copy(self._runs.get(RunId(run)))

    def run(self, run: RunId) -> RunRecord:
        """One run with its results. Raises `RunUnknown`."""
        return self._runs.get(run)

    def runs(self, limit: int) -> list[RunRecord]:
        """The newest runs first."""
        return self._runs.runs(limit)

    def unfinished(self) -> list[RunRecord]:
        """Runs that are RUNNING or STOPPED, oldest first."""
        return self._runs.unfinished()

    # --- the rest ----------------------------------------------------------------------------

    def sign_heads(self, heads: Mapping[NodeName, LedgerHead], *, waits: bool = True) -> None:
        """Countersign the newest certificates the nodes report, and copy that to the archive.

        `waits`: as of `Copies.copy`. Raises `NotOwner` and `LedgerUnavailable`.
        """
        self._signer.sign(heads)
        if self._copies is not None:
            self._copies.copy(waits=waits)

    def view(self) -> CoordinatorView:
        """The coordinator now, for status and audit."""
        leases = self._leases.leases()
        now = self._clock.now()
        suspended = self._leases.suspended()
        kinds = [lease.holder.kind for lease in leases]
        return CoordinatorView(
            incarnation=self.incarnation,
            at=now,
            newest=str(self._leases.newest()),
            suspended=None if suspended is None else str(suspended),
            leases=len(leases),
            holders={kind: kinds.count(kind) for kind in HolderKind if kind in kinds},
            out_of_service=len(decisions.out_of_service(leases, now)),
            open_runs=tuple(self._runs.open_runs()),
            replication=None if self._copies is None else self._copies.view(),
            operations=self._counts(),
        )

    def _counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._operations)

    def _counted(
        self, operation: str, asked: int, ask: Callable[[], list[Answered]]
    ) -> list[Answered]:
        """What `ask` answers, counted; what the store does not answer counts for all `asked`."""
        try:
            answers = ask()
        except errors.FleetError as error:
            self._count(operation, {lease_operations.result_of(error): asked})
            raise
        self._count(operation, Counter(map(lease_operations.result_of, answers)))
        return answers

    def _count(self, operation: str, results: Mapping[str, int]) -> None:
        with self._lock:
            for result, count in results.items():
                self._operations[lease_operations.key(operation, result)] += count

    def _fenced(self, request: AcquireRequest) -> AcquireRequest:
        with self._lock:
            learnt = max(
                (self._floors[unit] for unit in request.units if unit in self._floors), default=None
            )
        if learnt is None or (request.min_token is not None and request.min_token >= learnt):
            return request
        return replace(request, min_token=learnt, closed=False)

    def _refused_runs(self, holders: set[Holder]) -> dict[Holder, errors.FleetError]:
        refused: dict[Holder, errors.FleetError] = {}
        for holder in holders:
            if holder.kind is not HolderKind.CAMPAIGN:
                continue
            try:
                state = self._runs.state(RunId(holder.name))
            except errors.RunUnknown as error:
                refused[holder] = error
                continue
            if state is not RunState.RUNNING:
                refused[holder] = errors.LeaseLost(
                    f"run {holder.name} is {state}: it has no leases",
                    remedy=f"resume it with `fleet scrub --resume {holder.name}`",
                    holder=holder,
                )
        return refused

    def _give_up(self, run: RunId) -> None:
        holder = Holder(HolderKind.CAMPAIGN, run)
        # Those too that we have seen run out: to whoever asks the store anew they look in force.
        leases = self._leases.held_by([holder], lapsed=True)
        held = [Release(holder, lease.token) for lease in leases]
        if held:
            self._leases.release(held)
