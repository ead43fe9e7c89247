"""Ray's head goes and comes back, again and again, under a plugin that serves (DESIGN 5, Ray)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleet.core.profiles import Profile
from fleet.kube.base import SLICES
from tests.chaos.kubelet.story import Act, Call, Story
from tests.chaos.kubelet.theatre import Theatre

LOG = logging.getLogger(__name__)
ROUNDS = int(os.environ.get("FLEET_HEAD_LOSSES", "1"))
"""Losses in a row; 3 and more by hand, since each takes a minute."""
TAKE_OVER_MAX_S = 30.0
"""Time, s, in which the standby owns the node once nobody does: 3 s of grace, and some."""


def pods(count: int) -> Story:
    """A story of pods on the first device, one after the other, without any blows."""
    calls = [Call(pod, act) for pod in range(count) for act in Act]
    return Story(1, Profile.FAST, True, (0,) * count, frozenset(), tuple(calls))


@contextmanager
def published(theatre: Theatre) -> Iterator[None]:
    """Within the block the node's slices are there whenever one looks."""
    stop, missing = threading.Event(), list[float]()

    def look() -> None:
        while not stop.wait(0.05):
            if not theatre.world.cluster.list(SLICES).items:
                missing.append(time.monotonic())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert missing == [], "the slices were not published all the time"


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_the_head_is_lost_and_comes_back() -> None:
    """DESIGN 5, B45: the plugin stays up, slices stay published, claims go on; again and again.

    In each round the head is killed while the actor owns the node; then the node's own Ray ends
    with it and the standby takes over; then all of Ray comes back and the actor owns again.
    """
    theatre = Theatre(pods(3 * ROUNDS))
    calls = iter(theatre.story.calls)
    try:
        theatre.start()
        theatre.await_owner("node actor")
        theatre.until(lambda: len(theatre.world.control.free()) == 2, "devices are not on offer")
        assert theatre.plugin is not None
        with published(theatre):
            for number in range(ROUNDS):
                theatre.rays.head.kill()
                theatre.perform(next(calls))  # prepared by the actor, without a head
                theatre.until(lambda: not theatre.rays.node.pids("NodeActor"), "the actor lives")
                took_over_s = theatre.await_owner("standby")
                theatre.perform(next(calls))  # that claim is torn down without any Ray
                theatre.perform(next(calls))
                theatre.perform(next(calls))
                theatre.perform(next(calls))
                began = time.monotonic()
                theatre.rays.start()
                started_s = time.monotonic() - began
                handed_over_s = theatre.await_owner("node actor")
                theatre.perform(next(calls))  # prepared by the standby, torn down by the actor
                LOG.warning(
                    "round %d: take-over %.1f s, head started in %.1f s, hand-over %.1f s after",
                    number + 1,
                    took_over_s,
                    started_s,
                    handed_over_s,
                )
                assert took_over_s < TAKE_OVER_MAX_S
            assert theatre.plugin.poll() is None
        theatre.world.rest()
        assert theatre.broken == []
    finally:
        LOG.warning("%s", theatre.log)
        theatre.end()
