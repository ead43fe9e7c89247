"""The language of --select."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.control.campaign.select import ALL, parse
from fleet.core import errors
from fleet.core.messages import DeviceView, NodeView

DEVICE = DeviceView(
    uuid="GPU-1",
    name="gpu-0",
    accelerator="GPU-1",
    units=("GPU-1/0",),
    memory_bytes=1,
    profile="1g.10gb",
    state="DIRTY",
    attributes={"product": "H100"},
)
VIEW = NodeView(
    node="n-07",
    incarnation="1",
    boot_id="b",
    at=0,
    simulated=True,
    backend="scripted",
    devices=(DEVICE,),
    labels={"rack": "r1", "pool": "train", "zone": "a"},
)


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", True),
        ("node=n-07", True),
        ("node=n-08", False),
        ("node!=n-08", True),
        ("node!=n-07", False),
        ("node~n-0?", True),
        ("node~n-1*", False),
        ("node=n-08,node=n-07", True),
        ("node=n-08,node~*-07", True),
        ("node~n-*,node!=n-07", False),
        ("rack=r1,pool=train", True),
        ("rack=r1,pool=serve", False),
        ("device=gpu-0", True),
        ("uuid~GPU-*", True),
        ("product=H100", True),
        ("product~h*", False),
        ("state=dirty", True),
        ("state=CLEAN", False),
        ("profile=1g.10gb", True),
        ("label.zone=a", True),
        ("label.zone=b", False),
        ("label.none!=x", True),
        (" node = n-07 , rack ~ r* ", True),
    ],
)
def test_what_a_selection_takes(text: str, takes: bool) -> None:
    """All terms hold, same-key alternatives in between; states are compared in any case."""
    assert parse(text).matches(VIEW, DEVICE) is takes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nod=a", ["at position 1 ('nod=a'): there is no key 'nod'; the nearest is 'node'"]),
        ("node=a,rak~b", ["at position 8 ('rak~b'): there is no key 'rak'; the nearest is 'rack'"]),
        ("node", ["at position 1 ('node'): there is no =, != or ~ in it"]),
        ("node=", ["at position 1 ('node='): node has no value"]),
        ("node=a,,rack=b", ["at position 8 (''): there is nothing between the commas"]),
        ("label.=a", ["'label.'; the nearest is 'label.name'"]),
        ("x=1,node=a,y", ["position 1 ", "position 12 "]),
    ],
)
def test_every_mistake_is_told_with_its_place(text: str, told: list[str]) -> None:
    """All mistakes at once, each with position and what was meant."""
    with pytest.raises(errors.InputInvalid) as caught:
        parse(text)
    problems: list[str] = caught.value.problems
    assert len(problems) == len(told)
    assert all(part in problem for part, problem in zip(told, problems, strict=True))


@pytest.mark.parametrize(
    ("text", "excluded"),
    [
        ("", False),
        ("node=n-07", False),
        ("node=n-08", True),
        ("node!=n-07", True),
        ("node~n-*", False),
        ("state=CLEAN", False),
    ],
)
def test_a_node_that_cannot_match_is_known_without_asking_it(text: str, excluded: bool) -> None:
    """A silent node is reported only where the selection could have taken one of its devices."""
    assert parse(text).excludes_node("n-07") is excluded


def test_nothing_selected_is_everything() -> None:
    """No selection is no restriction."""
    assert parse("  ") == ALL


@given(st.text(max_size=30))
def test_any_text_is_a_selection_or_an_error(text: str) -> None:
    """No input ends in anything but a selection or `InputInvalid` with its problems."""
    try:
        found: object = parse(text).matches(VIEW, DEVICE) in (True, False)
    except errors.InputInvalid as error:
        found = error.problems
    assert found
