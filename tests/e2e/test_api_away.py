"""The plugin without its API server, while kubelet has it: what is local goes on."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from fleet.kube import claim as claims
from fleet.kube.base import CLAIMS, PODS, name_of, uid_of
from fleet.kube.marks import Marks
from tests.e2e.ground import Ground
from tests.e2e.link import Link
from tests.e2e.plugin_process import DRIVER, MEMORY_BYTES, PluginProcess
from tests.e2e.polling import eventually, throughout
from tests.e2e.workloads import FILL, STAY, phase, program

pytestmark = pytest.mark.e2e


@pytest.fixture
def link(ground: Ground) -> Iterator[Link]:
    """The plugin started again, over the same state, behind a link that can be cut."""
    found = Link(ground.place.kubeconfig, ground.plugin.state.parent / "link.kubeconfig")
    assert ground.plugin.stop() == 0
    behind = replace(ground.place, kubeconfig=found.kubeconfig)
    other = PluginProcess(behind, ground.plugin.state, ground.plugin.node)
    ground.instances.append(other)
    other.start()
    eventually("it serves", lambda: other.serves() and not ground.left(), timeout_s=60)
    yield found
    assert other.stop() == 0
    found.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("away", [Link.cut, Link.freeze], ids=["refused", "silent"])
def test_a_clean_teardown_needs_no_api(
    ground: Ground, link: Link, away: Callable[[Link], None]
) -> None:
    """Invariant 19, DESIGN 5: with the API away a pod ends normally, its device is wiped and its
    record gone; our hold keeps the device from others meanwhile and goes once the API is back."""
    secret = secrets.token_hex(16)
    pod = ground.run(program(FILL, STAY, secret=secret), ground.claim_template())
    ground.in_phase(pod, "Running")
    claim = ground.claim_of(pod)
    memory = ground.memory(uid_of(claim))
    away(link)
    ground.cluster.delete(PODS, pod)
    began = time.monotonic()
    ground.gone(pod)
    ground.figures.append(
        f"pod gone with the API away ({away.__name__}): {time.monotonic() - began:.1f} s"
    )
    assert memory.read_bytes() == bytes(MEMORY_BYTES)
    assert ground.plugin.claims() == ()
    now = claims.read(ground.cluster.get(CLAIMS, name_of(claim)), Marks(DRIVER))
    assert (now.held, now.finalizer, now.allocated) == (True, True, True)
    link.mend()
    eventually("the claim goes", lambda: not ground.left(), timeout_s=30, tell=ground.plugin.told)


@pytest.mark.timeout(300)
def test_a_prepare_waits_for_the_api_to_return(ground: Ground, link: Link) -> None:
    """Reference 1.4: kubelet tries again only after 60 to 90 s, so a short absence of the API is
    waited for inside the call, and the pod runs without a second one."""
    link.cut()
    pod = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template())
    throughout("the pod waits", lambda: phase(ground.pod(pod)) in ("", "Pending"), for_s=4.0)
    began = time.monotonic()
    link.mend()
    assert len(ground.ended(pod)) == 1
    assert time.monotonic() - began < 30.0
