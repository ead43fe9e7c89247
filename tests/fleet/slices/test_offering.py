"""From view and memory to the devices a pool lists."""

from __future__ import annotations

from typing import Any

from fleet.messages import DeviceView, NodeView, ReasonView
from fleet.profiles import Profile
from fleet.slices.comparing import Feature
from fleet.slices.gate import GateRules
from fleet.slices.offering import TAINTS_UNAVAILABLE, Circumstances, Offer, offer, offer_unseen
from fleet.slices.rendering import AGENT, Terms

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
        {"not-clean": ("", "NoSchedule")}, {"not-clean": ("", "NoSchedule")}, {}
    ]  # fmt: skip


def test_without_view_and_memory_nothing_is_claimed() -> None:
    """An empty pool would say that the node has no device; nobody knows that."""
    assert offer_unseen(silent_s=100.0, given=given()) is None


def _reason(code: str) -> ReasonView:
    return ReasonView(code=code, source="health", liftable=True)
