"""Choosing devices of a node that cover what is wanted without overlapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.control.campaign.targets import choose, target_of, touched
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import Token


def device(uuid: str, units: str, state: str = "DIRTY", claim: str = "") -> DeviceView:
    return DeviceView(
        uuid=uuid, name=uuid, accelerator="whole", units=tuple(units), memory_bytes=len(units),
        state=state, claim=claim, floor="1.3",
    )  # fmt: skip


def view(*devices: DeviceView) -> NodeView:
    return NodeView(
        node="n", incarnation="1", boot_id="b", at=0, simulated=True, backend="scripted",
        devices=devices, labels={"rack": "r1", "pool": "p1"},
    )  # fmt: skip


WHOLE, HALF0, HALF1 = device("whole", "abcd"), device("half0", "ab"), device("half1", "cd")
QUARTER0 = device("quarter0", "a")


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ([WHOLE, HALF0, HALF1, QUARTER0], ["whole"]),
        ([WHOLE, device("half0", "ab", "IN_USE"), HALF1], ["half0", "half1"]),
        ([device("whole", "abcd", "IN_USE"), device("half0", "ab", "IN_USE"), HALF1],
         ["half0", "half1"]),
        ([WHOLE, HALF0, HALF1, device("quarter0", "a", claim="u")], ["half0", "half1"]),
        ([WHOLE, device("half0", "ab", claim="u"), device("half1", "cd", claim="v")], ["whole"]),
        ([device("whole", "abcd", claim="u")], ["whole"]),
        ([], []),
    ],
)  # fmt: skip
def test_what_is_chosen(devices: list[DeviceView], chosen: list[str]) -> None:
    """The largest free device; beside a tenant the free parts, and what is used is named."""
    found = choose(view(*devices), lambda _: True)
    assert [d.uuid for d in found] == chosen


def test_only_what_is_wanted_is_chosen() -> None:
    """A selection of a part does not bring in the whole."""
    found = choose(view(WHOLE, HALF0, HALF1), lambda d: d.uuid == "half1")
    assert [d.uuid for d in found] == ["half1"]


@pytest.mark.parametrize(
    ("of", "used", "is_touched"),
    [("half1", "half0", False), ("half0", "half0", True), ("whole", "half0", True),
     ("half0", "quarter0", True), ("quarter0", "half0", True)],
)  # fmt: skip
def test_touched_means_a_claim_overlaps(of: str, used: str, is_touched: bool) -> None:
    """Promise 4: nothing that shares a unit with a claim's device is started."""
    devices = [
        d.model_copy(update={"claim": "u"}) if d.uuid == used else d
        for d in (WHOLE, HALF0, HALF1, QUARTER0)
    ]
    found = view(*devices)
    target = target_of(found, next(d for d in devices if d.uuid == of))
    assert touched(found, target) is is_touched


def test_a_target_carries_what_planning_needs() -> None:
    """Place, units and floor come from the view."""
    target = target_of(view(HALF0), HALF0)
    assert (target.node, target.rack, target.pool) == ("n", "r1", "p1")
    assert (target.units, target.floor) == (frozenset("ab"), Token(1, 3))


PARTS = st.lists(
    st.builds(
        lambda units, used: (frozenset(units), used),
        st.sampled_from(["abcd", "ab", "cd", "a", "b", "c", "bc"]),
        st.booleans(),
    ),
    unique_by=lambda part: part[0],
    max_size=7,
)


@given(PARTS)
def test_chosen_devices_never_overlap_and_miss_nothing_free(
    parts: list[tuple[frozenset[str], bool]],
) -> None:
    """Each unit is wiped at most once, and no free device is forgotten."""
    devices = [
        device(f"d{n}", "".join(sorted(units)), claim="u" if used else "")
        for n, (units, used) in enumerate(parts)
    ]
    found = view(*devices)
    chosen = choose(found, lambda _: True)
    units = [unit for d in chosen for unit in d.units]
    assert len(units) == len(set(units))
    free = [d for d in devices if not touched(found, target_of(found, d))]
    assert all(set(d.units) & set(units) for d in free)
