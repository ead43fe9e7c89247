"""What a container gets: a grant for each device of the claim, or an error that says which not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import ClaimUid, Uuid
from fleet.node.container_edits import grants
from tests.fleet.node.conftest import OPS, Lab, wait_for
from tests.fleet.node.parting import parting


def record(lab: Lab) -> Claim:
    return lab.node._registry.journal.claims[ClaimUid("claim-a")]


def test_held_and_attached_devices_are_granted_each_its_own(lab: Lab) -> None:
    """B35: what a claim looks into is in its spec like what it holds; nothing else is."""
    attached = lab.device("gpu-1-1g-0").uuid
    lab.node.prepare(
        lab.bare("claim-a", "gpu-0", "gpu-1-1g-3", attached=(attached,), namespace=OPS)
    )
    found = grants(lab.node._registry, record(lab))
    assert list(found) == [lab.device("gpu-0").uuid, lab.device("gpu-1-1g-3").uuid, attached]
    assert len(set(map(repr, found.values()))) == 3
    assert all(grant.nodes or grant.mounts for grant in found.values())


def test_the_spec_names_what_the_grant_says(lab: Lab) -> None:
    """Promise 3: the memory file of this device, and of no other, is in the claim's spec."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    spec = (lab.directory / "cdi" / lab.specs[0]).read_text()
    (grant,) = grants(lab.node._registry, record(lab)).values()
    assert all(mount.host_path in spec for mount in grant.mounts)
    other = lab.memory("gpu-1").paths
    assert not any(str(path) in spec for path in other)


def test_a_device_that_is_gone_is_an_error_that_names_it(lab: Lab) -> None:
    """B10: an answer never names something a container could not get."""
    lab.node.prepare(lab.bare("claim-a", "gpu-0"))
    gone = Uuid("SIM-gone")
    claim = replace(record(lab), attached=(gone,))
    with pytest.raises(errors.DeviceUnknown, match="SIM-gone"):
        grants(lab.node._registry, claim)


def test_a_prepared_claim_whose_device_vanished_is_refused_not_answered(lab: Lab) -> None:
    """B10: after a restart without the card the repeated prepare fails; the teardown succeeds."""
    order = lab.bare("claim-a", "gpu-0")
    lab.node.prepare(order)
    uuid = lab.device().uuid
    lab.node.close()
    lab.take_out()
    lab.open()
    with pytest.raises(errors.DeviceUnknown, match=uuid):
        lab.node.prepare(order)
    assert lab.node.unprepare("claim-a").quarantined == (uuid,)


def test_instances_are_made_for_a_claim_until_it_is_prepared_and_not_again(lab: Lab) -> None:
    """Promise 1: an instance that went away took the proof with it that its memory was clean."""
    backend = parting(lab)
    partitions = lab.node._parts.sweep.validator.partitions
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    claim, registry = record(lab), lab.node._registry
    assert [instance.device for instance in backend.there] == list(claim.devices)
    backend.there.clear()
    for state in (ClaimState.PREPARED, ClaimState.PREPARING):
        with pytest.raises(errors.DeviceUnfit, match="removed from outside"):
            grants(registry, replace(claim, state=state), partitions)
    assert backend.there == []


def test_who_looks_into_a_whole_accelerator_makes_no_instance_of_it(lab: Lab) -> None:
    """B35: an instance of everything would collide with every partition in use."""
    backend = parting(lab)
    lab.node.prepare(lab.attachment("claim-a", "gpu-1"))
    lab.node.prepare(lab.attachment("claim-b", "gpu-1-1g-3"))
    (instance,) = backend.there
    assert instance.device == lab.device("gpu-1-1g-3").uuid
    for uid in ("claim-a", "claim-b"):
        lab.node.unprepare(uid)
    lab.node.tick(1.0)
    wait_for(lambda: not backend.there)
