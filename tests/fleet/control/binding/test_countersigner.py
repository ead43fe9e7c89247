"""Ledgers are countersigned while claims are served, beside the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from fleet.control.binding.countersigner import AGAIN_S, PERIOD_S, Countersigning, in_thread
from fleet.core import errors
from fleet.core.model import NodeName
from fleet.evidence.ledger import LedgerHead

HEAD = LedgerHead(1, "a" * 64, {})


@dataclass
class Coordinator:
    """Counts what it is asked to sign."""

    signed: list[set[str]] = field(default_factory=list)
    error: Exception | None = None

    def sign_heads(self, heads: Mapping[NodeName, LedgerHead], *, waits: bool = True) -> None:
        """Sign; no archive may be waited for."""
        assert not waits
        if self.error is not None:
            raise self.error
        self.signed.append(set(heads))


def test_every_period_all_ends_that_are_known_are_signed() -> None:
    """E3: a node that does not answer keeps no other's ledger from being countersigned."""
    coordinator = Coordinator()
    ends: dict[str, LedgerHead | errors.FleetError] = {"a": HEAD, "b": errors.NotOwner("away")}
    follower = Countersigning(coordinator, lambda: ends, begin=lambda work: work())
    for now in (0.0, PERIOD_S - 1, PERIOD_S + 1):
        follower.step({}, now)
    assert coordinator.signed == [{"a"}, {"a"}]
    follower.step({}, 5.0)
    assert len(coordinator.signed) == 3, "a clock set back does not put it off"


def test_f73_what_failed_is_tried_again_soon_and_not_after_a_whole_period() -> None:
    """F73: after a node that did not answer (a crash, a reboot) half a minute goes by, not five."""
    coordinator = Coordinator()
    ends: dict[str, LedgerHead | errors.FleetError] = {"a": errors.RayUnavailable("away")}
    follower = Countersigning(coordinator, lambda: ends, begin=lambda work: work())
    follower.step({}, 0.0)
    ends |= {"a": HEAD, "b": errors.RayUnavailable("away")}
    follower.step({}, AGAIN_S + 1)
    ends["b"] = HEAD
    follower.step({}, 2 * AGAIN_S + 2)
    follower.step({}, 3 * AGAIN_S + 3)
    assert coordinator.signed == [set(), {"a"}, {"a", "b"}]


def test_f71_a_node_whose_owner_changes_is_no_trouble_of_the_coordinator() -> None:
    """F71: `fleet audit` right after a worker's pod was replaced finds nothing; a node still
    away half a minute later is named until it answers."""
    ends: dict[str, LedgerHead | errors.FleetError] = {"a": errors.NotOwner("changes hands")}
    follower = Countersigning(Coordinator(), lambda: ends, begin=lambda work: work())
    for now in (0.0, AGAIN_S - 1):
        follower.step({}, now)
    for now in (AGAIN_S + 1, AGAIN_S + 2):
        with pytest.raises(errors.NotOwner, match="changes hands"):
            follower.step({}, now)
    ends["a"] = HEAD
    follower.step({}, 2 * AGAIN_S + 2)


@pytest.mark.parametrize("error", [errors.LedgerUnavailable("full"), ValueError("full")])
def test_what_fails_is_told_until_it_went_well(error: Exception) -> None:
    """Promise 8: the loop's trouble names it at every step, and it is tried again soon."""
    coordinator = Coordinator(error=error)
    follower = Countersigning(coordinator, lambda: {"a": HEAD}, begin=lambda work: work())
    for now in (0.0, 1.0):
        with pytest.raises(errors.LedgerUnavailable, match="full"):
            follower.step({}, now)
    coordinator.error = None
    follower.step({}, PERIOD_S + 1)
    follower.step({}, PERIOD_S + 2)
    assert coordinator.signed == [{"a"}]
    assert AGAIN_S < PERIOD_S


def test_one_at_a_time_beside_the_loop() -> None:
    """Promise 9: ledgers that take long to read hold nothing up, and are not read twice at once."""
    begun: list[Callable[[], None]] = []
    follower = Countersigning(Coordinator(), dict, begin=begun.append)
    for now in (0.0, PERIOD_S + 1, 2 * PERIOD_S + 2):
        follower.step({}, now)
    assert len(begun) == 1
    done = threading.Event()
    in_thread(done.set)
    assert done.wait(10.0)
    begun.pop()()
    follower.step({}, 3 * PERIOD_S)
    assert len(begun) == 1
