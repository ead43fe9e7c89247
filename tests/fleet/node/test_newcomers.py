"""Memory that came since a journal began: the store is asked, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, State, Token
from fleet.node.newcomers import AGAIN_S, SHARE, Newcomers
from fleet.node.ports import Leases
from tests.fleet.node.conftest import Lab, wait_for
from tests.fleet.node.test_recovery import lose_journal


def asked(lab: Lab, now: float) -> bool:
    """Whether the store has been asked about gpu-0, after a step at `now`."""
    lab.node.tick(now)
    return lab.units()[0].floor != NO_TOKEN


@pytest.mark.parametrize("away", [False, True])
def test_a_card_from_another_node_keeps_its_quarantine(lab: Lab, away: bool) -> None:
    """Promise 6: what another node had out of service is so here, by the store's word; while that
    is away the card is not wiped, nothing else is held up, and a boot changes nothing.
    """
    lab.free()
    unit = lab.units()[0].id
    lose_journal(lab)
    lab.node._registry.place.mirror.unlink(missing_ok=True)
    put_back = lab.take_out()
    lab.open()
    holder = Holder(HolderKind.QUARANTINE, str(unit))
    (lease,) = lab.coordinator.acquire([AcquireRequest(frozenset({unit}), holder)])
    assert isinstance(lease, Lease)
    lab.node.close()
    put_back()
    lab.backend.reboot()
    with lab.store_away() if away else nullcontext():
        lab.open()
        for now in (0.0, 1e6, 2e6):
            lab.node.tick(now)
        lab.node._tending.join(30.0)
        if away:
            assert lab.device().state == State.DIRTY
            assert lab.node._follow(), "nothing else is held up"
    wait_for(lambda: asked(lab, 3e6))
    (found,) = lab.units()
    assert found.state is State.QUARANTINED
    assert [reason.code for reason in found.reasons] == ["operator"]
    assert (found.floor, found.closed) == (lab.coordinator.newest(), True)


def test_a_new_card_that_fails_while_the_store_is_away_asks_it_all_the_same(lab: Lab) -> None:
    """Promise 7: its floor rises once the store answers, or its quarantine's lease never ended."""
    lab.free()
    (unit,) = lab.units()
    with lab.node._registry.commit() as commit:
        commit.put_unit(replace(commit.unit(unit.id), floor=NO_TOKEN, closed=False))
    lab.fault("remap-failed")
    with lab.store_away():
        lab.node.sweep()
        lab.node.tick(lab.node.view().at)
    (found,) = lab.units()
    assert (found.state, found.floor) == (State.QUARANTINED, NO_TOKEN)
    wait_for(lambda: asked(lab, lab.node.view().at))
    (found,) = lab.units()
    assert found.floor == lab.coordinator.newest()
    assert [reason.code for reason in found.reasons] == ["remap-failed"]


@dataclass
class Slow:
    """A store that takes its time to be away."""

    lab: Lab
    takes_s: float
    asked_at: list[float] = field(default_factory=list)

    def newest(self) -> Token:
        """Away."""
        clock = self.lab.node._registry.clock
        self.asked_at.append(clock.monotonic())
        wait_for(lambda: clock.monotonic() - self.asked_at[-1] >= self.takes_s)
        raise errors.StoreUnavailable("away")

    def leases(self) -> Sequence[Lease]:
        """Not reached."""
        raise AssertionError


def test_a_store_that_is_slow_to_be_away_is_asked_the_less_often(lab: Lab) -> None:
    """Promise 7: one new card costs its neighbours a fifth of their node's time at most."""
    (unit,) = lab.units()
    registry, store = lab.node._registry, Slow(lab, takes_s=0.3)
    with registry.commit() as commit:
        commit.put_unit(replace(commit.unit(unit.id), floor=NO_TOKEN, closed=False))
    newcomers = Newcomers(registry, cast("Leases", store))
    newcomers.step()
    ended = registry.clock.monotonic()

    def again() -> bool:
        newcomers.step()
        return len(store.asked_at) == 2

    wait_for(again)
    assert store.asked_at[1] - ended >= max(AGAIN_S, SHARE * 0.3) - 0.01
