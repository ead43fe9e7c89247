"""From view and memory to the devices a pool lists."""

from __future__ import annotations

from typing import Any

from fleet.core.messages import DeviceView, LostDevice, NodeView, ReasonView
from fleet.core.profiles import Profile
from fleet.kube.marks import AGENT
from fleet.kube.slice_equality import Feature
from fleet.plugin.slices.device_attributes import Terms
from fleet.plugin.slices.gate import GateRules
from fleet.plugin.slices.offer import (
    REMEDIES,
    TAINTS_UNAVAILABLE,
    Circumstances,
    Offer,
    offer,
    offer_unseen,
)

NOW = 1_000_000.0
TERMS = Terms(driver="d.example.com", node="node-a", profile=Profile.STRICT)
RULES = GateRules(driver="d.example.com", fresh_s=60.0)


def device(number: int, **changes: Any) -> DeviceView:
    """A clean, fresh device gpu-<number>."""
    given: dict[str, Any] = {
        "uuid": f"GPU-{number}", "name": f"gpu-{number}", "accelerator": f"GPU-{number}",
        "units": (f"GPU-{number}/all",), "memory_bytes": 1024, "state": "CLEAN",
        "checked_at": NOW, "since": 5.0, **changes,
    }  # fmt: skip
    return DeviceView(**given)


def node(*devices: DeviceView, degraded: tuple[str, ...] = ()) -> NodeView:
    """A node with these devices."""
    return NodeView(
        node="node-a", incarnation="i", boot_id="b", at=NOW, simulated=True, backend="s",
        devices=devices, degraded=degraded,
    )  # fmt: skip


def given(**changes: Any) -> Circumstances:
    """Usual circumstances."""
    return Circumstances(terms=TERMS, rules=RULES, **changes)


def remembered(found: Offer) -> dict[str, Any]:
    """What a publisher remembers after this offer."""
    return {str(entry["name"]): entry for entry in found.devices}


def taints(found: Offer, name: str) -> dict[str, tuple[str, str]]:
    """Taints of a device: key without driver -> (value, effect)."""
    (entry,) = [one for one in found.devices if one["name"] == name]
    return {
        taint["key"].partition("/")[2]: (taint.get("value", ""), taint["effect"])
        for taint in entry.get("taints", ())
    }


def test_all_devices_are_offered_in_the_order_of_the_view() -> None:
    """Fit or not, a device is listed: taints say what may be done with it."""
    dirty = device(1, state="DIRTY")
    found = offer(node(device(2), dirty, device(0)), now=NOW, given=given())
    assert [entry["name"] for entry in found.devices] == ["gpu-2", "gpu-1", "gpu-0"]
    assert taints(found, "gpu-1") == {"not-clean": ("", "NoSchedule")}
    assert found.names["GPU-2"] == "gpu-2"


def test_a_barred_device_is_withdrawn_with_its_reason() -> None:
    """B4: hardware somebody else publishes is not offered, and the others are."""
    found = offer(node(device(0), device(1)), now=NOW, given=given(barred={"GPU-0": "theirs"}))
    assert found.withdrawn == {"GPU-0": "theirs"}
    assert [entry["name"] for entry in found.devices] == ["gpu-1"]


def test_without_taints_an_unfit_device_is_withdrawn() -> None:
    """Invariant 31: on a server that drops taints, whatever needs one leaves the slice."""
    broken = device(0, state="QUARANTINED", reasons=(_reason("xid"),))
    dropped = frozenset({Feature.TAINTS})
    found = offer(node(broken, device(1)), now=NOW, given=given(dropped=dropped))
    assert found.withdrawn == {"GPU-0": TAINTS_UNAVAILABLE}
    assert found.quarantined == {"GPU-0": 5.0}
    assert [entry["name"] for entry in found.devices] == ["gpu-1"]


def test_fields_the_server_drops_are_not_sent() -> None:
    """Reference 6: the stored form becomes the desired one, or the writes never end."""
    dropped = frozenset({Feature.BINDING_CONDITIONS, Feature.ALLOCATION_LIMIT})
    found = offer(node(device(0)), now=NOW, given=given(dropped=dropped, agent=True))
    gone = {"bindsToNode", "bindingConditions", "bindingFailureConditions",
            "allowMultipleAllocations"}  # fmt: skip
    assert all(not gone & entry.keys() for entry in found.devices)
    kept = offer(node(device(0)), now=NOW, given=given())
    assert gone <= kept.devices[0].keys()


def test_a_device_the_node_forgot_stays_as_lost() -> None:
    """B24: index 3 not found: seven go on, gpu-3 keeps its name with a NoExecute-grade taint."""
    eight = offer(node(*map(device, range(8))), now=NOW, given=given())
    seven = node(*(device(n) for n in range(8) if n != 3))
    found = offer(seven, now=NOW, given=given(remembered=remembered(eight)))
    assert found.lost == ("gpu-3",)
    assert taints(found, "gpu-3")["quarantined"] == ("device-lost", "NoExecute")
    assert all(taints(found, f"gpu-{n}") == {} for n in range(8) if n != 3)


def test_a_node_that_knows_little_evicts_nobody() -> None:
    """B24: an empty or degraded view is no proof that devices are gone: no eviction."""
    two = offer(node(device(0), device(1)), now=NOW, given=given())
    for view in (node(), node(device(0), degraded=("journal set aside",))):
        found = offer(view, now=NOW, given=given(remembered=remembered(two)))
        assert taints(found, "gpu-1")["quarantined"] == ("device-lost", "NoSchedule")


def test_a_replaced_card_takes_the_name_over() -> None:
    """A name belongs to the device that has it now; a renamed device is not lost."""
    old = remembered(offer(node(device(0), device(1)), now=NOW, given=given()))
    new = device(0, uuid="GPU-9", accelerator="GPU-9")
    renamed = device(1, name="gpu-7")
    found = offer(node(new, renamed), now=NOW, given=given(remembered=old))
    assert found.lost == ()
    assert [entry["name"] for entry in found.devices] == ["gpu-0", "gpu-7"]


def test_the_agent_device_comes_last_and_only_when_asked() -> None:
    """DESIGN 7: one extra device, never tainted, never lost."""
    with_agent = offer(node(device(0, state="DIRTY")), now=NOW, given=given(agent=True))
    assert [entry["name"] for entry in with_agent.devices] == ["gpu-0", AGENT]
    assert "taints" not in with_agent.devices[1]
    without = offer(node(device(0)), now=NOW, given=given(remembered=remembered(with_agent)))
    assert [entry["name"] for entry in without.devices] == ["gpu-0"]


def test_without_any_view_what_is_there_becomes_stale() -> None:
    """B7: a plugin that never heard of the node service keeps slices, but offers nothing old."""
    before = offer(node(device(0), device(1, state="DIRTY")), now=NOW, given=given(agent=True))
    known = given(remembered=remembered(before))
    early = offer_unseen(silent_s=60.0, given=known)
    late = offer_unseen(silent_s=61.0, given=known)
    assert early is not None
    assert late is not None
    assert early.devices == before.devices
    assert [taints(late, name) for name in ("gpu-0", "gpu-1", AGENT)] == [
        {"not-clean": ("node-silent", "NoSchedule")},
        {"not-clean": ("node-silent", "NoSchedule")},
        {},
    ]  # fmt: skip


def test_without_view_and_memory_nothing_is_claimed() -> None:
    """An empty pool would say that the node has no device; nobody knows that."""
    assert offer_unseen(silent_s=100.0, given=given()) is None


def test_the_agent_device_is_there_before_the_node_is_heard_of() -> None:
    """DESIGN 7: who owns the node starts with a claim of it: without, both would wait for ever."""
    first = offer_unseen(silent_s=100.0, given=given(agent=True))
    assert first is not None
    assert [entry["name"] for entry in first.devices] == [AGENT]
    assert "taints" not in first.devices[0]
    earlier = offer(node(device(0)), now=NOW, given=given())
    both = offer_unseen(silent_s=0.0, given=given(agent=True, remembered=remembered(earlier)))
    assert both is not None
    assert [entry["name"] for entry in both.devices] == ["gpu-0", AGENT]


def partitioned(number: int = 0) -> tuple[DeviceView, ...]:
    """An accelerator of two slices with its two partitions."""
    uuid = f"GPU-{number}"
    slices = (f"{uuid}/m0", f"{uuid}/m1")
    return (
        device(number, units=slices),
        *(
            device(number, uuid=f"PART-{number}-{at}", name=f"gpu-{number}-1g-{at}", units=(unit,))
            for at, unit in enumerate(slices)
        ),
    )


def consumed(found: Offer) -> dict[str, set[str]]:
    """Counters by device, as far as it consumes any."""
    return {
        entry["name"]: {name for one in entry["consumesCounters"] for name in one["counters"]}
        for entry in found.devices
        if "consumesCounters" in entry
    }


def test_devices_that_share_memory_consume_its_counters() -> None:
    """E1, KEP-4815: accelerator and partitions of the same memory, never one that is alone."""
    found = offer(node(*partitioned(), device(1)), now=NOW, given=given(agent=True))
    assert consumed(found) == {
        "gpu-0": {"m0", "m1"}, "gpu-0-1g-0": {"m0"}, "gpu-0-1g-1": {"m1"}
    }  # fmt: skip
    assert [one["name"] for one in found.counter_sets] == ["gpu-0-memory"]
    alone = offer(node(device(1)), now=NOW, given=given(agent=True))
    assert (consumed(alone), alone.counter_sets) == ({}, ())
    assert list(alone.devices) == list(found.devices[3:])


def test_a_server_without_counters_gets_plain_devices() -> None:
    """Invariant 31: where the gate is off nothing is said of counters, and all stay on offer."""
    dropped = frozenset({Feature.COUNTERS})
    found = offer(node(*partitioned()), now=NOW, given=given(dropped=dropped))
    assert [entry["name"] for entry in found.devices] == ["gpu-0", "gpu-0-1g-0", "gpu-0-1g-1"]
    assert (consumed(found), found.counter_sets, found.withdrawn) == ({}, (), {})
    assert "DRAPartitionableDevices" in REMEDIES[Feature.COUNTERS]


def test_every_dropped_field_has_a_remedy() -> None:
    """D10: what a server does not keep is told with what to do about it."""
    assert REMEDIES.keys() == set(Feature)


def test_a_withdrawn_partition_changes_no_counter_set() -> None:
    """Reference 2.2: else a withdrawal would make the pool unallocatable for a moment. A device of
    which nothing is offered any more has no set."""
    view = node(*partitioned())
    all_of_it = offer(view, now=NOW, given=given())
    barred = {"PART-0-1": "theirs"}
    found = offer(view, now=NOW, given=given(barred=barred))
    assert found.counter_sets == all_of_it.counter_sets
    gone = offer(view, now=NOW, given=given(barred=dict.fromkeys(all_of_it.names, "retired")))
    assert (gone.devices, gone.counter_sets) == ((), ())


def test_what_is_published_from_memory_keeps_its_counters() -> None:
    """B24, reference 2.2: a lost card, and a node that is silent, still consume what a set has."""
    before = offer(node(*partitioned(), device(1)), now=NOW, given=given())
    known = given(remembered=remembered(before))
    lost = offer(node(device(1)), now=NOW, given=known)
    silent = offer_unseen(silent_s=0.0, given=known)
    assert silent is not None
    for found in (lost, silent):
        assert consumed(found) == consumed(before)
        assert found.counter_sets == before.counter_sets
    plain = given(remembered=remembered(before), dropped=frozenset({Feature.COUNTERS}))
    for told in (
        offer(node(device(1)), now=NOW, given=plain),
        offer_unseen(silent_s=0, given=plain),
    ):
        assert told is not None
        assert (consumed(told), told.counter_sets) == ({}, ())


def _reason(code: str) -> ReasonView:
    return ReasonView(code=code, source="health", liftable=True)


def missing(number: int, *, closed: str = "", **changes: Any) -> LostDevice:
    """gpu-<number> as the node's journal has it, the device itself being gone."""
    return LostDevice(device=device(number, state="QUARANTINED", **changes), closed=closed)


def test_b38_a_lost_device_is_published_from_the_journal() -> None:
    """B38: what the node has lost is in its slices although no earlier slice remembers it."""
    view = node(device(0)).model_copy(update={"lost": (missing(1),)})
    found = offer(view, now=NOW, given=given())
    assert found.lost == ("gpu-1",)
    assert taints(found, "gpu-1")["quarantined"] == ("device-lost", "NoExecute")
    assert taints(found, "gpu-0") == {}
    again = offer(view, now=NOW, given=given(remembered=remembered(found)))
    assert again.devices == found.devices, "said once, whoever remembers it"
    barred = offer(view, now=NOW, given=given(barred={"GPU-1": "retired"}))
    assert [entry["name"] for entry in barred.devices] == ["gpu-0"]


def test_b38_a_replaced_board_leaves_the_slice_with_its_last_claim() -> None:
    """B38: an incident that is closed keeps no entry, unless a claim still names the device."""
    old = remembered(offer(node(device(0), device(1)), now=NOW, given=given()))
    for claim, left in (("", ()), ("claim-a", ("gpu-1",))):
        closed = missing(1, closed="board replaced by GPU-9 (0000:1b:00.0)", claim=claim)
        view = node(device(0)).model_copy(update={"lost": (closed,)})
        for before in ({}, old):
            assert offer(view, now=NOW, given=given(remembered=before)).lost == left
