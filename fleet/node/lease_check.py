"""What a node asks the lease store before it acts for somebody: is this token real, is it theirs?

The node's journal is the holder of record; but a token that was never issued, or is somebody
else's, must not raise floors or expose devices. A store that is away answers nothing, and the
call is to be repeated.
"""

from __future__ import annotations

from collections.abc import Collection

from fleet.core import errors
from fleet.core.model import ClaimUid, Holder, HolderKind, Token, UnitId
from fleet.node.ports import Leases


def issued(store: Leases, token: Token) -> None:
    """Raises `TokenUnknown` for a token the store has not issued yet."""
    newest = store.newest()
    if token.epoch == newest.epoch and token > newest:
        raise errors.TokenUnknown(
            f"token {token} was never issued; the newest is {newest}", token=token, newest=newest
        )


def leased(store: Leases, uid: ClaimUid, token: Token, units: Collection[UnitId]) -> None:
    """Raises `LeaseLost` unless the claim holds all of `units` under exactly this token."""
    holder = Holder(HolderKind.CLAIM, uid)
    held: set[UnitId] = set()
    for lease in store.held_by([holder]):
        if lease.token == token:
            held |= lease.units
    missing = sorted(set(units) - held)
    if missing:
        raise errors.LeaseLost(
            f"claim {uid} has no lease of {', '.join(missing)} under {token}",
            remedy="acquire the devices for this claim, then prepare with that token",
        )
