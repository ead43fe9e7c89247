"""Writes that others race with."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from fleet.core import errors
from fleet.kube.base import Cluster, Object
from fleet.kube.conflict_retry import PAUSE_MAX_S, Settled, settle

NOBODY = cast("Cluster", None)
"""The cluster itself is only handed on."""


class Counter:
    """A server with one number, guarded by its version; each write meets the next fault first."""

    def __init__(self, *faults: Callable[[Counter], None]) -> None:
        self.value = self.version = 0
        self.faults = list(faults)
        self.reads = self.writes = 0
        self.pauses: list[float] = []

    def read(self, _cluster: Cluster) -> Object:
        self.reads += 1
        return {"value": self.value, "version": self.version}

    def write(self, _cluster: Cluster, body: Object) -> Object:
        self.writes += 1
        if self.faults:
            self.faults.pop(0)(self)
        if body["version"] != self.version:
            raise errors.ApiConflict("changed", reason="Conflict")
        self.value, self.version = body["value"], self.version + 1
        return self.read(_cluster)

    def settle(self, attempts: int = 5) -> Settled:
        """Raise the number to at least 3."""

        def decide(found: Object) -> Object | None:
            return None if found["value"] >= 3 else {**found, "value": 3}

        return settle(
            NOBODY, self.read, decide, self.write, attempts=attempts, pause=self.pauses.append
        )


def overtaken(server: Counter) -> None:
    """Somebody else writes first."""
    server.value, server.version = server.value + 1, server.version + 1


def lost_before(_server: Counter) -> None:
    """The request never arrives."""
    raise errors.ApiUnavailable("no connection", status=0, retry_after_s=0.0)


def lost_after(server: Counter) -> None:
    """The write is carried out and its answer is lost."""
    server.value, server.version = 3, server.version + 1
    raise errors.ApiUnavailable("time-out", status=0, retry_after_s=0.0)


def busy(_server: Counter) -> None:
    """The server asks for a long pause."""
    raise errors.ApiUnavailable("slow down", status=429, retry_after_s=60.0)


def test_nothing_to_do_writes_nothing() -> None:
    """What is as wanted already is only read."""
    server = Counter()
    server.value = 4
    assert server.settle() == Settled({"value": 4, "version": 0}, 0, confirmed=True)


def test_a_conflict_is_decided_anew() -> None:
    """B5: after a 409 the object is read and the decision made again, on what is there now."""
    server = Counter(overtaken, overtaken)
    assert server.settle() == Settled({"value": 3, "version": 3}, 3, confirmed=True)
    assert len(server.pauses) == 2


def test_a_conflict_may_show_that_nothing_is_left_to_do() -> None:
    """B5: when the other writer did what we wanted, ours is not repeated."""
    server = Counter(*[overtaken] * 3)
    done = server.settle()
    assert (done.found["value"], done.writes) == (3, 3)


def test_conflicts_without_end_are_given_up() -> None:
    """B5: the number of attempts is bounded; the conflict is told then."""
    server = Counter(*[overtaken] * 2)
    with pytest.raises(errors.ApiConflict) as caught:
        server.settle(attempts=2)
    assert (server.writes, caught.value.reason, caught.value.uncertain) == (2, "Conflict", False)


def test_a_lost_answer_is_settled_by_reading() -> None:
    """An ambiguous write is read back: one that was carried out is not sent again."""
    server = Counter(lost_after)
    done = server.settle()
    assert (done.found["value"], done.writes, done.confirmed) == (3, 1, False)
    assert server.writes == 1


def test_a_lost_request_is_sent_again_after_reading() -> None:
    """A write that did not arrive is found missing and sent again."""
    server = Counter(lost_before)
    done = server.settle()
    assert (done.found["value"], done.writes, done.confirmed) == (3, 2, True)


def test_an_unsettled_write_is_told_as_uncertain() -> None:
    """When the server stays away after a write, it is told that it may have been carried out."""
    server = Counter(lost_after)

    def away(_cluster: Cluster) -> Object:
        if server.writes:
            raise errors.ApiUnavailable("down", status=0, retry_after_s=0.0)
        return server.read(_cluster)

    with pytest.raises(errors.ApiUnavailable) as caught:
        settle(NOBODY, away, lambda found: found, server.write, pause=server.pauses.append)
    assert caught.value.uncertain
    assert server.writes == 1
    with pytest.raises(errors.ApiUnavailable) as caught:
        Counter(*[lost_before] * 9).settle()
    assert caught.value.uncertain


def test_a_server_away_before_any_write_is_not_uncertain() -> None:
    """Reads that fail leave nothing behind."""

    def away(_cluster: Cluster) -> Object:
        raise errors.ApiUnavailable("down", status=0, retry_after_s=0.0)

    server = Counter()
    with pytest.raises(errors.ApiUnavailable) as caught:
        settle(NOBODY, away, lambda found: found, server.write, pause=server.pauses.append)
    assert not caught.value.uncertain
    assert len(server.pauses) == 4


@pytest.mark.parametrize(
    "kind", [errors.ApiFailed, errors.ApiInvalid, errors.ApiForbidden, errors.ApiNotFound]
)
def test_a_refusal_is_never_repeated(kind: type[errors.FleetError]) -> None:
    """5xx, 422 and missing rights are told at once: the same body fails for ever."""

    def refuse(_server: Counter) -> None:
        raise kind("no")

    server = Counter(refuse)
    with pytest.raises(kind):
        server.settle()
    assert (server.reads, server.writes, server.pauses) == (1, 1, [])


def test_pauses_are_bounded() -> None:
    """A server that asks for a minute does not hold a call of 40 s for that long."""
    server = Counter(*[busy] * 3)
    server.settle()
    assert server.pauses == [PAUSE_MAX_S] * 3
