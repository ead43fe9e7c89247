"""The checker sees what it is there for: each promise broken by hand is reported."""

from __future__ import annotations

import pytest

from fleet.core.model import ClaimUid, Uuid
from fleet.kube.base import CLAIMS, uid_of
from tests.lab.apiserver.engine import Target
from tests.twin import objects
from tests.twin.hardware import Word
from tests.twin.promises import Broken
from tests.twin.runs import run_seed
from tests.twin.story import Story
from tests.twin.world import Plan, World


def in_use() -> tuple[World, ClaimUid, Uuid]:
    """A world with one running pod; its claim and the device's UUID."""
    world = World(Plan(nodes=1))
    world.run(15.0)
    pod = world.pod()
    assert world.run(60.0, lambda: world.running(pod))
    uid, uuids = next(iter(world.nodes["n0"].hardware.specs.items()))
    return world, uid, uuids[0]


def test_a_wipe_under_a_running_tenant_is_seen() -> None:
    """Promise 4."""
    world, _, uuid = in_use()
    node = world.nodes["n0"]
    node.hardware.write(node.hardware.devices[uuid], Word("zeros"))
    node.revision += 1
    with pytest.raises(Broken, match="promise 4"):
        world.checker.check()


def test_a_lease_that_went_under_an_exposed_device_is_seen() -> None:
    """Promise 2: the store's lease of an exposed device is that claim's, under that token."""
    world, _, uuid = in_use()
    node = world.nodes["n0"]
    for unit in node.hardware.devices[uuid].units:
        del world.store._rows[unit]
    node.revision += 1
    with pytest.raises(Broken, match="promise 2"):
        world.checker.check()


def test_a_spec_without_a_record_is_seen() -> None:
    """Promise 3."""
    world, uid, _ = in_use()
    node = world.nodes["n0"]
    del node.registry.journal.claims[uid]
    node.revision += 1
    with pytest.raises(Broken, match="promise 3"):
        world.checker.check()


def test_an_exposure_of_memory_somebody_else_wrote_is_seen() -> None:
    """Promise 1."""
    world, uid, uuid = in_use()
    node = world.nodes["n0"]
    node.hardware.write(node.hardware.devices[uuid], Word("claim:another"))
    with pytest.raises(Broken, match="promise 1"):
        world.checker.exposed(node, node.registry.journal.claims[uid])


def test_a_hold_that_goes_under_a_running_pod_is_seen() -> None:
    """Promise 6."""
    world, uid, _ = in_use()
    claim = next(c for c in world.sight.all(CLAIMS).values() if uid_of(c) == uid)
    pods = [entry for entry in objects.reserved(claim) if objects.is_pod(entry)]
    body = objects.with_status(claim, reservedFor=pods)
    world.admin.replace(CLAIMS, body, subresource="status")
    with pytest.raises(Broken, match="promise 6"):
        world.sight.refresh()


def test_what_is_left_over_is_named() -> None:
    """At rest a hold, a finalizer, a lease, a record and a spec are each reported."""
    world, _, _ = in_use()
    left = "\n".join(world.checker.unsettled())
    for word in ("held", "finalizer", "lease", "record", "spec", "container"):
        assert word in left


def test_one_seed_is_one_story() -> None:
    """A seed that fails can be played again: same events, same end."""
    one, two = run_seed(12), run_seed(12)
    assert one == two
    assert one.events > 300
    assert Story(12).plan != Story(13).plan


def test_a_world_at_rest_is_empty() -> None:
    """No claim is left in the API once its pod is gone."""
    world = World(Plan(nodes=1))
    world.run(15.0)
    world.pod()
    world.run(30.0)
    assert world.settle() == []
    assert not world.sight.all(CLAIMS)
    assert not world.engine.has(Target(CLAIMS, world.template(1)))
