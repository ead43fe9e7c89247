"""`fleet claim` against a real node of this host and an API server: bound, then explained."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fleet.cli.claim import ClaimStoryAnswer, _render_story
from fleet.cli.main import build
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import ClaimOrder
from fleet.kube.base import CLAIMS, CLASSES, Name
from fleet.kube.claim_status import REASON
from fleet.kube.events import Events, Regarding
from tests.fleet.control.binding.scenes import device_class
from tests.fleet.wiring.test_coordinator import Host, host

__all__ = ["host"]


@contextmanager
def serving(host: Host) -> Iterator[None]:
    """The node acts and publishes its devices, as its service and its plugin do."""
    host.site.scrub("gpu-0")
    host.site.let_go()
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.02):
            host.site.node.tick(time.time())

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        with host.site.kept():
            deadline = time.monotonic() + 20.0
            while host.site.taints("gpu-0") != []:
                assert time.monotonic() < deadline, host.site.door.view().devices
                time.sleep(0.02)
            yield
    finally:
        stop.set()
        thread.join(20.0)


def verb(host: Host, *arguments: str) -> Any:
    """The answer of `fleet claim`, as JSON."""
    where = ["--state", str(host.site.state), "--kubeconfig", host.kubeconfig, "--json"]
    found = CliRunner().invoke(build(), ["claim", *arguments, *where])
    if found.exception is not None:
        raise found.exception
    return json.loads(found.stdout)


def test_a_claim_is_allocated_proven_and_exposed(host: Host) -> None:
    """B1, B4: `fleet claim bind` wipes a device under the claim's token and allocates it; the pod
    that comes gets it without another wipe, `fleet claim show` says all of it."""
    host.site.cluster.create(CLASSES, device_class())
    asked = host.site.create("hybrid")
    with serving(host):
        story = verb(host, "show", "tenant/hybrid")
        assert [one["check"] for one in story["missing"]] == ["allocation"]
        assert "fleet claim bind tenant/hybrid" in story["missing"][0]["remedy"]
        bound = verb(host, "bind", "tenant/hybrid")
        reading = host.reading(asked)
        assert reading.bound
        assert reading.held
        assert reading.finalizer
        story = verb(host, "show", "tenant/hybrid")
        assert story["missing"] == []
        assert story["leases"] == [bound["token"]]
        assert story["coordinator"] == "we allocated it; it waits for its first pod"
        (one,) = story["devices"]
        assert (one["state"], one["certified_under"]) == ("CLEAN", bound["token"])
        assert verb(host, "bind", "tenant/hybrid")["already"]
        pod = host.site.pod("late")
        host.site.reserve(asked, *reading.raw["status"]["reservedFor"], pod)
        (device,) = [d for d in host.site.door.view().devices if d.name == one["device"]]
        order = ClaimOrder(
            uid=asked.uid, node="n1", devices=(device.uuid,), consumers=(pod.uid,), held=True
        )
        host.site.door.prepare(order)
        (used,) = [d for d in host.site.door.view().devices if d.name == one["device"]]
        assert (used.state, used.claim, used.floor) == ("IN_USE", asked.uid, bound["token"])
        assert used.certificate == bound["certificates"][0]
        assert verb(host, "show", "tenant/hybrid")["record"] == "PREPARED"


@pytest.mark.parametrize("name", ["hybrid", "/x", "a/b/c", "a/"])
def test_a_claim_is_named_in_full(name: str, tmp_path: object) -> None:
    """A name without namespace is no name: it could be anybody's claim."""
    arguments = ["claim", "show", name, "--state", str(tmp_path)]
    found = CliRunner().invoke(build(), arguments)
    assert isinstance(found.exception, errors.InputInvalid)
    assert "NAMESPACE/NAME" in found.exception.remedy


def test_without_a_cluster_nothing_is_tried(state: object) -> None:
    """Claims are the API server's: a host that serves no cluster has to be told which."""
    arguments = ["claim", "bind", "tenant/c", "--state", str(state)]
    found = CliRunner().invoke(build(), arguments)
    assert isinstance(found.exception, errors.InputInvalid)
    assert "--kubeconfig" in found.exception.remedy


def test_whoever_says_nothing_is_not_taken_for_a_no(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: a silent node is "unknown", and it is told that no coordinator reports."""
    host.pending("a")
    told = verb(host, "show", "tenant/a")
    assert "no coordinator has ever reported" in told["coordinator_trouble"][0]
    found = ClaimStoryAnswer.model_validate(told)
    _render_story(found, Console(width=200))
    assert "n1: no record" in capsys.readouterr().out
    _render_story(found.model_copy(update={"node_answers": False}), Console(width=200))
    shown = capsys.readouterr().out
    assert "n1: unknown, it does not answer" in shown
    assert "start `fleet coordinate`" in shown


def test_f61_show_says_why_nothing_can_be_said_on_a_claim(host: Host) -> None:
    """F61: what the coordinator told the owner of a claim whose parameters the API server does not
    keep is what `fleet claim show` finds missing, with what to write instead."""
    asked = host.site.create("spaced")
    error = errors.ParametersRespelled("claim tenant/spaced cannot be told anything")
    about = Regarding(CLAIMS, Name("spaced", "tenant"), asked.uid)
    Events(host.site.cluster, "test", SystemClock()).record(about, REASON, error.told)
    found = {one["check"]: one for one in verb(host, "show", "tenant/spaced")["missing"]}
    assert found["parameters"]["detail"] == error.detail
    assert "json.dumps" in found["parameters"]["remedy"]
