"""Rules of feeds."""

from __future__ import annotations

import threading

import pytest

from fleet.kube.base import CLAIMS, Change, Name, Selection
from tests.lab.apiserver.engine import Engine, Target
from tests.lab.apiserver.feeds import matching
from tests.lab.apiserver.gates import Features
from tests.lab.apiserver.kinds import table
from tests.lab.apiserver.refusal import Refusal


def make(engine: Engine, name: str, namespace: str = "default") -> None:
    """Create a claim."""
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": {}}
    engine.create(CLAIMS, body)


def test_a_feed_delivers_each_change_once() -> None:
    """In order, from the version it was told, and knows how far it has come."""
    engine = Engine()
    make(engine, "a")
    feed = engine.watch(CLAIMS)
    assert feed.poll(0) == []
    make(engine, "b")
    engine.delete(Target(CLAIMS, Name("a", "default")))
    assert [seen.change for seen in feed.poll(0)] == [Change.ADDED, Change.DELETED]
    assert feed.poll(0) == []
    assert str(feed.version) == engine.version


def test_a_feed_wakes_for_a_change() -> None:
    """A poll returns when something happens, long before its time is over."""
    engine = Engine()
    feed = engine.watch(CLAIMS)
    thread = threading.Timer(0.02, lambda: make(engine, "a"))
    thread.start()
    assert [seen.change for seen in feed.poll(30)] == [Change.ADDED]
    thread.join()


def test_a_feed_that_lags_behind_forgotten_history_is_a_410() -> None:
    """One that has delivered everything goes on."""
    engine = Engine()
    early, late = engine.watch(CLAIMS), engine.watch(CLAIMS)
    make(engine, "a")
    early.poll(0)
    engine.forget_history()
    assert early.poll(0) == []
    with pytest.raises(Refusal) as caught:
        late.poll(0)
    assert caught.value.code == 410


def test_a_selection_narrows_by_namespace() -> None:
    """An object of another namespace does not exist for it."""
    match = matching(table(Features())[CLAIMS], Selection("default"))
    assert match({"metadata": {"namespace": "default"}})
    assert not match({"metadata": {"namespace": "other"}})
