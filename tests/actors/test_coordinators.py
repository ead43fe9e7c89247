"""Several coordinators in one Ray: each under a name of its own, none left over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from actors import cluster, coordinators, handles
from actors.bridge import Bridge
from actors.handles import RemoteCoordinator
from actors.identity import coordinator_digest
from fleet.control.binding.loop import BindingView
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.kube.base import NODES, Name, PatchKind
from fleet.wiring import adapters
from tests.actors.test_handles import Fleet
from tests.actors.waiting import until

SELECTORS = ("pool in (a,c)", "pool=b")
NAMES = [f"coordinator:{one}" for one in SELECTORS]


def test_each_selection_has_a_name_of_its_own() -> None:
    """DESIGN 5, Ray: two plans with the same selection mean one actor."""
    assert [coordinators.name_of(one) for one in ("", *SELECTORS)] == ["coordinator", *NAMES]


@pytest.fixture
def fleet(ray_cluster: cluster.Cluster, tmp_path: Path) -> Iterator[Fleet]:
    """Two nodes of one device, in pool a and in pool b, whose settings ask for two coordinators."""
    plan = adapters.plan_fleet(tmp_path, simulate="2x1", memory_bytes=1 << 20)
    settings = plan.coordinator.settings
    kubernetes = settings.kubernetes.model_copy(update={"coordinator_nodes": SELECTORS})
    several = settings.model_copy(update={"kubernetes": kubernetes})
    coordinator = plan.coordinator.model_copy(update={"settings": several})
    found = Fleet(plan.model_copy(update={"coordinator": coordinator}))
    for node, pool in zip(found.nodes, "ab", strict=True):
        metadata = {"name": node.name, "labels": {"pool": pool}}
        found.claims.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    yield found
    coordinators.end_others(())
    found.end()
    until(lambda: not coordinators.running())


def named(name: str) -> RemoteCoordinator:
    """One of them."""
    return RemoteCoordinator(ray.get_actor(name, namespace=cluster.NAMESPACE))


def bindings() -> list[BindingView]:
    """How each of the two stands."""
    found = [named(name).view().binding for name in NAMES]
    return [one for one in found if one is not None]


@pytest.mark.ray
def test_several_share_the_nodes_of_a_ray_and_one_store(fleet: Fleet) -> None:
    """B4, B43, promise 2: each binds the claims of its nodes; whichever a verb finds, the store
    decides: tokens only rise, and a holder gets one lease. A node whose label changes moves with
    its claim, and a coordinator that the settings do not ask for any more is ended.
    """
    assert sorted(coordinators.running()) == sorted(NAMES)
    claims = []
    for place, node in enumerate(fleet.nodes):
        fleet.nodes.insert(0, fleet.nodes.pop(place))  # whose device is given
        claims.append(fleet.pending(f"c{place}", node.view().devices[0].name))
    until(lambda: all(fleet.reading(one).finalizer for one in claims))
    assert all(fleet.reading(one).bound and fleet.reading(one).held for one in claims)
    # The nodes got their labels after the coordinators had begun: that was a trouble until then.
    wanted = [(selecting, 1, "") for selecting in SELECTORS]
    until(lambda: [(one.nodes, one.open_claims, one.trouble) for one in bindings()] == wanted)

    unit = frozenset({UnitId("GPU-x/all")})
    asked = [AcquireRequest(unit, Holder(HolderKind.CLAIM, "c"))] * 2
    leases = [named(name).acquire([one])[0] for name, one in zip(NAMES, asked, strict=True)]
    first, again = (one for one in leases if isinstance(one, Lease))
    assert first == again
    others = [one.token for one in handles.find_coordinator().leases() if one != first]
    assert len(others) == 2
    assert first.token > max(others)

    moved = Name(fleet.reading(claims[1]).nodes[0])
    body = {"metadata": {"labels": {"pool": "c"}}}
    fleet.claims.patch(NODES, moved, body, kind=PatchKind.MERGE)
    until(lambda: [one.open_claims for one in bindings()] == [2, 0])

    settings = fleet.plan.coordinator.settings
    kubernetes = settings.kubernetes.model_copy(update={"coordinator_nodes": SELECTORS[:1]})
    changed = settings.model_copy(update={"kubernetes": kubernetes})
    served = fleet.plan.nodes[0].model_copy(update={"kubernetes": True, "settings": changed})
    Bridge(served)._end_others()
    until(lambda: coordinators.running() == NAMES[:1])
    assert handles.find_coordinator().view().binding


@pytest.mark.ray
def test_b63_a_coordinator_of_other_settings_is_replaced_or_told_of(
    ray_cluster: cluster.Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B63: Ray hands out the coordinator that runs, whatever it was made from; one of another plan
    is made anew where that may be done, and is told of where it may not. What only nodes go by
    makes no other plan."""
    plan = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=1 << 20).coordinator
    settings = plan.settings
    other = plan.model_copy(
        update={
            "settings": settings.model_copy(
                update={
                    "campaign": settings.campaign.model_copy(update={"max_parallel_per_node": 7})
                }
            )
        }
    )
    nodes = settings.node.model_copy(update={"max_parallel": 3})
    same = plan.model_copy(update={"settings": settings.model_copy(update={"node": nodes})})
    texts = [one.model_dump_json() for one in (plan, same, other)]
    digests = [coordinator_digest(text) for text in texts]
    assert digests[0] == digests[1] != digests[2]
    host = cluster.LOCAL_HOST
    try:
        first = handles.create_coordinator(texts[0], host=host)
        pid = first.wait("ping")
        kept = handles.match_coordinator(first, texts[1], host=host, replace=True)
        assert kept.wait("ping") == pid
        assert "settings" not in caplog.text
        found = handles.create_coordinator(texts[2], host=host)
        kept = handles.match_coordinator(found, texts[2], host=host, replace=False)
        assert kept.wait("ping") == pid
        assert "runs with other settings" in caplog.text
        anew = handles.match_coordinator(found, texts[2], host=host, replace=True)
        assert anew.wait("ping") != pid
        assert anew.wait("made_from") == digests[2]
        assert coordinators.running() == ["coordinator"]
    finally:
        coordinators.end_others(())
        until(lambda: not coordinators.running())
