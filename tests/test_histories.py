"""The judge of histories finds what must not be and lets pass what may."""

from __future__ import annotations

import pytest

from fleet.core.model import Token, UnitId
from tests.histories import Act, Call, Held, check

U, V = UnitId("u"), UnitId("v")


def token(counter: int) -> Token:
    """A token of the epoch."""
    return Token(1, counter)


def grant(began: int, ended: int, holder: str, counter: int, *units: UnitId) -> Call:
    """A call that was granted."""
    return Call(began, ended, Act.GRANTED, holder, units or (U,), token(counter))


def release(began: int, ended: int, holder: str, counter: int, *units: UnitId) -> Call:
    """A call that released."""
    return Call(began, ended, Act.RELEASED, holder, units or (U,), token(counter))


@pytest.mark.parametrize(
    "calls",
    [
        [grant(0, 1, "a", 1), release(2, 3, "a", 1), grant(4, 5, "b", 2)],
        [grant(0, 1, "a", 1), release(2, 9, "a", 1), grant(3, 4, "b", 2)],
        [grant(0, 9, "b", 2), grant(1, 2, "a", 1), release(3, 4, "a", 1)],
        [grant(0, 5, "a", 1), Call(0, 1, Act.HELD, "a", (U,))],
        [grant(0, 1, "a", 1), grant(2, 3, "a", 1), Call(4, 5, Act.RENEWED, "a", (U,), token(1))],
        [grant(0, 9, "a", 1, U, V), grant(0, 9, "b", 2, UnitId("w"))],
    ],
)
def test_what_may_have_happened_passes(calls: list[Call]) -> None:
    """Promise 2: calls that overlap may have happened in either order."""
    assert check(calls, {}) == []


@pytest.mark.parametrize(
    "calls",
    [
        [grant(0, 1, "a", 1), grant(2, 3, "b", 2)],
        [grant(0, 1, "a", 1), grant(2, 3, "b", 2), release(4, 5, "a", 1)],
        [grant(0, 1, "a", 2), release(2, 3, "a", 2), grant(4, 5, "b", 1)],
        [grant(0, 9, "a", 1, U), grant(0, 9, "b", 1, V)],
        [grant(0, 1, "a", 2, U), grant(2, 3, "b", 1, V)],
        [grant(0, 1, "a", 1), release(2, 3, "a", 1), release(4, 5, "a", 1)],
        [grant(0, 1, "a", 1), Call(2, 3, Act.NOT_HELD, "a", (U,), token(1))],
        [grant(0, 1, "a", 1), Call(2, 3, Act.LOST, "a", (U,), token(1))],
        [Call(0, 1, Act.HELD, "a", (U,)), grant(2, 3, "a", 1)],
        [grant(0, 1, "a", 1), release(2, 3, "a", 1), Call(4, 5, Act.HELD, "a", (U,))],
        [grant(0, 1, "a", 1), release(2, 3, "a", 1), Call(4, 5, Act.RENEWED, "a", (U,), token(1))],
    ],
)
def test_what_cannot_have_happened_is_found(calls: list[Call]) -> None:
    """Promise 2: a double grant, a token twice or backwards, an answer that was never true."""
    assert check(calls, {})


def test_a_history_goes_on_from_what_was_there() -> None:
    """Promise 2: a unit that was held before is not free, and its last token counts."""
    before = {U: Held("a", token(5), token(5))}
    assert check([grant(0, 1, "b", 6)], before)
    assert check([release(0, 1, "a", 5), grant(2, 3, "b", 5)], before)
    assert check([release(0, 1, "a", 5), grant(2, 3, "b", 6)], before) == []
