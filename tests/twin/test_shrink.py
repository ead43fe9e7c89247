"""A failing seed is told as the smallest story that still fails, found by leaving things out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.twin.hardware import Word
from tests.twin.runs import Verdict, run_seed
from tests.twin.shrink import kind_of, shrink
from tests.twin.story import Story
from tests.twin.world import Plan, World


class Careless(World):
    """A planted fault: a service that is killed takes the memory of its tenants with it."""

    def crash_node(self, name: str) -> None:
        """kill -9, and zeros in every device in use."""
        super().crash_node(name)
        hardware = self.nodes[name].hardware
        for device in hardware.devices.values():
            if hardware.tenants(device):
                hardware.write(device, Word("zeros"))


class CarelessStory(Story):
    """A story in such a world."""

    def make(self, plan: Plan) -> World:
        """The broken world."""
        return Careless(plan)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Trouble is what these worlds are made of: its warnings tell nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def failing() -> Verdict:
    """The first story that runs into the fault."""
    found = (run_seed(seed, tell=CarelessStory) for seed in range(21, 60))
    return next(verdict for verdict in found if verdict.trouble.startswith("broken: promise 4"))


def test_a_planted_fault_is_told_in_a_few_moves(failing: Verdict) -> None:
    """Promise 4: a pod and what kills its service are all that is left of all that was drawn."""
    small = shrink(failing, tell=CarelessStory)
    assert small.verdict.trouble.startswith("broken: promise 4")
    assert small.drawn > 15
    assert len(small.verdict.struck) <= 4
    kinds = {name.partition("@")[0] for name in small.verdict.struck}
    assert kinds & {"pod", "replace-pod"}
    deadly = {"service-killed", "service-frozen", "journal-lost", "journal-restored"}
    assert kinds & {*deadly, "node-reboots", "card-swapped"}
    told = small.told
    assert all(name in told for name in small.verdict.struck)
    assert failing.trouble.partition(" ")[0] in told


def test_all_strikes_of_a_story_are_the_story(failing: Verdict) -> None:
    """Played again with exactly what struck, a story is the same; with nothing, it ends well."""
    again = run_seed(failing.seed, only=frozenset(failing.struck), tell=CarelessStory)
    assert (again.trouble, again.trace) == (failing.trouble, failing.trace)
    assert run_seed(failing.seed, only=frozenset(), tell=CarelessStory).trouble == ""


def test_ends_of_one_kind_differ_in_names_only() -> None:
    """Which claim and which device is no part of what went wrong; the promise is."""
    one, two = "broken: promise 4: GPU-n0-1/0 is X", "broken: promise 4: GPU-n1-0/0 is X"
    assert kind_of(one) == kind_of(two)
    assert kind_of(one) != kind_of("broken: promise 6: GPU-n0-1/0 is X")
    assert kind_of("failed:\nTraceback\nKeyError: 'a'") == "KeyError"
