"""Reading a claim: what is ours, what is not, and that no JSON surprises us."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.plugin.resource_claim import Consumer, Result, read

DRIVER = "gpu.example.com"
UID = "aaaaaaaa-0000-4000-8000-000000000001"
POD = {"resource": "pods", "name": "pod-a", "uid": "d0d0"}


def result(device: str = "gpu-0", **more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": DRIVER, "pool": "node-a", "device": device, **more}


def claim(*results: Any, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "claim-a", "namespace": "tenant-a", "uid": UID},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [POD],
            **status,
        },
    }


def mixed() -> dict[str, Any]:
    """The claim of case B37: ours, another driver's of a like name, ours on another node."""
    return claim(
        result("gpu-0"),
        {"request": "nic", "driver": "nic.example.org", "pool": "node-a", "device": "gpu-1"},
        {**result("gpu-3"), "request": "gpu2", "pool": "node-b"},
    )


def asked(found: Any) -> Any:
    return read(found, uid=UID, driver=DRIVER, pool="node-a")


def test_only_our_results_of_our_pool_count() -> None:
    """B37: of a mixed claim only our driver's device of this node is read (invariant 13)."""
    found = asked(mixed())
    assert found.results == (Result("gpu", "node-a", "gpu-0"),)
    assert (found.uid, found.namespace, found.name) == (UID, "tenant-a", "claim-a")


def test_results_of_others_are_never_judged() -> None:
    """B37: another driver's result may lack all that we would need; it is not ours to refuse."""
    found = asked(claim({"driver": "nic.example.org", "device": 5}, result()))
    assert [one.device for one in found.results] == ["gpu-0"]


def test_a_claim_without_anything_of_ours_is_empty() -> None:
    """Invariant 11: allocated, but only by other drivers: a reading without results."""
    foreign = {"request": "nic", "driver": "nic.example.org", "pool": "p", "device": "d"}
    assert asked(claim(foreign)).results == ()
    assert asked(claim()).results == ()
    assert asked({**claim(), "status": {"allocation": {}}}).results == ()


def test_requests_are_base_names_and_shares_are_kept() -> None:
    """Invariant 12: no "/" in a request; shareID and adminAccess as the allocation has them."""
    found = asked(
        claim(
            result(request="gpu/big", shareID="5a5a"),
            result("gpu-1", adminAccess=True, shareID=None),
        )
    )
    assert found.results == (
        Result("gpu", "node-a", "gpu-0", share_id="5a5a"),
        Result("gpu", "node-a", "gpu-1", admin=True),
    )


def test_only_pods_are_consumers() -> None:
    """B12: neither our own hold nor an unknown kind of consumer makes a claim alive."""
    own = {"apiGroup": "gpu.example.com", "resource": "holds", "name": "h", "uid": "h1"}
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g1"}
    other = {"apiGroup": "x.example.com", "resource": "pods", "name": "p", "uid": "p1"}
    found = asked(claim(result(), reservedFor=[own, group, other, {**POD, "apiGroup": ""}]))
    assert found.consumers == (Consumer("pod-a", "d0d0"),)
    assert asked(claim(result(), reservedFor=[own])).consumers == ()


def test_a_claim_being_deleted_is_read_like_any_other() -> None:
    """B75: a deletion time is a fact to report, never a reason to skip the claim."""
    found = claim(result())
    assert asked(found).terminating is False
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert asked(found).terminating is True
    assert asked(found).results == (Result("gpu", "node-a", "gpu-0"),)


def test_unknown_fields_change_nothing() -> None:
    """B19: fields of a newer API, and other drivers' device status, are passed over."""
    newer = claim(result(futureField=[None]), futureField={"x": 1}, devices=[None, {"driver": 1}])
    newer["status"]["allocation"]["futureField"] = None
    assert asked(newer) == asked(claim(result()))


def test_another_uid_is_another_claim() -> None:
    """Invariant 11: a claim of the same name with another UID is never read for the old one."""
    with pytest.raises(errors.ClaimReplaced, match=UID):
        read(claim(result()), uid="bbbb", driver=DRIVER, pool="node-a")


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_without_allocation_is_not_ready(status: Any) -> None:
    """B12: no allocation, no prepare; kubelet asks again."""
    with pytest.raises(errors.ClaimUnready, match="no allocation"):
        asked({**claim(), "status": status})


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (None, "the object"),
        ({"metadata": 5}, "metadata"),
        ({"metadata": {"name": "a", "namespace": "b"}}, "metadata.uid"),
        ({**claim(), "status": [0]}, "status"),
        ({**claim(), "status": "x"}, "status"),
        ({**claim(), "status": {"allocation": 1}}, "status.allocation"),
        (
            {**claim(), "status": {"allocation": {"devices": {"results": {}}}}},
            "status.allocation.devices.results",
        ),
        (claim(result(), None), "status.allocation.devices.results[1]"),
        (claim({"device": "gpu-0"}), "status.allocation.devices.results[0].driver"),
        (claim(result(pool=None)), "status.allocation.devices.results[0].pool"),
        (claim(result(device="")), "status.allocation.devices.results[0].device"),
        (claim(result(request="/sub")), "status.allocation.devices.results[0].request"),
        (claim(result(shareID=7)), "status.allocation.devices.results[0].shareID"),
        (claim(result(adminAccess="yes")), "status.allocation.devices.results[0].adminAccess"),
        (claim(result(), reservedFor={}), "status.reservedFor"),
        (claim(result(), reservedFor=[None]), "status.reservedFor[0]"),
        (claim(result(), reservedFor=[{**POD, "uid": None}]), "status.reservedFor[0].uid"),
    ],
)
def test_a_malformed_part_is_named(found: Any, named: str) -> None:
    """B19: what we need and cannot understand is a retryable error that names the field."""
    with pytest.raises(errors.ClaimUnready) as caught:
        asked(found)
    assert caught.value.field == named
    assert named in caught.value.detail


def config(**more: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "fleetscrub.dev/v1", "kind": "SanitizationConfig", **more}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


def configured(*entries: Any, **more: Any) -> dict[str, Any]:
    found = claim(result(**more))
    found["status"]["allocation"]["devices"]["config"] = list(entries)
    return found


def test_configuration_for_us_is_read_strictly_and_that_of_others_not_at_all() -> None:
    """B37: our opaque parameters become the demand, those of other drivers may be anything."""
    other = {"source": 5, "requests": 9, "opaque": {"driver": "nic.example.org", "parameters": 1}}
    unknown: dict[str, Any] = {"source": "FromClaim", "opaque": None, "futureKind": {}}
    assert asked(configured(other, unknown)).demand.fresh is False
    assert asked(configured(other, config(profile="strict"))).demand.fresh is True
    with pytest.raises(errors.ClaimConfigInvalid):
        asked(configured(config(profil="strict")))


def test_configuration_is_matched_with_the_full_request() -> None:
    """Invariant 13: an entry may name the request, or the very alternative that was chosen."""
    for name, fresh in (("gpu", True), ("gpu/big", True), ("gpu/small", False), ("nic", False)):
        entry = {**config(profile="strict"), "requests": [name]}
        assert asked(configured(entry, request="gpu/big")).demand.fresh is fresh


def test_what_is_stated_goes_with_its_result() -> None:
    """C2, C5: each result with the policy and the tag of its full request, and when the server
    made the claim."""
    found = configured({**config(isolationTag="one"), "requests": ["gpu/large"]})
    (stated,) = asked(found).statements
    assert (stated.isolation_tag, stated.deallocation) == ("", None)
    found["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/large"
    found["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    (stated,) = asked(found).statements
    assert stated.isolation_tag == "one"
    assert asked(found).created_at == 1_800_000_000.0


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (None, "status.allocation.devices.config[0]"),
        ({**config(), "source": "FromMoon"}, "status.allocation.devices.config[0].source"),
        ({**config(), "requests": "gpu"}, "status.allocation.devices.config[0].requests"),
        ({**config(), "requests": [1]}, "status.allocation.devices.config[0].requests[0]"),
    ],
)
def test_a_malformed_entry_for_us_is_named(entry: Any, field: str) -> None:
    """Whose wish it is and for what must be readable before it is judged."""
    with pytest.raises(errors.ClaimUnready) as caught:
        asked(configured(entry))
    assert caught.value.field == field


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


def paths(found: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(found, dict):
        inner = list(found.items())
    elif isinstance(found, list):
        inner = list(enumerate(found))
    return [prefix, *(p for key, value in inner for p in paths(value, (*prefix, key)))]


def rich() -> dict[str, Any]:
    found = configured(
        {**config(coverageFloor=0.99, reset="always", profile="strict"), "requests": ["gpu"]},
        {**config(), "source": "FromClass"},
        shareID="5a5a",
        adminAccess=False,
    )
    found["metadata"]["deletionTimestamp"] = None
    return found


PLACES = paths(rich())


def with_value(found: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    target = found
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return found


@given(path=st.sampled_from(PLACES), value=json_values)
def test_no_json_surprises_the_reader(path: tuple[Any, ...], value: Any) -> None:
    """B19: whatever stands at whatever place, the answer is a reading or an error of ours."""
    try:
        found = asked(with_value(rich(), path, value))
    except (errors.ClaimUnready, errors.ClaimReplaced, errors.ClaimConfigInvalid):
        return
    assert found.uid == UID
    assert all("/" not in one.request and one.pool == "node-a" for one in found.results)


@given(value=json_values)
def test_no_json_at_all_surprises_the_reader(value: Any) -> None:
    """B19: an object that is no claim is an error that says so."""
    with pytest.raises((errors.ClaimUnready, errors.ClaimReplaced)):
        asked(value)
