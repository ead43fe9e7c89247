"""docs/looking.md: what Kubernetes shows of each state is what the code says, word by word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core.claim_states import ClaimState
from fleet.core.messages import UNMET, DeviceView, NodeView, ReasonView
from fleet.core.model import State
from fleet.plugin.slices.gate import GateRules, Why, verdicts

PACKAGES = ("fleet/kube", "fleet/control", "fleet/plugin", "node_plugin", "actors")
ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "looking.md").read_text()
RULES = GateRules(driver="gpu.fleetscrub.dev", fresh_s=60.0)
SPOKEN = re.compile(r"^[A-Z][a-z]+(?:[A-Z][a-z]+)+$")
"""A reason as Kubernetes spells them."""
OF_OTHERS = {"FailedPrepareDynamicResources", "FailedUnprepareDynamicResources"}
OF_OTHERS |= {"FailedScheduling", "NoExecute", "NoSchedule", "ResourceSlice"}
CONDITIONS = {"RebootRequired", "SanitizationFailed"}


def rows(title: str) -> dict[str, str]:
    """The rest of each row of a table by its first cell."""
    table = PAGE.partition(f"\n### {title}\n")[2].partition("\n#")[0]
    cells = [line.strip("| ").split(" | ", 1) for line in table.splitlines() if line[:2] == "| "]
    return {found[0]: found[1] for found in cells if len(found) == 2}


def named(state: str, title: str) -> str:
    """What the row of a state says."""
    found = [rest for first, rest in rows(title).items() if re.search(rf"\b{state}\b", first)]
    assert len(found) == 1, f"{state} has not one row"
    return found[0]


def said() -> Iterator[tuple[str, str]]:
    """Texts among the arguments of calls where events and conditions are made, with the name of
    function or method; and those of constants, with theirs."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    for target in node.targets:
                        yield getattr(target, "id", ""), str(node.value.value)
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    for argument in (*node.args, *(one.value for one in node.keywords)):
                        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                            yield name, argument.value


def reasons() -> set[str]:
    """Every reason of an event or condition that the code has."""
    texts = list(said())
    telling = {"Lack", "Notice", "claim", "pod", "Word", "record", "REASON"}
    found = {text for name, text in texts if name in telling and SPOKEN.fullmatch(text)}
    codes = {text for name, text in texts if name in ("Fault", "_all")} | {UNMET}
    found |= {
        "".join(part.capitalize() for part in code.split("-"))
        for code in codes
        if re.fullmatch(r"[a-z]+(-[a-z]+)*", code)
    }
    chosen = {"Certified", "Checked", "ClaimFailed", "DeviceFault"}  # by an expression
    return found | chosen


@pytest.mark.parametrize("state", State)
def test_every_state_of_a_device_is_in_the_table_with_its_taints(state: State) -> None:
    """Who reads slices alone, and this page, knows the state of each device."""
    told = named(state.value, "Devices").split(" | ")[0]
    bad = state in (State.QUARANTINED, State.RETESTING)
    device = DeviceView(
        uuid="u",
        name="gpu-0",
        accelerator="u",
        units=("u/0",),
        memory_bytes=1,
        state=state,
        checked_at=1000.0,
        claim="c" if state is State.IN_USE else "",
        reasons=(ReasonView(code="xid", source="health", liftable=True),) if bad else (),
    )
    view = NodeView(
        node="n",
        incarnation="i",
        boot_id="b",
        at=1000.0,
        simulated=True,
        backend="simulated",
        devices=(device,),
    )
    taints = verdicts(view, now=1000.0, rules=RULES)["u"].taints
    for taint in taints:
        key = str(taint["key"]).partition("/")[2]
        value = "=CODES" if key == "quarantined" else f"={taint.get('value')}".removesuffix("=None")
        assert f"`{key}{value}`" in told
    assert taints or told == "none"


@pytest.mark.parametrize("state", sorted({*ClaimState} - {ClaimState.ABSENT}))
def test_every_state_of_a_claim_is_in_the_table(state: ClaimState) -> None:
    """A record of a claim on a node shows on the claim or on its pod."""
    assert "`" in named(state.value, "Claims and their pods")


def test_every_word_of_a_taint_is_explained() -> None:
    """The values of `not-clean`, none left out and none that is not said."""
    assert set(re.findall(r"`not-clean=([a-z-]+)`", PAGE)) == {one.value for one in Why if one}


def test_every_reason_of_an_event_or_condition_is_explained() -> None:
    """None is missing in the tables, and each one there is really said, by us or by Kubernetes."""
    tables = "\n".join(
        f"{first} | {rest}"
        for title in ("Devices", "Nodes", "Claims and their pods")
        for first, rest in rows(title).items()
    )
    words = {word for text in re.findall(r"`([^`]+)`", tables) for word in re.split(r"\W+", text)}
    there = {word for word in words if SPOKEN.fullmatch(word)}
    spoken = {word for word in reasons() if SPOKEN.fullmatch(word)}
    assert spoken - there == set()
    assert there - spoken - OF_OTHERS - CONDITIONS == set()
