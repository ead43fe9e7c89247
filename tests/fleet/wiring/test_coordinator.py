"""The coordinator's claims put together: a claim is proven ready on a real node of this host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.control.binding.loop import Loop
from fleet.core import errors
from fleet.core.profiles import Profile
from fleet.core.settings import MIB
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from fleet.kube import identity
from fleet.kube.base import CLAIMS, NODES, Name, PatchKind
from fleet.kube.claim import ClaimReading, read
from fleet.plugin.requests import AskedClaim
from fleet.wiring import coordinator
from fleet.wiring.plans import FleetPlan, plan_fleet
from tests.fleet.plugin.benches import MARKS, Bench, bench, result
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.server import StandIn


@dataclass
class Host:
    """A node served to kubelet, an API server, and what a coordinator of this host needs."""

    site: Bench
    standin: StandIn
    plan: FleetPlan
    kubeconfig: str

    def pending(self, name: str, device: str = "gpu-0") -> AskedClaim:
        """A claim for which the scheduler waits in PreBind."""
        site = self.site
        asked = site.create(name)
        allotted = result(
            device,
            bindingConditions=[MARKS.sanitized, MARKS.healthy],
            bindingFailureConditions=[MARKS.failed],
        )
        site.allocate(asked, allotted)
        return site.reserve(asked, site.pod(f"pod-of-{name}", node=""))

    def reading(self, asked: AskedClaim) -> ClaimReading:
        """The claim now."""
        return read(self.site.claim_of(asked), MARKS)

    def until(self, true: Callable[[], bool], turn: Callable[[], object], *, said: object) -> None:
        """Turn until it is so; `said` is shown when it does not become so."""
        deadline = time.monotonic() + 20.0
        while not true():
            assert time.monotonic() < deadline, said
            self.site.node.tick(time.time())
            turn()


@pytest.fixture
def host() -> Iterator[Host]:
    """A host of one node with two devices."""
    with bench(Profile.STRICT) as site, StandIn(site.cluster.engine) as standin:
        plan = plan_fleet(
            site.state,
            simulate="1x2p1",
            memory_bytes=2 * MIB,
            serve="n1",
            settings=site.settings,
        )
        kubeconfig = standin.kubeconfig(site.state / "kubeconfig")
        yield Host(site, standin, plan, str(kubeconfig))


def test_a_claim_is_bound_by_whichever_coordinator_runs(host: Host) -> None:
    """B1, B42: wiped under the claim's token, held, then conditions; the next one starts from
    API, store and node alone, and two at once bind it once. E3: what was certified before one
    began is countersigned.
    """
    first, second = (Loop(coordinator.of_host(host.plan, host.kubeconfig)) for _ in range(2))
    asked = host.pending("a")
    host.until(lambda: bool(host.site.leases_of(asked.uid)), first.turn, said=first.view())
    other = host.pending("b", "gpu-1")

    def both() -> None:
        first.turn()
        second.turn()

    ready = (asked, other)
    host.until(
        lambda: all(host.reading(one).bound and host.reading(one).finalizer for one in ready),
        both,
        said=(first.view(), second.view()),
    )
    for one in ready:
        (lease,) = host.site.leases_of(one.uid)
        found = host.reading(one)
        assert found.held
        device = next(d for d in host.site.door.view().devices if d.name == found.devices[0].device)
        assert (device.state, device.certified_under) == ("CLEAN", str(lease.token))
    assert first.view().open_claims == 2
    third = Loop(coordinator.of_host(host.plan, host.kubeconfig))

    def all_signed() -> bool:
        found = verify(collect(host.site.state))
        return found.countersigned == found.certificates

    host.until(all_signed, third.turn, said=third.view())
    for loop in (first, second, third):
        loop.stop()
        loop.run()
    report = verify(collect(host.site.state))
    assert report.ok
    assert report.countersigned == report.certificates > 0, "no campaign has to run for that"


def test_a_server_without_claims_is_said_so(host: Host) -> None:
    """A4: too old a cluster is named, and asked again, since it may be updated."""
    host.standin.hidden.add(CLAIMS)
    loop = Loop(coordinator.of_host(host.plan, host.kubeconfig))
    assert loop.turn() > 0.0
    assert "resourceclaims" in loop.view().trouble


def test_without_a_configuration_nothing_is_begun(host: Host) -> None:
    """A wrong kubeconfig is for people: it is told before anything runs."""
    with pytest.raises(errors.SettingsInvalid):
        coordinator.of_host(host.plan, "/nonexistent")


def test_another_cluster_is_refused(host: Host, tmp_path: Path) -> None:
    """Promise 7: a coordinator of the wrong cluster would call every claim gone."""
    loop = Loop(coordinator.of_host(host.plan, host.kubeconfig))
    loop.stop()
    loop.run()  # one turn, and all is closed
    assert identity.recorded(host.site.state)
    with StandIn(Engine(seed="theirs")) as theirs:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        MemoryCluster(theirs.engine).create(NODES, body)
        wrong = theirs.kubeconfig(tmp_path / "wrong")
        with pytest.raises(errors.ClusterForeign):
            coordinator.of_host(host.plan, str(wrong))


def test_one_of_several_coordinators_is_started_by_its_selector(host: Host) -> None:
    """E7: a selector that is none, or not one of the settings, is refused before anything is
    opened; a host that is selected is served, and one that is not is left alone.
    """
    with pytest.raises(errors.InputInvalid, match="no term of a label selector"):
        coordinator.of_host(host.plan, host.kubeconfig, "pool in")
    (node,) = host.plan.nodes
    kubernetes = node.settings.kubernetes.model_copy(
        update={"coordinator_nodes": ("pool=a", "pool=b")}
    )
    settings = node.settings.model_copy(update={"kubernetes": kubernetes})
    several = host.plan.model_copy(
        update={"nodes": (node.model_copy(update={"settings": settings}),)}
    )
    for wrong in ("", "pool=c"):
        with pytest.raises(errors.InputInvalid, match="a coordinator for each of pool=a, pool=b"):
            coordinator.of_host(several, host.kubeconfig, wrong)
    body = {"metadata": {"labels": {"pool": "b"}}}
    host.site.cluster.patch(NODES, Name("n1"), body, kind=PatchKind.MERGE)
    first, second = (
        Loop(coordinator.of_host(several, host.kubeconfig, one), selecting=one)
        for one in ("pool=a", "pool=b")
    )
    asked = host.pending("a")

    def both() -> None:
        first.turn()
        second.turn()

    host.until(lambda: host.reading(asked).bound, both, said=(first.view(), second.view()))
    assert (first.view().open_claims, second.view().open_claims) == (0, 1)
    assert (first.view().nodes, second.view().nodes) == ("pool=a", "pool=b")
    assert (first.view().trouble, second.view().trouble) == ("", "")
    for loop in (first, second):
        loop.stop()
        loop.run()
