"""The words of the domain: tokens and holders that survive printing, devices that overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core.model import (
    SETTLED,
    WORKING,
    Accelerator,
    Device,
    Holder,
    HolderKind,
    Reason,
    Source,
    State,
    Token,
    Unit,
    UnitId,
    UnitSpec,
    Uuid,
    overlapping,
)

NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)


@given(NUMBERS, NUMBERS)
def test_token_survives_printing(epoch: int, counter: int) -> None:
    """B4: a token printed and read again is the same token."""
    token = Token(epoch, counter)
    assert Token.parse(str(token)) == token


@given(st.tuples(NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS))
def test_tokens_are_ordered_by_epoch_first(one: tuple[int, int], two: tuple[int, int]) -> None:
    """B4: a newer epoch beats every counter of an older one."""
    assert (Token(*one) < Token(*two)) == (one < two)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.", ".1", "a.1", "-1.2", "1.2.3", "1 .2", "1.+2", "١.٢", f"{2**63}.1",
     f"1.{'9' * 5000}"],
)  # fmt: skip
def test_no_token(text: str) -> None:
    """Text that is not two numbers, or of numbers no database keeps, is refused."""
    with pytest.raises(ValueError, match="not a token"):
        Token.parse(text)


@pytest.mark.parametrize("kind", HolderKind)
def test_holder_survives_printing(kind: HolderKind) -> None:
    """A holder printed and read again is the same, colons in its name included."""
    holder = Holder(kind, "run:2024")
    assert Holder.parse(str(holder)) == holder


@pytest.mark.parametrize("text", ["", "claim", "claim:", "tenant:x"])
def test_no_holder(text: str) -> None:
    """A holder without a name or of an unknown kind is refused."""
    with pytest.raises(ValueError, match=r"not a holder|not a valid HolderKind"):
        Holder.parse(text)


def test_a_reason_is_its_code_and_source() -> None:
    """B31: the same code from two sources is two reasons; details make no difference."""
    kernel = Reason("xid-79", Source.KERNEL, liftable=False, since=1.0)
    again = Reason("xid-79", Source.KERNEL, liftable=False, detail="bus", since=2.0)
    health = Reason("xid-79", Source.HEALTH, liftable=False)
    assert kernel == again
    assert len({kernel, again, health}) == 2
    assert kernel.key == again.key != health.key


def test_a_unit_begins_held() -> None:
    """Promise 5: nothing is known about a new unit, so it is HELD, uncertified and unclaimed."""
    unit = Unit(UnitId("a/0"))
    assert (unit.state, unit.certificate, unit.claim) == (State.HELD, None, None)


def test_settled_and_working_exclude_each_other() -> None:
    """A unit being worked on is not settled; DIRTY is neither."""
    assert SETTLED.isdisjoint(WORKING)
    assert State.DIRTY not in SETTLED | WORKING


def _device(name: str, *units: str) -> Device:
    return Device(
        Uuid(name), name, Uuid("parent"), tuple(UnitId(unit) for unit in units), memory_bytes=1
    )


def test_overlap_is_a_shared_unit() -> None:
    """Promise 9: parent and child overlap, two children do not; nothing overlaps itself."""
    parent, one, two = _device("parent", "0", "1"), _device("one", "0"), _device("two", "1")
    devices = {device.uuid: device for device in (parent, one, two)}
    assert overlapping(devices, parent) == (one, two)
    assert overlapping(devices, one) == (parent,)
    assert overlapping(devices, two) == (parent,)


def test_an_accelerator_is_all_of_its_units() -> None:
    """A partitionable accelerator's memory is that of all units, its own device the whole one."""
    parent, child = _device("parent", "0", "1"), _device("child", "0")
    card = Accelerator(
        Uuid("parent"), (UnitSpec(UnitId("0"), 3), UnitSpec(UnitId("1"), 5)), (child, parent)
    )
    assert card.memory_bytes == 8
    assert card.device is parent
    assert parent.whole
    assert not child.whole
