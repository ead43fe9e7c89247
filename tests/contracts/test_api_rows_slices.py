"""What a real API server answers to writes of slices (experiments 6)."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.kube.base import Object
from tests.contracts.api_ground import DONE, FAILED, SLICES, Ground, condition, entry
from tests.contracts.api_server import APPLY, Reply

WITH_CONDITIONS = {"bindingConditions": [DONE], "bindingFailureConditions": [FAILED]}


def devices(count: int, **fields: object) -> list[Object]:
    """Devices d0, d1 ... with these fields."""
    return [{"name": f"d{n}", **fields} for n in range(count)]


def taint(key: str = "x.example.com/quarantined", **fields: object) -> Object:
    """A taint."""
    return {"key": key, "value": "bad", "effect": "NoSchedule", **fields}


def taints_of(found: Object, index: int = 0) -> list[Object]:
    """The taints of one device of a slice."""
    taints: list[Object] = found["spec"]["devices"][index]["taints"]
    return taints


def test_time_added_is_set_anew_when_left_out(ground: Ground) -> None:
    """6: a rewrite that omits timeAdded restarts it; sent back it is kept."""
    first = ground.publish(devices(1, taints=[taint()])).ok()
    when = taints_of(first)[0]["timeAdded"]
    ground.server.later()
    kept = ground.rewrite(first, devices(1, taints=[taint(timeAdded=when)])).ok()
    assert taints_of(kept)[0]["timeAdded"] == when
    again = ground.rewrite(kept, devices(1, taints=[taint()])).ok()
    assert taints_of(again)[0]["timeAdded"] > when


def test_a_time_added_is_cut_to_seconds_and_may_be_future(ground: Ground) -> None:
    """6: microseconds are cut; a future time is accepted."""
    when = "2031-01-01T00:00:00.987654Z"
    found = ground.publish(devices(1, taints=[taint(timeAdded=when)])).ok()
    assert taints_of(found)[0]["timeAdded"] == "2031-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "taints",
    [
        [taint(), taint()],
        [taint(), taint(effect="NoExecute")],
        [taint(effect="None")],
        [taint(f"x.example.com/t{n}") for n in range(16)],
    ],
    ids=["twice", "two-effects", "effect-none", "sixteen"],
)
def test_taints_that_are_taken(ground: Ground, taints: list[Object]) -> None:
    """6: the same key and effect twice, two effects, effect None, 16 taints: taken."""
    assert ground.publish(devices(1, taints=taints)).code == 201


@pytest.mark.parametrize(
    "taints",
    [
        [taint(effect="Whatever")],
        [taint(value="no label value!")],
        [taint(f"x.example.com/t{n}") for n in range(17)],
    ],
    ids=["effect", "value", "seventeen"],
)
def test_taints_that_are_refused(ground: Ground, taints: list[Object]) -> None:
    """6: unknown effect, a value that is no label value, 17 taints: 422."""
    assert ground.publish(devices(1, taints=taints)).code == 422


def test_a_first_taint_can_overflow_a_slice(ground: Ground) -> None:
    """6, B09: 65 devices fit, with a first taint they do not: 422 FieldValueTooMany."""
    found = ground.publish(devices(65)).ok()
    tainted = devices(65)
    tainted[37]["taints"] = [taint()]
    reply = ground.rewrite(found, tainted)
    assert (reply.code, reply.reason) == (422, "Invalid")
    cause = ("FieldValueTooMany", "spec.devices", "Too many: 65: must have at most 64 items")
    assert reply.causes == [cause]


def test_sixty_four_devices_take_a_taint(ground: Ground) -> None:
    """6, B09: 64 devices and a taint: 200."""
    found = ground.publish(devices(64)).ok()
    tainted = devices(64)
    tainted[0]["taints"] = [taint()]
    assert ground.rewrite(found, tainted).code == 200


@pytest.mark.parametrize(("count", "code"), [(128, 201), (129, 422)])
def test_a_slice_holds_128_devices(ground: Ground, count: int, code: int) -> None:
    """6: 128 devices with binding conditions fit when none is tainted, 129 do not."""
    assert ground.publish(devices(count, **WITH_CONDITIONS)).code == code


def test_both_condition_lists_come_together(ground: Ground) -> None:
    """6: bindingConditions alone: 422 with the field's own words."""
    reply = ground.publish(devices(1, bindingConditions=[DONE]))
    assert reply.code == 422
    assert "bindingFailureConditions are required to use bindingConditions" in reply.message


def test_four_binding_conditions_at_most(ground: Ground) -> None:
    """6: five entries: 422."""
    many = [f"x.example.com/c{n}" for n in range(5)]
    fields = {"bindingConditions": many, "bindingFailureConditions": [FAILED]}
    assert ground.publish(devices(1, **fields)).code == 422


def test_binds_to_node_may_stand_alone(ground: Ground) -> None:
    """6: bindsToNode without conditions is accepted."""
    found = ground.publish(devices(1, bindsToNode=True)).ok()
    assert found["spec"]["devices"][0]["bindsToNode"] is True


def test_the_devices_of_a_slice_have_one_owner(ground: Ground) -> None:
    """6: apply to a slice that another write made: 409 on .spec.devices."""
    made = ground.publish(devices(1)).ok()
    body = ground.slice(devices(2), name=made["metadata"]["name"])
    path = f"{SLICES}/{made['metadata']['name']}?fieldManager=rows"
    reply = ground.send("PATCH", path, body, content_type=APPLY)
    assert reply.code == 409
    assert (".spec.devices" in {cause[1] for cause in reply.causes}) is True


def test_quantities_come_back_canonical(ground: Ground) -> None:
    """6: "1024Mi" reads back as "1Gi": what was sent is not what is read."""
    found = ground.publish(devices(1, capacity={"memory": {"value": "1024Mi"}})).ok()
    assert found["spec"]["devices"][0]["capacity"]["memory"]["value"] == "1Gi"


def test_a_slice_keeps_its_driver_pool_and_node(ground: Ground) -> None:
    """spec.driver, spec.pool.name and spec.nodeName are immutable: 422."""
    made = ground.publish(devices(1)).ok()
    path = f"{SLICES}/{made['metadata']['name']}"
    for change in (
        {"driver": "other.example.com"},
        {"nodeName": "other"},
        {"pool": {**made["spec"]["pool"], "name": "other"}},
    ):
        reply = ground.send("PUT", path, {**made, "spec": {**made["spec"], **change}})
        assert reply.code == 422
        assert "field is immutable" in reply.message


def counter_set(name: str = "gpu-0-memory", count: int = 2, amount: str = "1") -> Object:
    """A set of counters m0, m1 ..."""
    return {"name": name, "counters": {f"m{n}": {"value": amount} for n in range(count)}}


def consuming(*sets: str, count: int = 1) -> Object:
    """Fields of a device that consumes m0, m1 ... of these sets."""
    amounts = {f"m{n}": {"value": "1"} for n in range(count)}
    return {"consumesCounters": [{"counterSet": name, "counters": amounts} for name in sets]}


def publish(ground: Ground, **spec: Any) -> Reply:
    """POST of a slice whose spec has this instead of devices."""
    body = ground.slice([])
    del body["spec"]["devices"]
    return ground.send("POST", SLICES, {**body, "spec": {**body["spec"], **spec}})


def test_counter_sets_are_kept_in_a_slice_of_their_own(ground: Ground) -> None:
    """Reference 2.1: sets alone are taken as sent; beside devices they are not."""
    sets = [counter_set(), counter_set("gpu-1-memory", 32)]
    found = publish(ground, sharedCounters=sets).ok()
    assert found["spec"]["sharedCounters"] == sets
    assert "devices" not in found["spec"]
    reply = publish(ground, sharedCounters=sets, devices=devices(1))
    assert (reply.code, [cause[1] for cause in reply.causes]) == (422, ["spec"])
    told = "only one of `sharedCounters` or `devices` is allowed"
    assert told in reply.causes[0][2]


def test_amounts_of_counters_come_back_canonical(ground: Ground) -> None:
    """Reference 6: they are quantities like any other."""
    found = publish(ground, sharedCounters=[counter_set(count=1, amount="1024Mi")]).ok()
    assert found["spec"]["sharedCounters"] == [counter_set(count=1, amount="1Gi")]


def test_what_a_device_consumes_is_kept_whether_it_exists_or_not(ground: Ground) -> None:
    """Reference 6: the server sees one slice; whether the pool has the set only the scheduler
    asks."""
    found = ground.publish(devices(1, **consuming("gpu-0-memory", "nowhere"))).ok()
    assert (
        found["spec"]["devices"][0]["consumesCounters"]
        == (consuming("gpu-0-memory", "nowhere")["consumesCounters"])
    )


@pytest.mark.parametrize(
    ("sets", "field"),
    [
        ([counter_set(count=33)], "spec.sharedCounters[0].counters"),
        ([counter_set(f"s{n}") for n in range(9)], "spec.sharedCounters"),
        ([counter_set(), counter_set()], "spec.sharedCounters[1]"),
        ([counter_set(count=0)], "spec.sharedCounters[0].counters"),
        ([counter_set("A_b")], "spec.sharedCounters[0].name"),
        ([counter_set("")], "spec.sharedCounters[0].name"),
        ([{"name": "a", "counters": {"M0": {"value": "1"}}}], "spec.sharedCounters[0].counters"),
    ],
    ids=["33-counters", "nine-sets", "twice", "no-counter", "no-label", "no-name", "counter"],
)
def test_counter_sets_that_are_refused(ground: Ground, sets: list[Object], field: str) -> None:
    """Reference 2.1: at most 8 sets of 32 counters each, names are DNS labels."""
    reply = publish(ground, sharedCounters=sets)
    assert (reply.code, {cause[1] for cause in reply.causes}) == (422, {field})


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        (consuming("a", "b", "c"), ""),
        (consuming("a", "a"), "[1]"),
        (consuming("a", count=0), "[0].counters"),
        (consuming("a", count=33), "[0].counters"),
        (consuming(""), "[0].counterSet"),
        (consuming("A_b"), "[0].counterSet"),
    ],
    ids=["three-sets", "twice", "no-counter", "33-counters", "no-set", "no-label"],
)
def test_consumptions_that_are_refused(ground: Ground, fields: Object, place: str) -> None:
    """Reference 2.1: of two sets at most, once each."""
    reply = ground.publish(devices(1, **fields))
    expected = f"spec.devices[0].consumesCounters{place}"
    assert (reply.code, {cause[1] for cause in reply.causes}) == (422, {expected})


@pytest.mark.parametrize(("count", "code"), [(64, 201), (65, 422)])
def test_sixty_four_devices_consume_counters(ground: Ground, count: int, code: int) -> None:
    """Reference 2.1, B09: as with taints: one that consumes halves what fits."""
    assert ground.publish([*devices(count - 1), {"name": "x", **consuming("a")}]).code == code


def test_a_slice_that_is_gone_changes_no_claim(ground: Ground) -> None:
    """6: after its slice was deleted the claim is unchanged and conditions are accepted."""
    made = ground.publish(devices(1)).ok()
    claim = ground.claim("d0")
    before = ground.get(claim)
    ground.send("DELETE", f"{SLICES}/{made['metadata']['name']}").ok()
    assert ground.get(claim) == before
    assert ground.confirm(claim, entry("d0", condition())).code == 200


def test_a_collection_is_deleted_by_node_and_driver(ground: Ground) -> None:
    """B34: kubelet's deletecollection takes the slices of one node and driver, no other."""
    mine = ground.slice(devices(1))
    mine["spec"]["nodeName"] = "row-node-wiped"
    mine = ground.send("POST", SLICES, mine).ok()
    other = ground.publish(devices(1)).ok()
    driver = mine["spec"]["driver"]
    selector = f"fieldSelector=spec.nodeName%3Drow-node-wiped%2Cspec.driver%3D{driver}"
    assert ground.send("DELETE", f"{SLICES}?{selector}").code == 200
    assert ground.send("GET", f"{SLICES}/{mine['metadata']['name']}").code == 404
    assert ground.send("GET", f"{SLICES}/{other['metadata']['name']}").code == 200
