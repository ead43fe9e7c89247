"""The pool gate: who may be allocated, and which taints say so."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core.messages import DeviceView, NodeView, ReasonView
from fleet.core.model import State
from fleet.devices.health.reasons import CATALOGUE
from fleet.plugin.slices.gate import EVICTING, VALUE_MAX, GateRules, Verdict, folded, verdicts

NOW = 1_000_000.0
RULES = GateRules(driver="d.example.com", fresh_s=60.0)
LABEL_VALUE = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")


def device(uuid: str = "G0", **changes: Any) -> DeviceView:
    """A clean, freshly checked device."""
    given: dict[str, Any] = {
        "uuid": uuid,
        "name": uuid.lower(),
        "accelerator": uuid,
        "units": (f"{uuid}/all",),
        "memory_bytes": 1024,
        "state": "CLEAN",
        "checked_at": NOW - 10,
        **changes,
    }
    return DeviceView(**given)


def node(*devices: DeviceView, at: float = NOW) -> NodeView:
    """A node with these devices."""
    return NodeView(
        node="n", incarnation="i", boot_id="b", at=at, simulated=True, backend="simulated",
        devices=devices,
    )  # fmt: skip


def reason(code: str) -> ReasonView:
    """An open reason."""
    return ReasonView(code=code, source="health", liftable=True)


def judge(found: DeviceView, *, rules: GateRules = RULES, at: float = NOW) -> Verdict:
    """The verdict on a node's only device."""
    return verdicts(node(found, at=at), now=NOW, rules=rules)[found.uuid]


def keys(verdict: Verdict) -> set[str]:
    """Taint keys without the driver."""
    return {str(taint["key"]).partition("/")[2] for taint in verdict.taints}


def shown(verdict: Verdict) -> dict[str, str]:
    """Values of taints by their keys without the driver."""
    return {str(one["key"]).partition("/")[2]: one.get("value", "") for one in verdict.taints}


def test_a_clean_fresh_device_carries_no_taint() -> None:
    """B7: proven clean and freshly healthy: allocatable."""
    verdict = judge(device())
    assert verdict.allocatable
    assert verdict.taints == ()


@pytest.mark.parametrize("state", [s for s in State if s is not State.CLEAN])
def test_every_other_state_is_tainted(state: State) -> None:
    """B2: dirty, in work, in use, held or out of service: never allocatable."""
    verdict = judge(device(state=state))
    assert not verdict.allocatable
    assert "not-clean" in keys(verdict)


@pytest.mark.parametrize(
    "changes",
    [{"checked_at": 0.0}, {"checked_at": NOW - 61}, {"checked_at": NOW + 61}, {"claim": "c1"},
     {"attached": ("c2",)}],
)  # fmt: skip
def test_clean_alone_is_not_enough(changes: dict[str, Any]) -> None:
    """B7, B35: an old check, a broken clock, a claim or an onlooker keep a device from anybody."""
    verdict = judge(device(**changes))
    assert not verdict.allocatable
    assert keys(verdict) == {"not-clean"}


def test_a_silent_node_makes_every_device_stale() -> None:
    """B7: what nobody has looked at for a minute is not known to be clean."""
    assert judge(device(), at=NOW - 59).allocatable
    assert keys(judge(device(), at=NOW - 61)) == {"not-clean"}


def test_a_node_that_can_prepare_nothing_taints_every_device() -> None:
    """What every prepare would fail for is no pod's to find out; the first reason is told."""
    blocked = node(device(), device("G1", state="IN_USE", claim="c", held=True)).model_copy(
        update={"blocked": ("disk full", "no cgroups")}
    )
    for verdict in verdicts(blocked, now=NOW, rules=RULES).values():
        assert (verdict.allocatable, verdict.why) == (False, "disk full")
        assert keys(verdict) == {"not-clean"}
    free = verdicts(blocked.model_copy(update={"blocked": ()}), now=NOW, rules=RULES)
    assert free["G0"].allocatable


def test_moving_between_unfit_states_changes_no_taint() -> None:
    """DESIGN 5, Slices: no write for states that do not change what the scheduler may do."""
    unfit = [
        judge(device(state=state)).taints
        for state in (State.DIRTY, State.WIPING, State.CHECKING, State.IN_USE)
    ]
    assert all(one == other for one, other in itertools.pairwise(unfit))
    assert unfit[0] == ({"key": RULES.not_clean, "effect": "NoSchedule"},)
    retest = device(state=State.RETESTING, reasons=(reason("xid"),))
    broken = device(state=State.QUARANTINED, reasons=(reason("xid"),))
    assert judge(retest).taints == judge(broken).taints


@pytest.mark.parametrize("state", State)
def test_every_state_of_a_device_has_its_word_in_the_taints(state: State) -> None:
    """Whoever reads slices alone sees of each state whether to wait, to look, or to repair."""
    open_reasons = (reason("xid"),) if state in (State.QUARANTINED, State.RETESTING) else ()
    found = judge(device(state=state, reasons=open_reasons))
    assert (
        shown(found)
        == {
            State.HELD: {"not-clean": "held"},
            State.DIRTY: {"not-clean": ""},
            State.WIPING: {"not-clean": ""},
            State.CHECKING: {"not-clean": ""},
            State.CLEAN: {},
            State.IN_USE: {"not-clean": ""},
            State.QUARANTINED: {"not-clean": "", "quarantined": "xid"},
            State.RETESTING: {"not-clean": "", "quarantined": "xid"},
        }[state]
    )


def test_where_waiting_does_not_help_the_taint_says_why() -> None:
    """What keeps a device off though it is clean is named in the taint's value."""
    assert shown(judge(device(checked_at=NOW - 61))) == {"not-clean": "health-not-read"}
    assert shown(judge(device(attached=("c2",)))) == {"not-clean": "admin-access"}
    assert shown(judge(device(), at=NOW - 61)) == {"not-clean": "node-silent"}
    blocked = node(device(), device("G1", state="DIRTY")).model_copy(update={"blocked": ("full",)})
    for verdict in verdicts(blocked, now=NOW, rules=RULES).values():
        assert shown(verdict) == {"not-clean": "node-blocked"}


def test_quarantine_is_a_second_taint_with_the_code() -> None:
    """DESIGN 5: quarantined comes beside not-clean, so that tolerating one is not enough (B17)."""
    verdict = judge(device(state=State.QUARANTINED, reasons=(reason("remap-failed"),)))
    assert keys(verdict) == {"not-clean", "quarantined"}
    assert verdict.taints[1]["value"] == "remap-failed"
    assert {taint["effect"] for taint in verdict.taints} == {"NoSchedule"}
    assert verdict.quarantined


def test_a_fault_in_use_is_published_at_once() -> None:
    """DESIGN 4: FaultSeen keeps IN_USE but the reason shows, and the tenant is not evicted."""
    verdict = judge(device(state=State.IN_USE, claim="c", reasons=(reason("xid"),)))
    assert "quarantined" in keys(verdict)
    assert {taint["effect"] for taint in verdict.taints} == {"NoSchedule"}


def test_a_lost_device_evicts() -> None:
    """B24: a lost device gets a NoExecute-grade quarantine taint that names the reason."""
    verdict = judge(device(state=State.IN_USE, claim="c", reasons=(reason("device-lost"),)))
    assert verdict.taints[1] == {
        "key": "d.example.com/quarantined",
        "value": "device-lost",
        "effect": "NoExecute",
    }


def test_evicting_codes_exist() -> None:
    """A code that evicts is one of the catalogue's."""
    assert CATALOGUE.keys() >= EVICTING


def test_a_bound_but_unexposed_device_evicts_only_when_quarantined() -> None:
    """DESIGN 5: bound but not exposed when the device fails: NoExecute."""
    broken = device(state=State.QUARANTINED, reasons=(reason("xid"),))
    view = node(broken, device("G1", state=State.DIRTY))
    found = verdicts(view, now=NOW, rules=RULES, evicted=("G0", "G1"))
    assert [taint["effect"] for taint in found["G0"].taints] == ["NoSchedule", "NoExecute"]
    assert [taint["effect"] for taint in found["G1"].taints] == ["NoSchedule"]


def test_seventeen_reasons_fold_into_one_taint() -> None:
    """B09: more reasons than taints are allowed (16; 4 on 1.34) are one legal taint."""
    codes = sorted(CATALOGUE)[:17]
    found = device(state=State.QUARANTINED, reasons=tuple(map(reason, codes)))
    taints = judge(found).taints
    assert len(taints) == 2
    value = str(taints[1]["value"])
    assert LABEL_VALUE.fullmatch(value)
    assert value.endswith("more")


@given(st.sets(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,70}[a-z0-9])?", fullmatch=True)))
def test_folded_codes_are_always_a_label_value(codes: set[str]) -> None:
    """B09: whatever the reasons, the value is one the server accepts."""
    value = folded(codes)
    assert len(value) <= VALUE_MAX
    assert LABEL_VALUE.fullmatch(value)


def test_the_evicting_code_is_never_folded_away() -> None:
    """B24: the reason that evicts comes first, so that the pod's event names it."""
    assert folded(set(CATALOGUE)).startswith("device-lost.")


@pytest.mark.parametrize(
    "state", [s for s in State if s not in (State.QUARANTINED, State.RETESTING)]
)
def test_a_held_device_needs_no_taint_in_any_state(state: State) -> None:
    """DESIGN 5, Slices: our hold keeps the allocation, so a claim's whole life costs no write."""
    found = device(state=state, claim="c", held=True)
    assert judge(found).taints == ()
    assert not judge(found).allocatable
    assert keys(judge(device(state=state, claim="c"))) == {"not-clean"}


def test_a_held_device_out_of_service_is_tainted_all_the_same() -> None:
    """DESIGN 4: a reason shows at once, held or not; so does an onlooker who may stay (B35)."""
    faulty = device(state=State.IN_USE, claim="c", held=True, reasons=(reason("xid"),))
    assert keys(judge(faulty)) == {"not-clean", "quarantined"}
    out = device(state=State.QUARANTINED, claim="c", held=True, reasons=(reason("xid"),))
    assert keys(judge(out)) == {"not-clean", "quarantined"}
    watched = device(state=State.IN_USE, claim="c", held=True, attached=("x",))
    assert keys(judge(watched)) == {"not-clean"}
    assert keys(judge(device(claim="c", held=True, state=State.IN_USE), at=NOW - 61)) == {
        "not-clean"
    }


def test_a_device_wiped_for_its_claim_needs_no_taint() -> None:
    """DESIGN 5, Pre-bind: it is allocated already; only work on this very device says so."""
    mine = "claim/c1/1.7/G0/1"
    for state in (State.WIPING, State.CHECKING):
        assert judge(device(state=state, operation=mine)).taints == ()
        assert not judge(device(state=state, operation=mine)).allocatable
        for other in ("claim/c1/1.7/G1/1", "claim/c1", "idle/G0/1", "run/G0", ""):
            assert keys(judge(device(state=state, operation=other))) == {"not-clean"}
    assert keys(judge(device(state=State.DIRTY, operation=mine))) == {"not-clean"}


def test_a_parent_of_a_held_partition_is_still_tainted() -> None:
    """Promise 9: what keeps others off a partition does not keep them off what overlaps it."""
    part = device("P0", accelerator="G0", units=("G0/m0",), state="IN_USE", claim="c", held=True)
    whole = device(units=("G0/m0", "G0/m1"), state=State.IN_USE, claim="c")
    free = device("P1", accelerator="G0", units=("G0/m1",))
    found = verdicts(node(whole, part, free), now=NOW, rules=RULES)
    assert keys(found["G0"]) == {"not-clean"}
    assert (found["P0"].taints, found["P1"].allocatable) == ((), True)
    work = "claim/c/1.7/P0/0"
    busy = [
        one.model_copy(update={"state": "WIPING", "operation": work, "claim": "", "held": False})
        for one in (whole, part)
    ]
    found = verdicts(node(*busy), now=NOW, rules=RULES)
    assert (keys(found["G0"]), keys(found["P0"])) == ({"not-clean"}, set())
