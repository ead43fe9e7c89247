"""``python -m tests.stress_stores --store dynamodb --operations 5000 --processes 8``.

Processes acquire, renew and release leases of a few units for rounds, over a net that loses
answers and a service that throttles. After every other round the store is put back to what it was
before that round, as from a backup: it must notice, grant nothing, and go on above all tokens once
it is adopted and the leases that claims still have are put back. All that was answered is then
judged (`tests.histories`). Prints what it did and how fast; exits 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeVar

from fleet.core import errors
from fleet.core.leases import AcquireRequest, ClosedBy, Closure
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, NodeName, Token, UnitId
from fleet.stores.base import LeaseStore, Release, Renewal
from tests.cloud.server import CloudServer
from tests.histories import Act, Call, Held, check
from tests.stress_grounds import Ground, Spec, ground, opened

STORES = {"memory": 100_000, "sqlite": 100_000, "kubernetes": 5000, "dynamodb": 5000}
"""Operations of each store when none are asked for."""
UNITS = tuple(UnitId(f"g{number}/0") for number in range(24))
ROUNDS = 4
"""Rounds of a run; after every other one the store is put back."""
GIVE_UP_S = 300.0
"""How long, s, one call is repeated while the store is away: longer is a failure."""
TTL_S = 3600.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Shift:
    """What one process does in one round."""

    spec: Spec
    number: int
    seed: int
    operations: int
    held: tuple[Lease, ...]


@dataclass(slots=True)
class Report:
    """What it saw, what it still has, and how often the store was away."""

    calls: list[Call] = field(default_factory=list)
    held: list[Lease] = field(default_factory=list)
    away: int = 0


def work(shift: Shift) -> Report:
    """Acquire, renew and release; at the end only leases of claims are kept."""
    chance, report = random.Random(shift.seed), Report(held=list(shift.held))
    with opened(shift.spec, shift.seed) as store:
        worker = _Worker(store, report)
        for turn in range(shift.operations):
            point = chance.random()
            held = chance.choice(report.held) if report.held else None
            if held is not None and (point < 0.45 or len(report.held) > 3):
                worker.release(held)
            elif held is not None and held.expires_at is not None and point < 0.6:
                worker.renew(held)
            else:
                kind = HolderKind.CLAIM if chance.random() < 0.7 else HolderKind.CAMPAIGN
                holder = Holder(kind, f"{shift.seed}-{shift.number}-{turn}")
                units = frozenset(chance.sample(UNITS, chance.choice((1, 1, 2, 3))))
                worker.acquire(holder, units)
        for lease in [one for one in report.held if one.expires_at is not None]:
            worker.release(lease)
    return report


class _Worker:
    """Calls, repeated until they are answered, and noted."""

    def __init__(self, store: LeaseStore, report: Report) -> None:
        self._store = store
        self._report = report

    def acquire(self, holder: Holder, units: frozenset[UnitId]) -> None:
        ttl_s = TTL_S if holder.kind is HolderKind.CAMPAIGN else None
        request = AcquireRequest(units, holder, ttl_s)
        began = time.monotonic_ns()
        (answer,), _ = self._answered(lambda: self._store.acquire([request]))
        if isinstance(answer, Lease):
            self._report.held.append(answer)
            self._note(began, Act.GRANTED, str(holder), units, answer.token)
        elif isinstance(answer, errors.LeaseHeld):
            self._note(began, Act.HELD, str(answer.holder), frozenset({answer.unit}), NO_TOKEN)
        else:
            raise answer

    def renew(self, lease: Lease) -> None:
        renewal = Renewal(lease.holder, lease.token, TTL_S)
        began = time.monotonic_ns()
        (answer,), _ = self._answered(lambda: self._store.renew([renewal]))
        act = Act.RENEWED if isinstance(answer, Lease) else Act.LOST
        self._note(began, act, str(lease.holder), lease.units, lease.token)

    def release(self, lease: Lease) -> None:
        release = _closing(lease)
        began = time.monotonic_ns()
        (answer,), doubtful = self._answered(lambda: self._store.release([release]))
        if isinstance(answer, errors.FleetError):
            raise answer
        # Repeated after an answer that was lost, it may find that it was done.
        act = Act.RELEASED if answer or doubtful else Act.NOT_HELD
        self._note(began, act, str(lease.holder), lease.units, lease.token)
        self._report.held.remove(lease)

    def _answered(self, call: Callable[[], _T]) -> tuple[_T, bool]:
        limit = time.monotonic() + GIVE_UP_S
        doubtful = False
        while True:
            try:
                return call(), doubtful
            except errors.StoreUnavailable:
                doubtful = True
                self._report.away += 1
                if time.monotonic() > limit:
                    raise

    def _note(
        self, began: int, act: Act, holder: str, units: frozenset[UnitId], token: Token
    ) -> None:
        ended = time.monotonic_ns()
        self._report.calls.append(Call(began, ended, act, holder, tuple(sorted(units)), token))


def _closing(lease: Lease) -> Release:
    closure = Closure(lease.holder, lease.token, NodeName("node"), ClosedBy.TEARDOWN)
    return Release(lease.holder, lease.token, closure)


def restored(store: LeaseStore, held: Sequence[Lease], floor: Token) -> list[str]:
    """Have a store that went back notice it and go on; what went wrong with that."""
    trouble = []
    try:
        store.learn(floor)
        trouble.append(f"a store put back learnt of {floor} and was content")
    except errors.StoreBehind:
        (answer,) = store.acquire(
            [AcquireRequest(frozenset(UNITS[:1]), Holder(HolderKind.CLAIM, "x"))]
        )
        if not isinstance(answer, errors.StoreBehind):
            trouble.append(f"a store put back answered {answer}")
    newest = store.adopt(NO_TOKEN, "stress")
    if newest <= floor:
        trouble.append(f"{newest} was adopted, {floor} had been granted")
    answers = store.reinstate(list(held)) if held else []
    trouble += [str(one) for one in answers if isinstance(one, errors.FleetError)]
    kept = {(lease.holder, lease.token) for lease in held}
    ended = [one for one in store.leases() if (one.holder, one.token) not in kept]
    store.release([_closing(lease) for lease in ended])
    if {(one.holder, one.token) for one in store.leases()} != kept:
        trouble.append("the leases after an adopt are not those that claims have")
    return trouble


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    calls: int = 0
    grants: int = 0
    away: int = 0
    restores: int = 0
    spent_s: float = 0.0
    trouble: list[str] = field(default_factory=list)


def stress(
    kind: str,
    operations: int,
    processes: int,
    *,
    seed: int,
    rounds: int = ROUNDS,
    cloud: CloudServer | None = None,
) -> Outcome:
    """Run it, and judge it."""
    outcome = Outcome()
    with ground(kind, seed, cloud) as site, _pool(kind, processes) as pool:
        held: list[tuple[Lease, ...]] = [()] * processes
        last: dict[UnitId, Token] = {}
        for turn in range(rounds):
            before = site.copy()
            shifts = [
                Shift(site.spec, number, seed + turn * processes + number,
                      -(-operations // (processes * rounds)), held[number])
                for number in range(processes)
            ]  # fmt: skip
            began = time.perf_counter()
            reports = list(pool.map(work, shifts))
            outcome.spent_s += time.perf_counter() - began
            calls = [call for report in reports for call in report.calls]
            grants = [call for call in calls if call.act is Act.GRANTED]
            begin = _begin([lease for leases in held for lease in leases], last)
            outcome.trouble += check(calls, begin)
            held = [tuple(report.held) for report in reports]
            for call in sorted(grants, key=lambda one: one.token):
                last |= dict.fromkeys(call.units, call.token)
            outcome.calls += len(calls)
            outcome.grants += len(grants)
            outcome.away += sum(report.away for report in reports)
            if turn % 2 == 1:
                outcome.restores += 1
                outcome.trouble += _put_back(site, before, held, last, seed)
    return outcome


def _put_back(
    site: Ground,
    before: object,
    held: Sequence[Sequence[Lease]],
    last: dict[UnitId, Token],
    seed: int,
) -> list[str]:
    site.put_back(before)
    with opened(site.spec, seed) as store:
        leases = [lease for some in held for lease in some]
        return restored(store, leases, max(last.values()))


def _begin(held: Sequence[Lease], last: dict[UnitId, Token]) -> dict[UnitId, Held]:
    begin = {unit: Held(last=token) for unit, token in last.items()}
    for lease in held:
        for unit in lease.units:
            begin[unit] = Held(str(lease.holder), lease.token, last[unit])
    return begin


def _pool(kind: str, processes: int) -> Executor:
    if kind == "memory":
        return ThreadPoolExecutor(processes)
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


def main() -> int:
    """Exit 1 when a store did what it must not."""
    parser = argparse.ArgumentParser(prog="tests.stress_stores", description=__doc__)
    parser.add_argument("--store", choices=STORES, action="append", help="default: all")
    parser.add_argument("--operations", type=int, default=0)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    wrong = 0
    for kind in asked.store or STORES:
        count = asked.operations or STORES[kind]
        outcome = stress(kind, count, asked.processes, seed=asked.seed)
        wrong += len(outcome.trouble)
        sys.stdout.write(
            f"{kind}: {outcome.calls} calls of {asked.processes} processes in"
            f" {outcome.spent_s:.1f} s ({outcome.calls / outcome.spent_s:.0f}/s),"
            f" {outcome.grants} grants, away {outcome.away} times, {outcome.restores} restores,"
            f" {len(outcome.trouble)} wrong\n"
        )
        for line in outcome.trouble[:20]:
            sys.stdout.write(f"  {line}\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
