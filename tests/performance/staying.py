"""What a node spends on one claim: ``python -m tests.performance.staying``.

Per pre-bind wipe, prepare and unprepare: commits of the journal and CPU time of the node service's
process, workers left out (they wipe). In profile ``strict`` the device is wiped under the claim's
token first and prepare wipes nothing; in ``fast`` the teardown's certificate serves. The service
runs in this process, without the plugin, kubelet's socket and the API server.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fleet.core.messages import ScrubOrder
from fleet.core.model import Holder, HolderKind, OperationId
from fleet.core.profiles import Profile
from tests.fleet.node.conftest import Lab, quick_settings, wait_for
from tests.scratch import directory

DEVICE = "gpu-0"
QUIET_LOOKS, QUIET_S = 20, 0.0005
"""Looks in a row, 10 ms apart, between which a process at rest spends less CPU than that, s."""


@dataclass
class Spent:
    """What one path cost, call by call."""

    cpu_s: list[float] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)


@dataclass
class Quiet:
    """Whether this process has come to rest."""

    looks: int = 0
    spent_s: float = field(default_factory=time.process_time)

    def seen(self) -> bool:
        """Look once more; whether it did nothing at the last `QUIET_LOOKS`."""
        now = time.process_time()
        self.looks = self.looks + 1 if now - self.spent_s < QUIET_S else 0
        self.spent_s = now
        return self.looks >= QUIET_LOOKS


@dataclass
class Stays:
    """Claims that come and go on one device."""

    lab: Lab
    profile: Profile
    settles: bool = False
    """Whether the node's own loose ends are waited for after each call: a spare worker starts."""
    paths: dict[str, Spent] = field(default_factory=lambda: defaultdict(Spent))
    _serial: int = 0

    def stay(self) -> None:
        """One claim from its lease to its tombstone, and what the node does after it."""
        self._serial += 1
        uid, lab = f"claim-{self._serial}", self.lab
        if self.profile is Profile.STRICT:
            lease = lab.lease(DEVICE, holder=Holder(HolderKind.CLAIM, uid))
            wipe = lab.order(DEVICE, lease=lease)
            self._spent("pre-bind wipe", lambda: self._wiped(wipe))
            order = lab.claim(uid, DEVICE, lease=lease)
        else:
            order = lab.bare(uid, DEVICE)
        self._spent("prepare", lambda: lab.node.prepare(order))
        self._spent("unprepare", lambda: lab.node.unprepare(uid))
        lab.node._tending.outbox.drain(time.time())  # a tick would begin other work besides

    def _wiped(self, order: ScrubOrder) -> None:
        """Returns once the result is there and the work is over, its last commit included."""
        node = self.lab.node
        node.scrub([order])
        wait_for(lambda: node._recorded(OperationId(order.operation)) is not None)

    def _commits(self) -> int:
        """Commits so far, one that is just being made included."""
        registry = self.lab.node._registry
        with registry._lock:
            return registry.journal.sequence

    def _spent(self, name: str, act: Callable[[], object]) -> None:
        path, committed, began = self.paths[name], self._commits(), time.process_time()
        act()
        path.cpu_s.append(time.process_time() - began)
        path.commits.append(self._commits() - committed)
        if self.settles:
            wait_for(Quiet().seen)


@contextmanager
def staying(profile: Profile) -> Iterator[Stays]:
    """A node in memory, where there is memory to put files in, with clean devices."""
    settings = quick_settings(deadline_base_s=30.0, kill_wait_s=5.0)
    with directory("fleet-stay-") as root:
        lab = Lab(root, settings.model_copy(update={"profile": profile}))
        try:
            lab.free()
            yield Stays(lab, profile)
        finally:
            lab.node.close()


def report(profile: Profile, stays: int) -> None:
    """Measure and print."""
    with staying(profile) as found:
        found.settles = True
        for _ in range(3):
            found.stay()
        found.paths.clear()
        for _ in range(stays):
            found.stay()
        for name, path in found.paths.items():
            cpu_ms = statistics.median(path.cpu_s) * 1e3
            commits = statistics.median(path.commits)
            sys.stdout.write(f"{profile:6} {name:14} {cpu_ms:6.2f} ms CPU  {commits:g} commits\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.performance.staying")
    parser.add_argument("--stays", type=int, default=40)
    chosen = parser.parse_args(arguments)
    for profile in (Profile.STRICT, Profile.FAST):
        report(profile, chosen.stays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
