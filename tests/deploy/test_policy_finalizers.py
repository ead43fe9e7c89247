"""Finalizers of claims with our devices go by those who end such claims, and by nobody else."""

from __future__ import annotations

from copy import deepcopy

import pytest

from fleet.kube.base import Object
from tests.deploy.reviews import Review, refused
from tests.deploy.test_account_policies import (
    ADMIN,
    CLAIMS_,
    CONTROLLER,
    COORDINATOR,
    PLUGIN,
    POLICIES,
    SCHEDULER,
    UNINSTALL,
    WORKER,
)
from tests.fleet.plugin.benches import DRIVER, MARKS, NODE

PROTECTION = "resource.kubernetes.io/delete-protection"
TENANT = "system:serviceaccount:tenant:default"


def marked(*finalizers: str, driver: str = DRIVER, allocated: bool = True) -> Object:
    """A claim with these finalizers, allocated on a node."""
    result = {"request": "r", "driver": driver, "pool": NODE, "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}} if allocated else {}
    return {"metadata": {"name": "c", "finalizers": list(finalizers)}, "status": status}


def unmarking(old: Object, *left: str) -> Review:
    """A tenant takes all finalizers but these off."""
    new = deepcopy(old)
    del new["metadata"]["finalizers"]
    if left:
        new["metadata"]["finalizers"] = list(left)
    return Review("UPDATE", CLAIMS_, TENANT, "", new, old)


@pytest.mark.parametrize("user", [TENANT, ADMIN, WORKER, "system:node:n1"])
def test_no_tenant_takes_a_claims_finalizers_off(user: str) -> None:
    """D3: neither both with one patch nor one of them; after the allocation ours stays as well."""
    both = marked(MARKS.finalizer, PROTECTION, "example.com/own")
    for forged in (
        unmarking(both),
        unmarking(both, MARKS.finalizer),
        unmarking(both, PROTECTION),
        unmarking(marked(PROTECTION)),
        unmarking(marked(MARKS.finalizer, allocated=False)),
    ):
        told = refused(forged.by(user, NODE), POLICIES)
        assert any("may not take the finalizers off" in one for one in told), forged


def test_who_ends_a_claim_takes_its_finalizers_off() -> None:
    """D3: our accounts, scheduler and claim controller; accounts that the installation names."""
    asked = unmarking(marked(MARKS.finalizer, PROTECTION), PROTECTION)
    whole = unmarking(marked(MARKS.finalizer, PROTECTION))
    for user in (SCHEDULER, CONTROLLER, "system:kube-controller-manager", COORDINATOR, UNINSTALL):
        assert refused(asked.by(user), POLICIES) == []
        if user not in (COORDINATOR, UNINSTALL):  # of ours alone, see test_policy_coordinator
            assert refused(whole.by(user), POLICIES) == []
    assert refused(asked.by(PLUGIN, NODE), POLICIES) == []
    for name in ("allocators", "publishers"):
        assert refused(whole, naming(name, TENANT)) == []


@pytest.mark.parametrize("user", [TENANT, ADMIN, WORKER, SCHEDULER, CONTROLLER, UNINSTALL])
@pytest.mark.parametrize("allocated", [True, False])
@pytest.mark.parametrize("driver", [DRIVER, "other.example.com"])
def test_f66_only_our_accounts_put_our_finalizer_on_a_claim(
    user: str, driver: str, allocated: bool
) -> None:
    """F66: our finalizer is put on a claim by its node, the coordinator and accounts that the
    installation names, neither at its creation nor later by anybody else; what has it keeps it."""
    bare = marked("example.com/own", driver=driver, allocated=allocated)
    full = marked("example.com/own", MARKS.finalizer, driver=driver, allocated=allocated)
    none = deepcopy(bare)
    del none["metadata"]["finalizers"]
    for forged in (
        Review("UPDATE", CLAIMS_, user, NODE, full, bare),
        Review("UPDATE", CLAIMS_, user, NODE, full, none),
        Review("CREATE", CLAIMS_, user, NODE, full),
    ):
        told = refused(forged, POLICIES)
        assert any("may not put the finalizer" in one for one in told), forged
        for name in ("allocators", "publishers"):
            assert refused(forged.by("system:named"), naming(name, "system:named")) == []
    assert refused(Review("CREATE", CLAIMS_, TENANT, "", none), POLICIES) == []
    assert refused(Review("CREATE", CLAIMS_, TENANT, "", bare), POLICIES) == []
    assert refused(Review("UPDATE", CLAIMS_, TENANT, "", full, full), POLICIES) == []
    mine = Review("UPDATE", CLAIMS_, PLUGIN, NODE, full, bare)
    held = driver == DRIVER and allocated
    assert (refused(mine, POLICIES) == []) is held
    assert (refused(mine.by(COORDINATOR), POLICIES) == []) is held


def naming(variable: str, user: str) -> list[Object]:
    """The policies of an installation that names an account in this list."""
    found = deepcopy(POLICIES)
    for one in (one for policy in found for one in policy["spec"].get("variables", ())):
        if one["name"] == variable:
            one["expression"] = f'["{user}"]'
    return found


def test_other_finalizers_are_their_owners_business() -> None:
    """D3: those of others, a claim of another driver, one that is not allocated, and every change
    that leaves the marks where they are."""
    both = marked(MARKS.finalizer, PROTECTION, "example.com/own")
    for free in (
        unmarking(both, PROTECTION, MARKS.finalizer),
        unmarking(both, "example.com/more", MARKS.finalizer, PROTECTION),
        unmarking(marked(PROTECTION, driver="other.example.com")),
        unmarking(marked(PROTECTION, allocated=False)),
        unmarking(marked("example.com/own")),
    ):
        assert refused(free, POLICIES) == [], free
