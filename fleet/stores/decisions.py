"""The decisions every store adapter shares, over what it has read inside its transaction. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.core import errors
from fleet.core.leases import (
    EPOCH_STEPS,
    EXPIRING,
    AcquireRequest,
    Refused,
    check_closure,
    check_floor,
    decide_acquire,
    is_expired,
)
from fleet.core.messages import DeviceResult
from fleet.core.model import NO_TOKEN, HolderKind, Lease, Token, UnitId
from fleet.stores.base import Event, HistoryEntry, Release, Renewal, RunRecord, RunState

BUDGETED = frozenset({HolderKind.CAMPAIGN, HolderKind.QUARANTINE})
"""Kinds of holders that keep a device from tenants because of us (case B50)."""


def mint_epoch(now: float, entropy: int, above: int) -> int:
    """An epoch from the wall clock (µs) and ten random bits: two stores differ, later is larger.

    Never at or below `above`, whatever the clock says. Fits in 63 bits for two more centuries.
    """
    return max(int(now * 1_000_000) * EPOCH_STEPS + entropy % EPOCH_STEPS, above + 1)


@dataclass(frozen=True, slots=True)
class Head:
    """What a store is as a whole."""

    newest: Token
    """Last token issued."""
    adopted: int = 0
    """Newest epoch that an `adopt` has put behind us, the one before its own; 0: never adopted."""
    suspended: Token | None = None
    """The floor by which the store was found behind."""

    def check(self, floor: Token | None) -> None:
        """Raises `EpochForeign` or `StoreBehind` when a node follows another store than this one.

        A unit's floor stays in an epoch put behind by `adopt` (all that are older than the one it
        minted) until the first act after it; the node itself refuses our tokens until it follows
        the new epoch.
        """
        if floor is None or floor.epoch > self.adopted:
            check_floor(self.newest, floor)


def find_behind(floors: Iterable[Token | None], newest: Token) -> Token | None:
    """The highest floor that shows this store to be behind, if any.

    A newer epoch counts as well: the store is then a copy from before an `adopt`.
    """
    seen = [floor for floor in floors if floor is not None and floor.counter > 0]
    worst = max(seen, default=None)
    return worst if worst is not None and worst > newest else None


def behind(newest: Token, floor: Token) -> errors.StoreBehind:
    """The answer of a suspended store."""
    return errors.StoreBehind(
        f"the store has issued only up to {newest}, a node has acted under {floor}:"
        " nothing is granted",
        newest=newest,
        floor=floor,
    )


def uninitialised() -> errors.SettingsInvalid:
    """The answer of a store without an epoch."""
    return errors.SettingsInvalid(
        "the lease store is not initialised: it was never made, or it is gone",
        remedy="restore it if there was one, then run `fleet store adopt`; else `fleet store init`"
        " makes it, and where nodes have certified already `fleet store adopt` has them follow",
        absent=True,
    )


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant: the lease, whether the holder had it, and the expired leases it replaces."""

    lease: Lease
    same: bool
    expired: tuple[Lease, ...]


def decide(
    request: AcquireRequest, current: Mapping[UnitId, Lease], head: Head, now: float
) -> Grant | errors.FleetError:
    """Decide one request over the leases on its units, live or expired (one entry per unit)."""
    try:
        request.validate()
        head.check(request.min_token)
    except errors.FleetError as error:
        return error
    # A lease of an earlier epoch is still that holder's, but nodes of this epoch refuse its token.
    floor = max(request.min_token or NO_TOKEN, Token(head.newest.epoch, 0))
    decision = decide_acquire(replace(request, min_token=floor), current, head.newest, now)
    if isinstance(decision, Refused):
        return errors.LeaseHeld(
            f"{decision.unit} is held by {decision.holder}; {request.holder} got nothing",
            unit=decision.unit,
            holder=decision.holder,
            told="a device of it is leased to somebody else",
        )
    held = [current[unit] for unit in sorted(request.units) if unit in current]
    expires_at = None if request.ttl_s is None else now + request.ttl_s
    if decision.same and expires_at is not None:
        expires_at = max([expires_at, *(lease.expires_at or 0.0 for lease in held)])
    expired = () if decision.same else tuple(row for row in held if is_expired(row, now))
    lease = Lease(request.units, request.holder, decision.token, expires_at)
    return Grant(lease, decision.same, expired)


def prolong(renewal: Renewal, held: Sequence[Lease], now: float) -> Lease | errors.FleetError:
    """Decide one renewal over what the holder has under the token (one entry per unit)."""
    if renewal.holder.kind not in EXPIRING or renewal.ttl_s <= 0:
        return errors.InputInvalid(
            f"a {renewal.holder.kind} lease cannot be renewed for {renewal.ttl_s} s",
            remedy="renew campaign and operator leases, by a ttl above zero",
        )
    ends = [lease.expires_at or 0.0 for lease in held]
    if not held or min(ends) <= now:
        return errors.LeaseLost(
            f"{renewal.holder} has no lease under {renewal.token} any more",
            holder=renewal.holder,
            token=renewal.token,
        )
    units = frozenset(unit for lease in held for unit in lease.units)
    return Lease(units, renewal.holder, renewal.token, max(now + renewal.ttl_s, *ends))


def check_release(release: Release, held: Sequence[Lease]) -> errors.FleetError | None:
    """Why what is held may not be given back, if so."""
    try:
        if held:
            check_closure(release.holder, release.closure, release.token)
    except errors.FleetError as error:
        return error
    return None


def suspension(floor: Token) -> str:
    """What the history keeps of a suspension."""
    return f"a node has acted under {floor}"


def adopt(head: Head, at_least: Token, now: float, entropy: int) -> tuple[Head, Token]:
    """The head after an `adopt`, and the highest token it puts behind."""
    before = max(head.newest, at_least, head.suspended or NO_TOKEN)
    epoch = mint_epoch(now, entropy, before.epoch)
    return Head(Token(epoch, before.counter), adopted=epoch - 1), before


def reinstate(
    lease: Lease, current: Mapping[UnitId, Lease], head: Head, now: float
) -> Lease | errors.FleetError | None:
    """What of a lease is to be put back over the leases on its units; None: it is all there.

    See `fleet.stores.base.LeaseStore.reinstate`.
    """
    missing = set(lease.units)
    for unit in sorted(lease.units):
        row = current.get(unit)
        if row is None or is_expired(row, now) or row.holder.kind is HolderKind.QUARANTINE:
            continue
        if row.holder == lease.holder and row.token >= lease.token:
            missing.discard(unit)
        elif row.token >= lease.token:
            return errors.LeaseHeld(
                f"{unit} is held by {row.holder} under {row.token}, and the node says by"
                f" {lease.holder} under {lease.token}",
                unit=unit,
                holder=row.holder,
            )
    if not missing:
        return None
    if lease.holder.kind is not HolderKind.CLAIM or not 0 < lease.token.epoch <= head.adopted:
        return errors.InputInvalid(
            f"{lease.holder} under {lease.token} cannot be put back: only leases of claims, of an"
            f" epoch up to {head.adopted}, can",
            remedy="run `fleet store adopt`, which puts the epochs so far behind",
        )
    return Lease(frozenset(missing), lease.holder, lease.token)


def reinstated(lease: Lease, now: float) -> HistoryEntry:
    """The history of a lease put back."""
    return entry(Event.REINSTATED, now, token=lease.token, lease=lease)


def adoption(operator: str, before: Token) -> str:
    """What the history keeps of an `adopt`."""
    return f"by {operator}, above {before}"


def entry(
    event: Event, at: float, *, token: Token, lease: Lease | None = None, detail: str = ""
) -> HistoryEntry:
    """A history entry about the store, or about `lease`."""
    holder = "" if lease is None else str(lease.holder)
    units = () if lease is None else tuple(sorted(lease.units))
    return HistoryEntry(at, event, holder, token, units, detail)


def gathered(rows: Iterable[Lease]) -> list[Lease]:
    """Leases of one unit each, joined by holder and token, ordered by token."""
    joined: dict[tuple[int, int, str, str], Lease] = {}
    for row in rows:
        # Plain values: this runs over all leases several times a second.
        token, holder = row.token, row.holder
        key = (token.epoch, token.counter, str(holder.kind), holder.name)
        earlier = joined.get(key)
        joined[key] = row if earlier is None else _joined(earlier, row)
    return [joined[key] for key in sorted(joined)]


def granted(grant: Grant, now: float) -> list[HistoryEntry]:
    """The history of a grant: what expired, then what was granted."""
    old = [
        entry(Event.EXPIRED, now, token=lease.token, lease=lease)
        for lease in gathered(grant.expired)
    ]
    return [*old, entry(Event.GRANTED, now, token=grant.lease.token, lease=grant.lease)]


def released(release: Release, held: Sequence[Lease], now: float) -> list[HistoryEntry]:
    """The history of a release; nothing when nothing was held."""
    closure = release.closure
    detail = "" if closure is None else f"closed by {closure.by} on {closure.node}"
    return [
        entry(Event.RELEASED, now, token=lease.token, lease=lease, detail=detail)
        for lease in gathered(held)
    ]


def _joined(one: Lease, other: Lease) -> Lease:
    ends = [end for end in (one.expires_at, other.expires_at) if end is not None]
    return replace(one, units=one.units | other.units, expires_at=min(ends, default=None))


def out_of_service(leases: Iterable[Lease], now: float) -> frozenset[tuple[Token, str]]:
    """The devices that campaign and quarantine leases keep from tenants: (token, accelerator).

    Two partitions of one accelerator have two leases and count twice; one lease over the slices of
    one accelerator counts once.
    """
    return frozenset(
        (lease.token, unit.partition("/")[0])
        for lease in leases
        if lease.holder.kind in BUDGETED and not is_expired(lease, now)
        for unit in lease.units
    )


class Budget:
    """Counts devices out of service while one batch is decided, inside its transaction."""

    def __init__(self, rows: Iterable[Lease], limit: int, now: float) -> None:
        """`rows` are the leases in the store, one entry per unit; `limit` counts devices."""
        self._units = {
            unit: key for row in rows for key in out_of_service([row], now) for unit in row.units
        }
        self._limit = limit
        self._now = now

    def admit(self, lease: Lease) -> errors.FleetRefused | None:
        """Count `lease` in, or say that a campaign's lease would go over the limit."""
        after = dict(self._units)
        for unit in lease.units:
            for key in out_of_service([replace(lease, units=frozenset({unit}))], self._now):
                after[unit] = key
        before, count = len(set(self._units.values())), len(set(after.values()))
        if lease.holder.kind is HolderKind.CAMPAIGN and count > max(before, self._limit):
            return errors.FleetRefused(
                f"{before} devices are out of service because of us, at most {self._limit} may be",
                remedy="wait until devices are back in service, or raise the limit in the policy",
                out_of_service=before,
                limit=self._limit,
            )
        self._units = after
        return None


def check_fresh(record: RunRecord) -> None:
    """Raises `InputInvalid` unless `record` is a run that has not begun to report."""
    if record.results or record.state is not RunState.RUNNING or record.finished_at is not None:
        raise errors.InputInvalid(
            f"run {record.id} cannot be created with results or an end",
            remedy="create the run first, then append results and finish it",
        )


def is_same_run(stored: RunRecord, record: RunRecord) -> bool:
    """Whether `record` is what `stored` was created from."""
    same = ("id", "started_at", "policy", "plan", "targets", "simulated")
    return all(getattr(stored, name) == getattr(record, name) for name in same)


def taken(run: str) -> errors.InputInvalid:
    """The answer to creating a run under an id in use."""
    return errors.InputInvalid(f"run id {run} is taken", remedy="choose a new run id")


def unknown(run: str) -> errors.RunUnknown:
    """The answer to an id nobody created."""
    return errors.RunUnknown(f"there is no run {run!r}")


def check_finish(run: str, state: RunState, to: RunState) -> None:
    """Raises `InputInvalid` unless a run in `state` may end as `to`."""
    if to is RunState.RUNNING or (state is RunState.FINISHED and to is not RunState.FINISHED):
        raise errors.InputInvalid(
            f"run {run} is {state} and cannot become {to} by finishing",
            remedy="finish a run as stopped or finished; a finished one stays so",
        )


def check_open(run: str, state: RunState) -> None:
    """Raises `InputInvalid` for a finished run, which takes no more."""
    if state is RunState.FINISHED:
        raise errors.InputInvalid(
            f"run {run} is finished and takes no more results",
            remedy="start a new run; only runs that are running or stopped go on",
        )


def result_key(result: DeviceResult) -> str:
    """What makes a result the same one when it is sent again: its content, operation included.

    The operation alone is not enough: a campaign that gave a node up as unreachable and is resumed
    gets the true result under the same operation.
    """
    return "sha256:" + hashlib.sha256(result.model_dump_json().encode()).hexdigest()
