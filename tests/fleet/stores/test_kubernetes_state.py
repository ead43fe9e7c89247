"""The state as text and back, and what it says about itself."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.model import Lease, Token, UnitId
from fleet.stores import decisions, kubernetes_state
from fleet.stores.kubernetes_state import (
    BUCKET_LEASES,
    EXPIRED_KEPT_S,
    HEAD,
    HISTORY,
    LEASES,
    State,
)
from fleet.stores.observation import Observation
from tests.contracts.lease_store_contract import campaign, claim, units

EPOCH = 7
BEYOND_A_FLOAT = (
    f'{{"at":{10**400},"event":"acquired","holder":"claim:a","token":"7.1","units":["u"]}}\n'
)
ONE = '{"holder":"claim:a","token":"7.1","units":["u"]}\n'


def observed(clock: ManualClock | None = None) -> Observation:
    """Of a process that has seen nothing yet."""
    return Observation(clock or ManualClock(20.0))


def state(clock: ManualClock | None = None) -> State:
    """A store with two leases, one of which ends."""
    found = kubernetes_state.begun("uid-1", Token(EPOCH, 0), 10.0, observed(clock))
    found.put(Lease(units("g1/0", "g1/1"), claim("a"), Token(EPOCH, 1)), 20.0)
    found.put(Lease(units("g2/0"), campaign("r"), Token(EPOCH, 2), 99.5), 20.0)
    found.lead(decisions.Head(Token(EPOCH, 2), adopted=3, suspended=Token(EPOCH, 9)))
    return found


def told(found: State) -> dict[str, str]:
    """The state's texts, whole."""
    return {name: "".join(pieces) for name, pieces in found.texts().items()}


def test_what_was_written_is_read() -> None:
    """E5: head, leases and history are the same after a round trip, which changes nothing."""
    made = state()
    texts = told(made)
    found = kubernetes_state.read(texts, "uid-1", observed())
    assert found is not None
    assert (found.head, found.rows, found.copied) == (made.head, made.rows, False)
    assert found.history(9) == state().history(9)
    assert not found.changed
    assert told(found) == texts


def test_lines_follow_every_change() -> None:
    """What is kept of earlier texts never shows: each state is told as if written for the first
    time."""
    found = state()
    told(found)
    found.put(Lease(units("g1/1", "g3/0"), claim("b"), Token(EPOCH, 3)), 20.0)
    found.put(Lease(units("g2/0"), campaign("r"), Token(EPOCH, 2), 150.0), 20.0)
    found.drop(UnitId("g3/0"))
    again = kubernetes_state.read(told(found), "uid-1", observed())
    assert again is not None
    assert again.rows == found.rows
    assert again.held(claim("a"), Token(EPOCH, 1)) == found.held(claim("a"), Token(EPOCH, 1))
    assert len(told(found)[LEASES].splitlines()) == 3


def test_many_leases_are_told_in_pieces_and_few_again_in_one() -> None:
    """E5: one lease more changes one piece; what was spread is put together again."""
    found = kubernetes_state.begun("uid-1", Token(EPOCH, 0), 10.0, observed())
    for number in range(1, 2001):
        found.put(Lease(units(f"g{number}/0"), claim(f"c{number}"), Token(EPOCH, number)), 20.0)
    before = found.texts()[LEASES]
    assert len(before) > 2000 // BUCKET_LEASES
    found.put(Lease(units("g9999/0"), claim("late"), Token(EPOCH, 9999)), 20.0)
    after = found.texts()[LEASES]
    assert sum(one is not other for one, other in zip(before, after, strict=True)) == 1
    again = kubernetes_state.read(told(found), "uid-1", observed())
    assert again is not None
    assert again.rows == found.rows
    for number in range(10, 2001):
        again.drop(UnitId(f"g{number}/0"))
    assert len(again.texts()[LEASES]) == 1
    assert len(told(again)[LEASES].splitlines()) == 10
    assert again.held(claim("c3"), Token(EPOCH, 3))[0].units == units("g3/0")


def test_units_of_one_lease_may_end_at_different_times() -> None:
    """What was stored unit by unit is told unit by unit."""
    found = state()
    found.put(Lease(units("g2/1"), campaign("r"), Token(EPOCH, 2), 200.0), 20.0)
    again = kubernetes_state.read(told(found), "uid-1", observed())
    assert again is not None
    assert again.rows == found.rows


def test_the_last_token_is_never_lowered() -> None:
    """Promise 2: whatever asks for it."""
    with pytest.raises(errors.StoreUnavailable, match="go back"):
        state().lead(decisions.Head(Token(EPOCH, 1)))


def test_long_expired_leases_are_left_out() -> None:
    """E5: the object does not grow by what is over."""
    clock = ManualClock(20.0)
    found = state(clock)
    clock.advance(79.5 + EXPIRED_KEPT_S)
    assert "campaign:r" in told(found)[LEASES]
    clock.advance(0.5)
    assert "campaign:r" not in told(found)[LEASES]
    clock.advance(1e12)
    assert "claim:a" in told(found)[LEASES]


def test_a_copy_is_behind_whatever_it_says() -> None:
    """DESIGN 4: the state knows which object it was made in."""
    found = kubernetes_state.read(told(state()), "uid-2", observed())
    assert found is not None
    found.lead(decisions.Head(Token(EPOCH, 2)))
    assert found.copied
    refusal = found.behind([], 20.0)
    assert refusal is not None
    assert refusal.floor == Token(EPOCH, 2)
    assert found.floor() == Token(EPOCH, 2)


def test_what_was_seen_outranks_what_is_said() -> None:
    """DESIGN 4: this process has seen a newer token; the suspension is recorded once."""
    found = kubernetes_state.begun("uid-1", Token(EPOCH, 4), 10.0, observed())
    assert found.behind([Token(EPOCH, 4)], 10.0) is None
    found.seen = Token(EPOCH, 6)
    for _ in range(2):
        refusal = found.behind([Token(EPOCH, 5)], 10.0)
        assert refusal is not None
        assert refusal.floor == Token(EPOCH, 6)
    assert found.head.suspended == Token(EPOCH, 6)
    assert len(found.history(9)) == 2


def test_an_empty_object_has_no_state() -> None:
    """DESIGN 4: that is a store without an epoch."""
    assert kubernetes_state.read({"note": "x"}, "uid-1", observed()) is None


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (HEAD, "null"),
        (HEAD, '{"format": 99}'),
        (LEASES, '{"holder": "claim:a", "token": "7.1"}'),
        (LEASES, '{"holder": "stranger:a", "token": "7.1", "units": []}'),
        (LEASES, '{"holder": "claim:a", "token": "7", "units": ["u"]}'),
        (LEASES, ONE + ONE.replace("7.1", "7.2")),
        (LEASES, "[]"),
        (LEASES, '{"holder": "claim:a"'),
        (LEASES, None),
        (HISTORY, BEYOND_A_FLOAT),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_an_error(part: str, text: str | None) -> None:
    """Promise 5: never fewer leases than there were; a part that is missing is not an empty one."""
    texts = told(state())
    if text is None:
        del texts[part]
    else:
        texts[part] = text
    with pytest.raises(errors.SettingsInvalid, match="cannot be understood"):
        kubernetes_state.read(texts, "uid-1", observed())


@pytest.mark.parametrize("units", ['"GPU-1"', "[]", "[1]", '[""]', "{}", '["a", null]'])
def test_b20_a_lease_whose_units_make_no_sense_is_not_passed_over(units: str) -> None:
    """Promise 2, B20: a lease that would hold nothing is an error, or its units would be free."""
    state = kubernetes_state.begun("uid", Token(5, 7), 1.0, observed())
    texts = {name: "".join(pieces) for name, pieces in state.texts().items()}
    line = '{"holder":"claim:a","token":"5.7","units":%s}'
    texts[kubernetes_state.LEASES] = line % units
    with pytest.raises(errors.SettingsInvalid):
        kubernetes_state.read(texts, "uid", observed())
    texts[kubernetes_state.LEASES] = "[" * 3000
    with pytest.raises(errors.SettingsInvalid):
        kubernetes_state.read(texts, "uid", observed())
