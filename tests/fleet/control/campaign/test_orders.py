"""Leases and orders of a campaign, one answer at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fleet.control.campaign.orders import PATIENCE_TTLS, RETRY_S, Ordering
from fleet.control.campaign.report import Phase
from fleet.control.campaign.targets import target_of
from fleet.control.campaign.track import Track
from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Acceptance, DeviceResult, DeviceView, NodeView, Outcome, ScrubOrder
from fleet.core.model import Holder, HolderKind, Lease, Token, UnitId
from fleet.core.settings import CampaignPolicy, WipePolicy
from fleet.stores.base import Release, Renewal

POLICY = CampaignPolicy(lease_ttl_s=60)
HOLDER = Holder(HolderKind.CAMPAIGN, "r1")


class World:
    """Both ports with canned answers; keeps what was asked."""

    def __init__(self) -> None:
        self.lease: FleetError | None = None
        self.reply: dict[str, Any] | FleetError = {"accepted": True}
        self.renewal: FleetError | None = None
        self.release_error: FleetError | None = None
        self.asked: list[AcquireRequest] = []
        self.orders: list[ScrubOrder] = []
        self.renewed: list[Token] = []
        self.released: list[Token] = []
        self.cancelled: list[str] = []
        self.whole = False
        self.calls = 0

    def names(self) -> Sequence[str]:
        raise NotImplementedError

    def views(self, requests: Mapping[str, Sequence[str]]) -> Mapping[str, NodeView | FleetError]:
        raise NotImplementedError(requests)

    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        raise NotImplementedError(run, results)

    def close(self, run: str, exit_reason: str) -> None:
        raise NotImplementedError(run, exit_reason)

    def scrub_all(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | FleetError]:
        given = [order for found in orders.values() for order in found]
        self.orders += given
        if isinstance(self.reply, FleetError):
            raise self.reply
        reply = self.reply
        answers = [Acceptance(operation=o.operation, **reply) for o in given] if reply else []
        return dict.fromkeys(orders, answers)

    def cancel(self, requests: Mapping[str, Sequence[str]]) -> Mapping[str, FleetError | None]:
        self.cancelled += [op for found in requests.values() for op in found]
        raise errors.RayUnavailable("not heard")

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | FleetError]:
        self.asked += requests
        token = Token(1, len(self.asked))
        return [self.lease or Lease(r.units, r.holder, token, 60.0) for r in requests]

    def renew_all(self, renewals: Sequence[Renewal]) -> Sequence[Lease | FleetError]:
        assert {(one.holder, one.ttl_s) for one in renewals} == {(HOLDER, 60)}
        self.calls += 1
        self.renewed += [one.token for one in renewals]
        if self.renewal is not None and self.whole:
            raise self.renewal
        return [self.renewal or Lease(frozenset(), HOLDER, one.token, 60.0) for one in renewals]

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | FleetError]:
        assert {one.holder for one in releases} == {HOLDER}
        self.calls += 1
        self.released += [one.token for one in releases]
        if self.release_error is not None and self.whole:
            raise self.release_error
        return [self.release_error or True for _ in releases]


def view(state: str = "DIRTY") -> NodeView:
    device = DeviceView(
        uuid="g", name="gpu-0", accelerator="g", units=("g/0",), memory_bytes=10,
        state=state, floor="1.7",
    )  # fmt: skip
    return NodeView(
        node="n", incarnation="i1", boot_id="b", at=0, simulated=True, backend="scripted",
        devices=(device,),
    )  # fmt: skip


def track() -> Track:
    found = view()
    return Track(target_of(found, found.devices[0]), "r1")


def order(world: World, given: Track, now: float = 0.0, state: str = "DIRTY") -> Outcome | None:
    ordering = Ordering("r1", world, world, POLICY, WipePolicy(slow_factor=5.0))
    ended = ordering.order([given], [], {"n": view(state)}, now)
    ordering.flush()
    return ended[0][1].outcome if ended else None


def test_an_order_carries_lease_run_and_policy() -> None:
    """B4: lease first, above the node's floor; then the order under its token."""
    world, given = World(), track()
    assert order(world, given) is None
    (request,) = world.asked
    assert (request.units, request.min_token, request.ttl_s) == (
        frozenset({UnitId("g/0")}), Token(1, 7), 60
    )  # fmt: skip
    (sent,) = world.orders
    assert (sent.operation, sent.token, sent.run) == ("r1/g/1", "1.1", "r1")
    assert sent.wipe == WipePolicy(slow_factor=5.0)
    assert (given.phase, given.incarnation) == (Phase.RUNNING, "i1")


@pytest.mark.parametrize("reply", [errors.RayUnavailable("lost"), {}])
def test_an_answer_that_may_be_lost_decides_nothing(reply: dict[str, Any] | FleetError) -> None:
    """B60: the device stays STARTING with its lease until the node is read."""
    world, given = World(), track()
    world.reply = reply
    assert order(world, given) is None
    assert given.phase is Phase.STARTING
    assert given.lease is not None
    assert world.released == []


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("NotOwner", None),
        ("DeviceBusy", None),
        ("TokenStale", None),
        ("DeviceUnfit", Outcome.QUARANTINED),
        ("DeviceUnknown", Outcome.REFUSED),
        ("IllegalTransition", Outcome.REFUSED),
    ],
)
def test_a_refusal_gives_the_lease_back(kind: str, outcome: Outcome | None) -> None:
    """What may change is tried again later, what will not is the end; no lease is kept idle."""
    world, given = World(), track()
    world.reply = {"accepted": False, "kind": kind, "error": "no"}
    assert order(world, given, now=5.0) is outcome
    assert world.released == [Token(1, 1)]
    assert given.lease is None
    assert outcome or (given.phase, given.retry_at) == (Phase.WAITING, 5.0 + RETRY_S)


def test_patience_ends() -> None:
    """A retryable refusal is borne for two lease lifetimes, longer only while the node works."""
    world = World()
    world.reply = {"accepted": False, "kind": "DeviceBusy", "error": "no"}
    late = PATIENCE_TTLS * 60 + 1
    idle, working = track(), track()
    for given in (idle, working):
        assert order(world, given) is None
    assert order(world, idle, now=late) is Outcome.BUSY
    assert order(world, working, now=late, state="WIPING") is None
    assert order(world, working, now=3601, state="WIPING") is Outcome.BUSY


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.LeaseHeld("held", holder="claim:u"), Outcome.IN_USE),
        (errors.LeaseHeld("held", holder="operator:o"), None),
        (errors.StoreUnavailable("away"), None),
        (errors.StoreBehind("restored"), Outcome.REFUSED),
        (errors.EpochForeign("foreign"), Outcome.REFUSED),
        (errors.FleetRefused("budget"), Outcome.REFUSED),
    ],
)
def test_no_lease_no_order(error: FleetError, outcome: Outcome | None) -> None:
    """Promise 2: without a lease nothing is ordered, whatever the reason."""
    world, given = World(), track()
    world.lease = error
    assert order(world, given) is outcome
    assert world.orders == []
    assert given.lease is None


@pytest.mark.parametrize(
    ("error", "at", "kept"),
    [
        (None, 20.0, True),
        (errors.StoreUnavailable("away"), 20.0, True),
        (errors.StoreUnavailable("away"), 60.0, False),
        (errors.LeaseLost("gone"), 20.0, False),
        (errors.EpochForeign("foreign"), 20.0, False),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_renewal(error: FleetError | None, at: float, kept: bool, whole: bool) -> None:
    """A lease is renewed at a third of its life; lost only when it is known or surely run out.

    Whether one answer says so or the call as a whole fails.
    """
    world, given = World(), track()
    order(world, given)
    world.renewal, world.whole = error, whole
    ordering = Ordering("r1", world, world, POLICY, None)
    ordering.renew([given], 19.9)
    assert world.renewed == []
    ordering.renew([given], at)
    assert world.renewed == [Token(1, 1)]
    assert ((given.lease is not None), given.lease_lost) == (kept, not kept)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (None, False),
        (errors.LeaseLost("gone"), False),
        (errors.InputInvalid("odd"), False),
        (errors.StoreUnavailable("away"), True),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_release_is_repeated_only_where_it_may_not_have_been_heard(
    error: FleetError | None, again: bool, whole: bool
) -> None:
    """What the store did not hear is said again with the next flush."""
    world, given = World(), track()
    world.release_error, world.whole = error, whole
    ordering = Ordering("r1", world, world, POLICY, None)
    given.lease = Lease(frozenset({UnitId("g/0")}), HOLDER, Token(1, 1), 60.0)
    ordering.release(given)
    ordering.flush()
    ordering.flush()
    assert len(world.released) == (2 if again else 1)


def test_a_token_granted_again_is_not_released_behind_its_back() -> None:
    """An unheard release must not take the lease that the same holder got again."""
    world, given = World(), track()
    world.release_error = errors.StoreUnavailable("away")
    ordering = Ordering("r1", world, world, POLICY, None)
    given.lease = Lease(frozenset({UnitId("g/0")}), HOLDER, Token(1, 1), 60.0)
    ordering.release(given)
    ordering.flush()
    ordering.order([given], [], {"n": view()}, 0.0)
    world.released.clear()
    ordering.flush()
    assert world.released == []


def test_cancelling_is_never_an_error() -> None:
    """A node that does not hear the cancel finishes the wipe: that is hygiene, not harm."""
    world, given = World(), track()
    Ordering("r1", world, world, POLICY, None).cancel([given])
    assert world.cancelled == ["r1/g/1"]


def test_renewals_and_releases_of_a_step_are_one_call_each() -> None:
    """E5: however many leases are due, the store commits once for them."""
    world = World()
    tracks = [track() for _ in range(8)]
    for given in tracks:
        order(world, given)
    ordering = Ordering("r1", world, world, POLICY, None)
    world.calls = 0
    ordering.renew(tracks, 20.0)
    assert (world.calls, len(world.renewed)) == (1, 8)
    for given in tracks:
        ordering.release(given)
    ordering.flush()
    assert (world.calls, len(world.released)) == (2, 8)
