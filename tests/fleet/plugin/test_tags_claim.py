"""Tags of claims and templates in every shape, and of claims that devices were given to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.messages import DeviceView, NodeView
from fleet.plugin import resource_claim
from fleet.plugin.tags import seconds_of
from fleet.plugin.tags_claim import Asked, Isolation
from tests.fleet.admission.rights import DRIVER, KEYS, NOW, SPACE, config, issued, parameters

JUDGE = Isolation(DRIVER, keys=lambda: KEYS)
REQUIRED = replace(JUDGE, required=True)
BAD = parameters(issued(namespaces=("tenant-b",)))


def claim(
    *entries: Any, request: dict[str, Any] | None = None, version: str = "v1"
) -> dict[str, Any]:
    wanted = request or {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "spec": {"devices": {"requests": [wanted], "config": list(entries)}},
    }


def found(document: dict[str, Any], *, judge: Isolation = JUDGE) -> list[tuple[str, str]]:
    asked = Asked(SPACE, float(NOW), document)
    return [(one.path, one.wrong) for one in judge.objections(asked)]


def test_a_good_tag_is_no_objection() -> None:
    """C5: a claim with the right for what it asks passes, in one entry or spread over two."""
    assert found(claim(config("gpu"))) == []
    halves = parameters()
    tag = {key: halves.pop(key) for key in ("isolationTag",)}
    base = {key: halves[key] for key in ("apiVersion", "kind")}
    assert found(claim(config(given=halves), config("gpu", given={**base, **tag}))) == []


@pytest.mark.parametrize(
    "document",
    [
        claim(config("gpu", given=BAD)),
        claim(config(given=BAD)),
        claim(config("gpu", given=BAD), version="v1beta2"),
        claim(
            config("gpu", given=BAD),
            request={"name": "gpu", "deviceClassName": DRIVER},
            version="v1beta1",
        ),
        claim(
            config("gpu/b", given=BAD),
            request={
                "name": "gpu",
                "firstAvailable": [
                    {"name": "a", "deviceClassName": DRIVER},
                    {"name": "b", "deviceClassName": DRIVER},
                ],
            },
        ),
        claim(config("gpu", given=BAD), request={"name": "gpu", "deviceClassName": "of-nobody"}),
    ],
)
def test_a_bad_tag_is_found_in_every_shape(document: dict[str, Any]) -> None:
    """B20, C5: each shape and version of a claim, and of a template, is judged by its path."""
    template = {
        "apiVersion": document["apiVersion"],
        "kind": "ResourceClaimTemplate",
        "spec": {"spec": document["spec"]},
    }
    for one, place in ((document, "spec"), (template, "spec.spec")):
        ((path, wrong),) = set(found(one))
        assert path == f"{place}.devices.config[0].opaque.parameters.isolationTag"
        assert "is for namespace tenant-b, not for tenant-a" in wrong


def test_the_parameters_of_others_are_not_ours() -> None:
    """B20: another driver's block is passed over, whatever is in it."""
    assert found(claim(config("gpu", driver="nic.example.com", given=BAD))) == []
    assert found(claim("text", {"opaque": 3}, {"opaque": {"driver": DRIVER}}))


def test_unknown_fields_of_ours_are_refused() -> None:
    """B20, C2: strict, as the node is."""
    ((path, wrong),) = found(claim(config("gpu", given=parameters(wipes=3))))
    assert path.endswith("parameters.wipes")
    assert wrong == "there is no such field"
    ((_, wrong),) = found(claim(config("gpu", given=parameters(deallocation="Retain"))))
    assert "'Retain' is not allowed" in wrong


def test_a_policy_below_the_minimum_is_refused_at_admission() -> None:
    """C5: signed is under which policy a namespace may have devices."""
    text = issued(minimum="WipeOnDeallocate")
    ((_, wrong),) = found(claim(config("gpu", given=parameters(text))))
    assert "demands deallocation WipeOnDeallocate" in wrong
    assert found(claim(config("gpu", given=parameters(text, "WipeOnDeallocate")))) == []


# --- of a claim that devices were given to -----------------------------------

VIEW = NodeView(
    node="n1",
    incarnation="i",
    boot_id="b",
    at=0.0,
    simulated=True,
    backend="simulated",
    devices=(
        DeviceView(
            uuid="w", name="gpu-0", accelerator="w", units=("u",), memory_bytes=1, state="CLEAN"
        ),
        DeviceView(
            uuid="p",
            name="mig-0",
            accelerator="w",
            units=("u",),
            memory_bytes=1,
            state="CLEAN",
            profile="1g.10gb",
        ),
    ),
)
UUIDS = {"gpu-0": "w", "mig-0": "p"}


def given(
    *entries: dict[str, Any], device: str = "gpu-0", created: Any = None
) -> resource_claim.Reading:
    """A claim of one device as the API has it, read."""
    document = {
        "metadata": {
            "name": "c",
            "namespace": SPACE,
            "uid": "1",
            "creationTimestamp": created or "2027-01-15T08:00:00Z",
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device}
                    ],
                    "config": list(entries),
                }
            }
        },
    }
    return resource_claim.read(document, uid="1", driver=DRIVER, pool="n1")


def entry(parameters: dict[str, Any], source: str = "FromClaim") -> dict[str, Any]:
    return {"source": source, **config("gpu", given=parameters)}


def refused(read: resource_claim.Reading, *, judge: Isolation = REQUIRED) -> str:
    with pytest.raises(errors.ClaimConfigInvalid) as caught:
        judge.refuse(read, VIEW, UUIDS, used_since=0.0)
    return str(caught.value)


def test_the_node_demands_both() -> None:
    """C2, C5: without policy or tag nothing is given where they are required; each is named."""
    told = refused(given())
    assert "no deallocation for request gpu" in told
    assert "no isolationTag for request gpu" in told
    assert "fleet tag issue" in told
    REQUIRED.refuse(given(entry(parameters())), VIEW, UUIDS, used_since=0.0)


def test_the_node_judges_the_device_given() -> None:
    """C5: the profile signed is that of the device, not of what a selector may have meant."""
    slice_only = entry(parameters(issued(profiles=("1g.10gb",))))
    REQUIRED.refuse(given(slice_only, device="mig-0"), VIEW, UUIDS, used_since=0.0)
    assert "given was one of profile whole" in refused(given(slice_only))


def test_the_node_judges_by_the_creation_of_the_claim() -> None:
    """C5: a tag that expires meanwhile is as good as on the day the claim was made; a claim
    without a date is as old as can be."""
    REQUIRED.refuse(
        given(entry(parameters()), created="2027-01-16T08:00:00Z"), VIEW, UUIDS, used_since=0.0
    )
    assert "expired" in refused(given(entry(parameters()), created="2027-01-17T08:00:00Z"))
    for wrong in ("soon", 3, "2027-01-15T08:00:00"):
        assert "good for claims created from" in refused(given(entry(parameters()), created=wrong))


def test_f67_a_claim_that_stands_is_used_anew_by_each_pod() -> None:
    """F67: the tag is good when the pod that wants the claim was made, not when the claim was."""
    standing = given(entry(parameters()), created="2027-01-16T08:00:00Z")
    last_day, later = seconds_of("2027-01-16T07:59:59Z"), seconds_of("2027-02-15T08:00:00Z")
    REQUIRED.refuse(standing, VIEW, UUIDS, used_since=last_day)
    with pytest.raises(errors.ClaimConfigInvalid, match="expired"):
        REQUIRED.refuse(standing, VIEW, UUIDS, used_since=later)


def test_a_class_may_raise_the_policy_and_never_show_a_tag() -> None:
    """C2, C5: the class's word counts towards the minimum; a tag is the claim's own."""
    base = {key: parameters()[key] for key in ("apiVersion", "kind")}
    text = issued(minimum="WipeOnDeallocate")
    by_class = entry({**base, "deallocation": "WipeOnDeallocate"}, "FromClass")
    REQUIRED.refuse(
        given(by_class, entry({**base, "isolationTag": text})), VIEW, UUIDS, used_since=0.0
    )
    with pytest.raises(errors.ClaimConfigInvalid, match="a class cannot show a tag"):
        given(entry({**base, "isolationTag": text}, "FromClass"))


def test_where_nothing_is_required_a_tag_that_is_shown_must_be_good() -> None:
    """C5: with a list, a bad tag is refused anywhere; without one, none is looked at."""
    JUDGE.refuse(given(), VIEW, UUIDS, used_since=0.0)
    assert "tenant-b" in refused(given(entry(BAD)), judge=JUDGE)
    Isolation(DRIVER).refuse(given(entry(BAD)), VIEW, UUIDS, used_since=0.0)
    only_policy = Isolation(DRIVER, required=True)
    assert "no deallocation" in refused(given(), judge=only_policy)
