"""Drains that are killed again and again: ``python -m tests.stress_archive --certificates 2000``.

A node's ledger is copied to moto's server through a proxy that loses, refuses and cuts answers; the
copying process is killed (SIGKILL) after a random number of puts until one gets through. Then the
archive must hold every certificate once, verify as the ledger does, and be copied to a directory.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from fleet.evidence import archived
from fleet.evidence.export import export
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from tests.cloud import draining
from tests.cloud.archives import certificates, doubled
from tests.cloud.buckets import make_bucket, opened
from tests.cloud.lossy import Fault, Lossy
from tests.cloud.server import CREDENTIALS, CloudServer
from tests.fleet.evidence.samples import Site

PUTS = 5
"""Of one certificate, at least."""
TRIES = 20
"""Of the last drain: the proxy's faults are rare enough for a handful."""


def stress(root: Path, *, count: int, kills: int, seed: int) -> list[str]:
    """Do it below `root`; lines to print. Raises `AssertionError` when anything is lost."""
    chance, lock = random.Random(seed), threading.Lock()
    site = Site(root / "state")
    site.certify("node-1", rounds=(count + 1) // 2)  # of two devices
    site.countersign()

    def rule(method: str, _: str) -> Fault | None:
        with lock:
            point = chance.random()
        if point > 0.06:
            return None
        faults = [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.SLOW_DOWN]
        return chance.choice([*faults, Fault.CONFLICT] if method == "PUT" else [*faults, Fault.CUT])

    lines = []
    with CloudServer() as cloud, Lossy(cloud.port, rule=rule) as lossy:
        bucket = make_bucket(cloud.endpoint)
        longest = max(2, 2 * PUTS * count // max(1, kills))
        for _ in range(kills):
            after = chance.randrange(1, longest)
            try:
                draining.killed(
                    site.state, "node-1", endpoint=lossy.endpoint, bucket=bucket, after=after
                )
            except AssertionError as error:  # it was through before its last put
                lines.append(f"{error}: nothing was left to kill")
                break
            there = certificates(opened(cloud.endpoint, bucket))
            lines.append(f"killed after {after} puts: {there} certificates are there")
        begin = time.perf_counter()
        drained = opened(lossy.endpoint, bucket)
        for _ in range(TRIES):
            against = draining.drain(drained, site.state, "node-1", dies_after=0)
            if not against:
                break
            lines.append(f"a drain gave up and begins again: {against}")
        _must(not against, f"{TRIES} drains gave up, the last: {against}")
        lines.append(f"the rest took {time.perf_counter() - begin:.1f} s")
        archive = opened(cloud.endpoint, bucket)
        begin = time.perf_counter()
        report = verify(archived.collect(archive))
        seconds = time.perf_counter() - begin
        lines.append(f"verified {report.certificates} in {seconds:.1f} s")
        ours = verify(collect(site.state))
        _must(report.defects == [], f"{report.defects[:3]}")
        _must(report.certificates == ours.certificates, "certificates were lost")
        _must(doubled(archive) == [], "objects were put twice")
        begin = time.perf_counter()
        done = export(archived.collect(archive), root / "copy")
        lines.append(f"copied {done.certificates} in {time.perf_counter() - begin:.1f} s")
        _must(verify(collect(root / "copy")).ok, "the copy does not verify")
    return lines


def _must(fact: bool, what: str) -> None:
    if not fact:
        raise AssertionError(what)


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("there is nothing to copy")
    return int(text)


def main() -> None:
    """Print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--certificates", type=_count, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ.update(CREDENTIALS)
    with tempfile.TemporaryDirectory() as root:
        found = stress(Path(root), count=given.certificates, kills=given.kills, seed=given.seed)
    sys.stdout.write("\n".join([*found, "nothing lost, nothing doubled", ""]))


if __name__ == "__main__":
    main()
