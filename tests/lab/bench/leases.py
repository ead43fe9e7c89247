"""Durable leases per second: ``python -m tests.lab.bench.leases``.

One round acquires a unit and gives it back: two commits, each on disk before it is answered. In a
batch, many rounds share their two commits. The bare fsync rate of the same disk is measured beside
it, since no durable store can answer a single caller faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from fleet.core.clock import SystemClock
from fleet.core.errors import FleetError
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.stores.base import Release
from fleet.stores.sqlite import SqliteLeaseStore, open_stores

BATCH = 100
"""Requests in one batch: what a campaign of a hundred devices asks for at once."""
NODE = 8
"""Requests in one batch: the devices of a node."""
HOLDER = Holder(HolderKind.OPERATOR, "bench")
TTL_S = 600.0


class Leasing(Protocol):
    """What is measured: a store, a coordinator, or an actor's handle."""

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | FleetError]:
        """One answer for each request."""
        ...

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | FleetError]:
        """Whether anything was held, for each release."""
        ...


@dataclass(frozen=True, slots=True)
class Rate:
    """Acquire+release rounds per second: one caller at a time, a node's devices, and `batch`."""

    single_per_s: float
    node_per_s: float
    """In batches of `NODE`."""
    batched_per_s: float
    batch: int
    runs: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The store directly, beside the disk it is on."""

    direct: Rate
    fsyncs_per_s: float
    folder: str


class StoreLeasing:
    """A lease store as something to measure."""

    def __init__(self, store: SqliteLeaseStore) -> None:
        self._store = store

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | FleetError]:
        """One answer for each request."""
        return self._store.acquire(requests)

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | FleetError]:
        """Whether anything was held, for each release."""
        return self._store.release(releases)


def rate(leasing: Leasing, *, runs: int = 5, rounds: int = 200, batch: int = BATCH) -> Rate:
    """Medians of `runs`; each run makes `rounds` single rounds and as many commits in batches.

    Raises the store's error when a lease is refused.
    """
    single = [_timed(lambda: _round(leasing, 1), rounds) for _ in range(runs)]
    repeats = max(rounds // 10, 1)
    node = [NODE * _timed(lambda: _round(leasing, NODE), repeats) for _ in range(runs)]
    batched = [batch * _timed(lambda: _round(leasing, batch), repeats) for _ in range(runs)]
    single_per_s, node_per_s, batched_per_s = map(statistics.median, (single, node, batched))
    return Rate(single_per_s, node_per_s, batched_per_s, batch, runs)


def measure(folder: Path, *, runs: int = 5, rounds: int = 200) -> Figures:
    """Measure a new SQLite store in `folder`, which should be on the disk it would really use."""
    with closing(open_stores(folder / "store.db", clock=SystemClock())) as stores:
        stores.leases.init()
        direct = rate(StoreLeasing(stores.leases), runs=runs, rounds=rounds)
    bare = statistics.median(_fsyncs_per_s(folder / "bare", rounds) for _ in range(runs))
    return Figures(direct, bare, str(folder))


def _round(leasing: Leasing, size: int) -> None:
    one_round(leasing, [f"gpu-{number}/0" for number in range(size)], HOLDER)


def one_round(leasing: Leasing, units: Sequence[str], holder: Holder) -> None:
    """Acquire all units, each by a request of its own, and release them. Raises what refuses."""
    asked = [AcquireRequest(frozenset({UnitId(unit)}), holder, TTL_S) for unit in units]
    releases = []
    for answer in leasing.acquire(asked):
        if isinstance(answer, FleetError):
            raise answer
        releases.append(Release(holder, answer.token))
    for gone in leasing.release_all(releases):
        if gone is not True:
            raise RuntimeError(f"a lease just granted could not be released: {gone}")


def _timed(act: Callable[[], None], times: int) -> float:
    """How often per second `act` can be done."""
    started = time.perf_counter()
    for _ in range(times):
        act()
    return times / (time.perf_counter() - started)


def _fsyncs_per_s(path: Path, times: int) -> float:
    with path.open("wb", buffering=0) as file:

        def once() -> None:
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())

        return _timed(once, times)


def render(name: str, found: Rate) -> str:
    """One line of figures."""
    return (
        f"{name:24} {found.single_per_s:9.0f} /s single {found.node_per_s:9.0f} /s by {NODE}"
        f" {found.batched_per_s:9.0f} /s by {found.batch}"
        f"   (acquire+release, medians of {found.runs})\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 unless the benchmark cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.leases", description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--runs", type=int, default=5, help="runs; medians are printed")
    parser.add_argument("--rounds", type=int, default=200, help="single rounds in a run")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    chosen = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="fleet-bench-", dir=chosen.folder) as folder:
            found = measure(Path(folder), runs=chosen.runs, rounds=chosen.rounds)
    except (OSError, FleetError) as error:
        sys.stderr.write(f"the benchmark cannot run: {error}\n")
        return 2
    if chosen.json:
        sys.stdout.write(json.dumps(asdict(found), indent=2) + "\n")
    else:
        sys.stdout.write(render("leases, SQLite", found.direct))
        sys.stdout.write(f"{'bare fsync, same disk':24} {found.fsyncs_per_s:9.0f} /s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
