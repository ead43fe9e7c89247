"""The coordinator's claims: a step looks at those that changed or are due, decides, and acts.

Batch-wise: one call per node, one transaction of the store and one pass of API writes per step,
however many claims are due; one claim's trouble is its own. Nothing here has to survive: whoever
starts anew finds claims, leases and nodes as they are (case B42). Two at once do no harm: both
decide alike, every write is guarded, and nodes fence by token (B4).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from fleet.control.binding.claim_judge import decide
from fleet.control.binding.decisions import (
    BUSY_S,
    Acquire,
    Bind,
    Fail,
    Finalize,
    LetGo,
    LookUp,
    Order,
    Unbind,
    Undo,
    Unexposed,
    Wait,
)
from fleet.control.binding.executor import REFUSED_S, Performer
from fleet.control.binding.snapshot import Case, Look, touched
from fleet.control.binding.surroundings import BinderTerms, Surroundings
from fleet.control.binding.tracking import Agenda
from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.kube.base import name_of

LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

RESYNC_S = 30.0
"""Period, s, in which a claim at rest is looked at though nothing was heard of it."""
CLAIMS_MAX = 500
"""Claims looked at in one step: bounds its length, s, not the fleet."""
LET_GO_MAX = 16
"""Claims let go in one step that hold nothing of ours: whoever may change claims can put our marks
on as many as he likes, and each costs several requests (F66)."""
LET_GO_SHARE = 4
"""How many of these may be of one namespace."""
WAIT_TOLD_S = 20.0
"""Time, s, a claim waits before its owners are told for what: most wipes take less."""
WAITS_TOLD_MAX = 8
"""Claims told of in one step: each costs a write for itself and for each of its pods."""
ROUNDS = 4
"""Decisions about one claim within a step: lease, order, look up, write."""


class Binder:
    """Reconciles the claims of our driver that are in its charge. `step` is for one thread at a
    time."""

    def __init__(self, around: Surroundings, terms: BinderTerms) -> None:
        self._around = around
        self._terms = terms
        self.look = Look(around, terms)
        self.performer = Performer(around, terms, self.look)
        self._agenda = Agenda()
        self._touched: frozenset[str] = frozenset()
        self._stepped_at = float("-inf")
        self._begun = False
        self.looked_at = 0
        """Claims decided about, all steps together."""

    def step(self, now: float) -> int:
        """Look at what changed or is due at `now` (seconds since the epoch); how many claims.

        Raises only what keeps everything from working: `StoreUnavailable`, `StoreBehind` and
        `SettingsInvalid` of the store. Then nothing is lost: the same claims are due again.
        """
        if not self._around.claims.synced:
            return 0
        if now < self._stepped_at:
            self._agenda.rewind(now)
            for track in self.look.tracks.values():
                track.rewind()
        self._stepped_at = now
        self.look.watch.step(now)
        if not self._begun:
            self.look.found_at_start, self._begun = {*self._around.claims.items}, True
        self._agenda.again(self.look.claims_on(self._around.charge.moved()), now)
        self._agenda.again(self.look.take_noticed(), now)
        self._agenda.again(self._around.claims.take(), now)
        due = self._due(now)
        if not due:
            return 0
        try:
            cases = self.look.cases(due, now)
            self.look.ask(cases)
            self._settle(cases, now)
        except BaseException:
            self._agenda.again(due, now + BUSY_S)
            raise
        for case in cases:
            again_s = RESYNC_S if case.again_s is None else case.again_s
            self._agenda.at(case.reading.uid, now + again_s)
        for case in cases:
            self._tell_of_hold(case)
        self._tell_of_waits(cases)
        self.looked_at += len(cases)
        return len(cases)

    def _due(self, now: float) -> list[str]:
        """What is looked at in this step, of each namespace in turn: one that is full of work
        delays itself.
        """
        every = self._agenda.take(now, len(self._around.claims.items) + CLAIMS_MAX)
        chosen = [*in_turn(every, self._namespace)]
        self._agenda.again(chosen[CLAIMS_MAX:], now)
        return chosen[:CLAIMS_MAX]

    def _namespace(self, uid: str) -> str:
        known = self._around.claims.get(uid)
        return name_of(known).namespace if known is not None else ""

    def touch(self, uids: Iterable[str], now: float) -> None:
        """Look at these claims with the next step."""
        self._agenda.again(uids, now)

    def granted(self, now: float) -> None:
        """A right that was missing is there: what was refused is tried with the next step."""
        self.performer.writer.granted()
        self._agenda.again([*self.look.tracks], now)

    def saw(self, views: Mapping[str, NodeView | errors.FleetError], now: float) -> None:
        """Take in a survey: views of all nodes there are, whoever asked for them."""
        self.look.saw(views)
        self.look.missed(views.keys())
        before, self._touched = self._touched, frozenset(touched(views.values()))
        known = self.look.tracks.keys()
        # What is still as it was has its own time: a debt that cannot be paid wakes nobody.
        self._agenda.again([uid for uid in before ^ self._touched if uid in known], now)

    def why(self, uid: str) -> str:
        """The last decision about a claim, in words; "" for one that is none of ours."""
        track = self.look.tracks.get(uid)
        return track.why if track else ""

    @property
    def open_claims(self) -> int:
        """Claims that are kept an eye on."""
        return len(self.look.tracks)

    @property
    def troubles(self) -> Mapping[str, str]:
        """What is wrong though steps end well, by what it is about."""
        clocks = {"clocks": self.look.trouble} if self.look.trouble else {}
        return {**self.performer.writer.troubles, **clocks}

    # --- within a step ---------------------------------------------------------------------------

    def _settle(self, cases: Sequence[Case], now: float) -> None:
        """Decide; what needs more than the claim itself is done together, then decided again."""
        rest: Sequence[Case] = cases
        for _ in range(ROUNDS):
            for case in rest:
                self._decide(case, now)
            for case in rest:
                if isinstance(case.decision, LookUp):
                    self.look.look_up(case)
            self.performer.acquire(rest, now)
            self.performer.order([c for c in rest if isinstance(c.decision, Order)])
            rest = [case for case in rest if isinstance(case.decision, LookUp | Acquire)]
            if not rest:
                break
        writes = Bind | Unbind | Fail | Finalize | LetGo | Unexposed
        writing = self._fairly([case for case in cases if isinstance(case.decision, writes)])
        self._around.each([partial(self.performer.write, case, now) for case in writing])
        # Last: a node may have to stop a wipe first, and nobody else is to wait for that.
        self.performer.undo([case for case in cases if isinstance(case.decision, Undo)], now)

    def _fairly(self, cases: Sequence[Case]) -> list[Case]:
        """These writes, of each namespace in turn; claims that hold nothing of ours last, and only
        as many as keep nobody waiting.
        """
        idle = [c for c in cases if isinstance(c.decision, LetGo) and not c.reading.allocated]
        shares: Counter[str] = Counter()
        chosen: list[Case] = []
        for case in in_turn(idle, _namespace_of):
            space = _namespace_of(case)
            if len(chosen) < LET_GO_MAX and shares[space] < LET_GO_SHARE:
                shares[space] += 1
                chosen.append(case)
            else:
                case.put_off(f"{case.decision.why}: it has its turn soon", BUSY_S)
        last = {id(case) for case in idle}
        urgent = [case for case in cases if id(case) not in last]
        return [*in_turn(urgent, _namespace_of), *chosen]

    def _decide(self, case: Case, now: float) -> None:
        try:
            case.decision = decide(self.look.facts(case, now), self._terms.rules)
        except Exception:
            LOG.exception("claim %s cannot be judged", case.reading.name)
            case.put_off("it could not be judged: see the log", REFUSED_S)
        case.track.why = case.decision.why
        if not isinstance(case.decision, Fail | LetGo | LookUp):
            case.track.failing_since = None
        if isinstance(case.decision, Wait):
            case.again_s = case.decision.again_s

    def _tell_of_waits(self, cases: Iterable[Case]) -> None:
        """Nothing is written to a claim that waits, and the scheduler says nothing either."""
        late = self.look.watch.seconds - WAIT_TOLD_S
        news = [
            case
            for case in cases
            if isinstance(case.decision, Wait)
            and case.reading.gated
            and (since := case.track.pending_since) is not None
            and since <= late
            and case.track.told != words(case)
        ]
        for case in news[:WAITS_TOLD_MAX]:
            case.track.told = words(case)
            try:
                self._around.tell.waiting(case.reading, words(case))
            except Exception:
                LOG.exception("the owner of claim %s cannot be told", case.reading.name)

    def _tell_of_hold(self, case: Case) -> None:
        since = case.track.unused_since
        if since is None or not case.reading.held:
            return
        limit_s = self._terms.hold_event_after_s
        if self.look.watch.seconds - since < limit_s:
            return
        try:
            self._around.tell.claim(
                case.reading,
                "HeldAfterUse",
                f"held for more than {limit_s:.0f} s after its use: {words(case)}; decide with"
                f" `fleet claim show {case.reading.name}`",
            )
        except Exception:
            LOG.exception("the owner of claim %s cannot be told", case.reading.name)


def in_turn(found: Iterable[_T], namespace: Callable[[_T], str]) -> Iterator[_T]:
    """All of them, one of each namespace after the other, in the order in which they came."""
    queues: dict[str, deque[_T]] = {}
    for one in found:
        queues.setdefault(namespace(one), deque()).append(one)
    while queues:
        for space in list(queues):
            yield queues[space].popleft()
            if not queues[space]:
                del queues[space]


def _namespace_of(case: Case) -> str:
    return case.reading.name.namespace


def words(case: Case) -> str:
    """The last decision as its owner may read it; what nodes and store answered names others."""
    decision = case.decision
    return (decision.told if isinstance(decision, Wait) else "") or decision.why
