"""Lease and token rules. Pure.

1. Tokens are (epoch, counter), one counter per store, so strictly increasing for every unit.
2. Acquire is all or nothing. The same holder asking again for the same units gets the same token,
   unless the node has closed it (`min_token` is above it).
3. A node accepts an act only under a token of its epoch that is not below the unit's floor; the
   floor rises with the act accepted, never with one refused.
4. A quarantine's lease gives way to whoever tests the device anew: a campaign, an operator.
5. A claim's lease is released in two steps: the node closes the token (teardown, or `abandon`),
   then the store releases by token. A coordinator that releases directly opens a hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.core import errors
from fleet.core.model import Holder, HolderKind, Lease, NodeName, Token, Unit, UnitId

EXPIRING = frozenset({HolderKind.CAMPAIGN, HolderKind.OPERATOR, HolderKind.PUBLISHER})
"""Kinds whose lease needs a ttl; the others end by release only."""
RETESTING = frozenset({HolderKind.CAMPAIGN, HolderKind.OPERATOR})
"""Kinds that may take a quarantined unit, to prove it or to judge it. Its node decides whether."""

EPOCH_STEPS = 1024
"""Epochs that can be minted in one microsecond: an epoch divided by it is when it was minted."""


class ClosedBy(StrEnum):
    """Who closed the token of a claim before its lease may go."""

    TEARDOWN = "teardown"
    ABANDON = "abandon"
    NODE_LOST = "node-lost"


@dataclass(frozen=True, slots=True)
class Closure:
    """A node's word that `token` was closed for `holder`: the first of the two steps of release."""

    holder: Holder
    token: Token
    node: NodeName
    by: ClosedBy


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """Ask for `units` as a whole. `ttl_s`: required for kinds in `EXPIRING`, else refused."""

    units: frozenset[UnitId]
    holder: Holder
    ttl_s: float | None = None
    min_token: Token | None = None
    """The newest floor among the nodes' units; the token granted is not below it."""
    closed: bool = False
    """Whether the node has closed `min_token` itself: then the token granted is above it."""

    def validate(self) -> None:
        """Raises `InputInvalid` on an empty request or a ttl that does not fit the holder."""
        if not self.units:
            raise errors.InputInvalid(
                f"acquire for {self.holder} names no unit", remedy="name at least one unit"
            )
        if (self.holder.kind in EXPIRING) != (self.ttl_s is not None):
            raise errors.InputInvalid(
                f"ttl {self.ttl_s} does not fit a {self.holder.kind} lease",
                remedy="claim and quarantine leases carry no ttl, all others do",
            )
        if self.ttl_s is not None and self.ttl_s <= 0:
            raise errors.InputInvalid(
                f"ttl {self.ttl_s} s is not positive", remedy="give a ttl above zero"
            )


@dataclass(frozen=True, slots=True)
class Granted:
    """The whole request is granted under `token`; `same` when the holder had it already."""

    token: Token
    same: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is granted; `unit` is held by `holder`."""

    unit: UnitId
    holder: Holder


def decide_acquire(
    request: AcquireRequest, current: Mapping[UnitId, Lease], newest: Token, now: float
) -> Granted | Refused:
    """Decide one acquire over the leases in force. `newest` is the store's last token issued."""
    live = {
        unit: lease
        for unit in sorted(request.units)
        if (lease := current.get(unit)) is not None and not is_expired(lease, now)
    }
    for unit, lease in list(live.items()):
        if lease.holder == request.holder:
            continue
        if not (lease.holder.kind is HolderKind.QUARANTINE and request.holder.kind in RETESTING):
            return Refused(unit, lease.holder)
        del live[unit]
    floor = request.min_token
    tokens = {lease.token for lease in live.values()}
    whole = set(live) == set(request.units)
    if whole and len(tokens) == 1 and _fits(min(tokens), floor, closed=request.closed):
        return Granted(tokens.pop(), same=True)
    return Granted(next_token(newest, now), same=False)


def next_token(newest: Token, now: float) -> Token:
    """The token to issue after `newest`, at `now` by the store's clock.

    Its counter is never below the microseconds since the epoch was minted. So a store that was put
    back from a copy does not issue a token again that its nodes have acted under, also where the
    node that would have told it so has lost its journal.
    """
    since_us = int(now * 1_000_000) - newest.epoch // EPOCH_STEPS
    return Token(newest.epoch, max(newest.counter + 1, since_us))


def _fits(token: Token, floor: Token | None, *, closed: bool) -> bool:
    return floor is None or token > floor or (token == floor and not closed)


def is_expired(lease: Lease, now: float) -> bool:
    """Whether a lease with a ttl has run out at `now`."""
    return lease.expires_at is not None and lease.expires_at <= now


def check_floor(newest: Token, min_token: Token | None) -> None:
    """Raises `StoreBehind` or `EpochForeign` when a node has seen tokens never issued here."""
    if min_token is None or min_token.counter == 0:
        return
    if min_token.epoch != newest.epoch:
        raise errors.EpochForeign(
            f"the node follows epoch {min_token.epoch}, the store issues epoch {newest.epoch}",
            ours=newest.epoch,
            theirs=min_token.epoch,
        )
    if min_token > newest:
        raise errors.StoreBehind(
            f"a node has acted under token {min_token}, the store has issued only up to {newest}",
            newest=newest,
            floor=min_token,
        )


def check_token(units: Iterable[Unit], token: Token, epoch: int) -> None:
    """The node's gate for an act under `token`. Raises `EpochForeign` or `TokenStale`."""
    if token.epoch != epoch:
        raise errors.EpochForeign(
            f"token {token} is of epoch {token.epoch}; this node follows {epoch}",
            ours=epoch,
            theirs=token.epoch,
        )
    for unit in units:
        if token < unit.floor or (token == unit.floor and unit.closed):
            raise errors.TokenStale(
                f"token {token} for {unit.id} is older than {unit.floor}, already acted on",
                floor=unit.floor,
                token=token,
            )


def is_behind(token: Token, epoch: int) -> bool:
    """Whether `token` is of an epoch that `epoch`, which the node follows, has put behind.

    Such a token is closed by definition: `check_token` refuses every act under it, for good. Raises
    `EpochForeign` for one of a newer epoch, which the node may follow one day.
    """
    if token.epoch > epoch:
        raise errors.EpochForeign(
            f"token {token} is of epoch {token.epoch}; this node follows {epoch}",
            ours=epoch,
            theirs=token.epoch,
        )
    return token.epoch < epoch


def check_closure(holder: Holder, closure: Closure | None, token: Token) -> None:
    """The second step of release: a claim's lease goes only with its node's closure."""
    if holder.kind is not HolderKind.CLAIM:
        return
    if closure is None or closure.holder != holder or closure.token < token:
        raise errors.InputInvalid(
            f"the lease of {holder} under {token} cannot be released: its node has not closed it",
            remedy="let the node tear the claim down, or ask it to abandon the token first",
        )
