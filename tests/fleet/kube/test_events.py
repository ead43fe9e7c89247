"""Events are told once, whoever tells them, and never in anybody's way."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube.base import EVENTS, NODES, PODS, Name, Object, Selection
from fleet.kube.events import MESSAGE_MAX, REPEAT_S, SILENCE_S, Events, Kind, Regarding, regarding
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

POD = Regarding(PODS, Name("pod-1", "tenant"), "uid-1")


class Site:
    """A cluster and who tells."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000.0)
        self.cluster = MemoryCluster(Engine(clock=self.clock))
        self.events = self.start()

    def start(self) -> Events:
        """A new process."""
        return Events(self.cluster, "fleetscrub-coordinator", self.clock)

    def told(self) -> list[Object]:
        """What the server holds."""
        return list(self.cluster.list(EVENTS, Selection()).items)

    def say(self, message: str = "it is bad", about: Regarding = POD) -> None:
        """Record one."""
        self.events.record(about, "DeviceQuarantined", message, kind=Kind.WARNING)


@pytest.fixture
def site() -> Site:
    """A quiet cluster."""
    return Site()


def test_an_event_names_object_reason_and_reporter(site: Site) -> None:
    """It stands in the object's namespace and refers to its UID."""
    site.say()
    (event,) = site.told()
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "pod-1", "namespace": "tenant", "uid": "uid-1",
    }  # fmt: skip
    assert event["metadata"]["namespace"] == "tenant"
    assert (event["type"], event["reason"]) == ("Warning", "DeviceQuarantined")
    assert (event["message"], event["count"]) == ("it is bad", 1)
    assert event["source"] == {"component": "fleetscrub-coordinator"}


def test_a_node_has_its_events_in_the_default_namespace(site: Site) -> None:
    """Events are namespaced, nodes are not."""
    node = {"metadata": {"name": "n1", "uid": "u"}}
    site.say(about=regarding(node, NODES))
    (event,) = site.told()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


def test_a_repeat_costs_nothing_for_ten_minutes(site: Site) -> None:
    """Said every second, written once; then the count goes up."""
    for _ in range(50):
        site.say()
        site.clock.advance(1.0)
    assert len(site.cluster.calls) == 1
    site.clock.advance(REPEAT_S)
    site.say()
    (event,) = site.told()
    assert event["count"] == 2
    assert event["lastTimestamp"] > event["firstTimestamp"]


def test_a_new_process_does_not_say_it_again(site: Site) -> None:
    """The name is made of what is said about whom: restarts and second coordinators meet there."""
    site.say()
    site.events = site.start()
    site.say()
    assert [event["count"] for event in site.told()] == [1]
    site.clock.advance(REPEAT_S + 1)
    site.events = site.start()
    site.say()
    assert [event["count"] for event in site.told()] == [2]


def test_other_words_and_other_objects_are_other_events(site: Site) -> None:
    """A re-created pod of the same name has a UID of its own."""
    site.say()
    site.say("it is worse")
    site.say(about=Regarding(PODS, POD.name, "uid-2"))
    assert len(site.told()) == 3


@pytest.mark.parametrize(
    "error",
    [errors.ApiForbidden("403"), errors.ApiInvalid("422"), errors.ApiUnavailable("503"),
     errors.ApiFailed("500"), errors.ApiNotFound("404")],
)  # fmt: skip
def test_what_cannot_be_told_is_dropped(site: Site, error: errors.FleetError) -> None:
    """An API that refuses or is away never harms who tells."""
    site.cluster.faults.fail_next("create", error)
    site.say()
    assert site.told() == []


def test_a_silent_server_is_left_alone_for_a_while_and_then_told(site: Site) -> None:
    """Bounded in time: a hundred events during an outage cost one try, and none is forgotten."""
    site.cluster.faults.fail_next("create", errors.ApiUnavailable("503"))
    for number in range(100):
        site.say(f"message {number}")
    assert len(site.cluster.calls) == 1
    site.clock.advance(SILENCE_S)
    site.say("message 0")
    assert len(site.told()) == 1


def test_an_event_that_went_meanwhile_harms_nobody(site: Site) -> None:
    """The server forgets events after an hour: one gone between two calls is dropped."""
    site.say()
    site.events = site.start()
    (event,) = site.told()
    name = Name(event["metadata"]["name"], "tenant")
    site.cluster.faults.before_next("get", lambda: site.cluster.delete(EVENTS, name))
    site.say()
    assert site.told() == []


def test_long_names_and_messages_fit(site: Site) -> None:
    """Bounded in size, cut between characters."""
    site.say("ü" * 5000, Regarding(PODS, Name("p" * 253, "tenant"), "u"))
    (event,) = site.told()
    assert len(event["message"].encode()) <= MESSAGE_MAX
    assert len(event["metadata"]["name"]) <= 253


def test_a_reason_is_for_machines(site: Site) -> None:
    """A mistake of the program is not hidden."""
    for bad in ("", "two words", "lower", "X" * 200):
        with pytest.raises(ValueError, match="not a reason"):
            site.events.record(POD, bad, "x")
