"""Whether what callers of a lease store saw can have happened one call after the other.

For every unit the calls about it are searched for an order that fits real time (a call that had
returned comes before one that began later) and the rules of a unit (Wing and Gong's search with
Lowe's memory). Calls about several units at once are judged at each of them; that they happened as
a whole is judged by their token: grants in the order of tokens must fit real time over all units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.core.model import NO_TOKEN, Token, UnitId


class Act(StrEnum):
    """What was answered."""

    GRANTED = "granted"
    HELD = "held"
    """Refused because of the holder named, which is another one."""
    RELEASED = "released"
    NOT_HELD = "not-held"
    """A release that found nothing."""
    RENEWED = "renewed"
    LOST = "lost"
    """A renewal that found nothing."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call with its answer. Times are of one clock, in ns; `holder` is whom it is about."""

    began: int
    ended: int
    act: Act
    holder: str
    units: tuple[UnitId, ...]
    token: Token = NO_TOKEN


@dataclass(frozen=True, slots=True)
class Held:
    """A unit: who has it under which token ("" for nobody), and the last token it had."""

    holder: str = ""
    token: Token = NO_TOKEN
    last: Token = NO_TOKEN

    def after(self, call: Call) -> Held | None:
        """What it is after a call; None when the answer would be wrong now."""
        ours = bool(self.holder) and (self.holder, self.token) == (call.holder, call.token)
        match call.act:
            case Act.GRANTED if ours:
                return self
            case Act.GRANTED:
                fits = not self.holder and call.token > self.last
                return Held(call.holder, call.token, call.token) if fits else None
            case Act.HELD:
                return self if self.holder == call.holder else None
            case Act.RELEASED:
                return Held(last=self.last) if ours else None
            case Act.RENEWED:
                return self if ours else None
            case Act.NOT_HELD | Act.LOST:
                return None if ours else self


def check(calls: Sequence[Call], begin: Mapping[UnitId, Held]) -> list[str]:
    """What cannot have happened, in words; empty when all can have. `begin`: how units were."""
    trouble = [*_tokens(calls)]
    for unit in sorted({unit for call in calls for unit in call.units}):
        mine = [call for call in calls if unit in call.units]
        stuck = find_stuck(mine, begin.get(unit, Held()))
        if stuck is not None:
            trouble.append(f"{unit}: no order of its {len(mine)} calls fits: {_told(stuck, mine)}")
    return trouble


def _tokens(calls: Iterable[Call]) -> Iterable[str]:
    """No token for two holders, and none below one whose grant had been answered before."""
    grants = sorted((one for one in calls if one.act is Act.GRANTED), key=lambda one: one.token)
    holders: dict[Token, str] = {}
    for grant in grants:
        if holders.setdefault(grant.token, grant.holder) != grant.holder:
            yield f"{grant.token} went to {holders[grant.token]} and {grant.holder}"
    latest = 0
    for grant in grants:
        if grant.ended < latest:
            yield f"{grant.token} was answered before a smaller token was asked for"
        latest = max(latest, grant.began)


class _Point:
    """The beginning or the end of a call, in a list that calls are taken out of."""

    __slots__ = ("before", "call", "end", "following", "index")

    def __init__(self, index: int, call: Call, end: _Point | None) -> None:
        self.index, self.call, self.end = index, call, end
        self.before: _Point = self
        self.following: _Point | None = None


def find_stuck(calls: Sequence[Call], begin: Held) -> Call | None:
    """None if there is an order of the calls that fits real time and the rules of a unit.

    Else the call that the longest order found has no place for.
    """
    depth, stuck = -1, None
    head = _listed(calls)
    state, done = begin, 0
    seen: set[tuple[int, Held]] = set()
    taken: list[tuple[_Point, Held]] = []
    point = head.following
    while head.following is not None:
        if point is not None and point.end is not None:
            after = state.after(point.call)
            key = (done | 1 << point.index, after)
            if after is not None and key not in seen:
                seen.add((key[0], after))
                taken.append((point, state))
                state, done = after, key[0]
                _lift(point)
                point = head.following
            else:
                point = point.following
            continue
        # The end of a call that has found no place: take the last choice back.
        if len(taken) > depth:
            depth, stuck = len(taken), None if point is None else point.call
        if not taken:
            return stuck
        point, state = taken.pop()
        done &= ~(1 << point.index)
        _put_back(point)
        point = point.following
    return None


def _told(stuck: Call, calls: Sequence[Call]) -> str:
    """The call and those around it, for who has to find out why."""
    near = [one for one in calls if one.began <= stuck.ended and one.ended >= stuck.began]
    before = sorted((one for one in calls if one.ended < stuck.began), key=lambda one: one.ended)
    shown = [*before[-4:], *sorted(near, key=lambda one: one.began)]
    start = min(one.began for one in shown)
    lines = [
        f"{(one.began - start) / 1e6:.1f}..{(one.ended - start) / 1e6:.1f} ms"
        f" {'> ' if one is stuck else ''}{one.act} {one.holder} {one.token}"
        for one in shown
    ]
    return "; ".join(lines)


def _listed(calls: Sequence[Call]) -> _Point:
    points: list[tuple[int, int, _Point]] = []
    for index, call in enumerate(calls):
        end = _Point(index, call, None)
        # At the same moment beginnings come first: such calls may be in any order.
        points += [(call.began, 0, _Point(index, call, end)), (call.ended, 1, end)]
    head = last = _Point(-1, Call(0, 0, Act.LOST, "", ()), None)
    for _, _, point in sorted(points, key=lambda one: one[:2]):
        point.before, last.following = last, point
        last = point
    return head


def _lift(point: _Point) -> None:
    for one in (point, point.end):
        assert one is not None
        one.before.following = one.following
        if one.following is not None:
            one.following.before = one.before


def _put_back(point: _Point) -> None:
    for one in (point.end, point):
        assert one is not None
        one.before.following = one
        if one.following is not None:
            one.following.before = one
