"""The bridge: a child process of the node plugin that attaches to Ray and creates what is missing.

    python -m actors.bridge PLAN ADDRESS [PATIENCE]

PLAN is a file with the `NodePlan`, ADDRESS the Ray to attach to, PATIENCE the seconds for which it
waits for Ray's head. The bridge may die at any time:
nothing of a claim's life goes through it (see `fleet.rpc`). It ends by itself when its standard
input is closed, which is how it learns that the plugin is gone, and with an error when Ray cannot
be reached; whoever started it tries again.

A call into Ray hangs while Ray's head is away and cannot be cancelled, so each has a time after
which the whole process ends.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from actors import cluster, coordinators, handles, muster
from actors.handles import RemoteCoordinator, RemoteNode
from actors.identity import plan_digest
from actors.node_actor import Pulse
from fleet.control.binding import liveness
from fleet.core import errors, logs
from fleet.wiring.adapters import CoordinatorPlan, FleetPlan, NodePlan
from fleet.wiring.plugin import read_plan

PERIOD_S = 2.0
"""Time, s, between two looks at the node's actor."""
MAKE_PERIOD_S = 60.0
"""Time, s, after which it is made sure that everything exists although the actor answers."""
FIRST_PING_S = 20.0
"""Time, s, a new actor has to answer: a worker process, imports, the journal."""
SILENT_MAX = 3
"""Looks in a row without an answer after which this bridge is no use and ends."""
SILENT_FIRST_MAX = 15
"""The same before the first answer: the raylet of this node may join later than its head."""
PATIENCE_S = 600.0
"""Time, s, in which a head that is away may come back; waiting costs less than a new process."""
COORDINATOR_PERIOD_S = 10.0
"""Time, s, between two looks at a coordinator that is not known to step."""
HELD_UP_S = 30.0
"""Time, s, one step of a node's actor may take before it is said."""
KNOCK_PERIOD_S = 1.0
ATTACH_MAX_S = 90.0
"""Time, s, attaching may take; with Ray's head away it does not end by itself."""
LOOK_MAX_S = 60.0
"""Time, s, one look may take; a head that is away longer is attached to anew."""
FAREWELL_S = 5.0
"""Time, s, the end may take once standard input is closed."""
RAY_AWAY = 2
"""Exit code when Ray, or the plan, cannot be used."""
LOG = logging.getLogger("actors.bridge")
_AGE = re.compile(r" \(\d+ s ago\)")
"""What makes two lines differ that say the same."""


@dataclass(frozen=True, slots=True)
class Leash:
    """Ends this process when something takes too long."""

    end: Callable[[int], object] = os._exit

    @contextmanager
    def held(self, what: str, limit_s: float, *, code: int = RAY_AWAY) -> Iterator[None]:
        """Run a block that may take `limit_s` seconds, or be the end with exit code `code`."""

        def late() -> None:
            LOG.warning("%s did not end within %g s", what, limit_s)
            self.end(code)

        timer = threading.Timer(limit_s, late)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class Bridge:
    """Sees to it that the node's actor and the coordinator exist in one Ray."""

    def __init__(self, plan: NodePlan) -> None:
        self._fleet = FleetPlan(
            nodes=(plan,),
            coordinator=CoordinatorPlan(
                state=plan.state,
                settings=plan.settings,
                kubernetes=plan.kubernetes,
                kubeconfig=plan.kubeconfig,
            ),
        )
        self._digest = plan_digest(plan.model_dump_json())
        self._node: RemoteNode | None = None
        self._made_at = float("-inf")
        self._compared = False
        self._silent = 0
        self._node_told = _Told(f"node actor of {plan.node}")
        self._coordinator_told = _Told("coordinator")
        self._coordinators: list[RemoteCoordinator] = []
        self._coordinator_at: float | None = None
        self._tried_at, self._tries = float("-inf"), 0

    def step(self, now: float) -> None:
        """Look, and create what is missing. Raises `RayUnavailable` once Ray stays silent.

        `now`: monotonic time, s.
        """
        try:
            self._look(now)
        except errors.Permanent:
            raise
        except errors.FleetError as error:
            self._silent += 1
            LOG.warning("look %d without an answer: %s", self._silent, error)
            if self._silent >= (SILENT_MAX if self._compared else SILENT_FIRST_MAX):
                raise
            return
        self._silent = 0
        if self._coordinator_at is None:
            self._coordinator_at = now  # it may be starting
        if now - self._coordinator_at >= COORDINATOR_PERIOD_S:
            self._coordinator_at = now
            self._look_at_coordinator(now)

    def _look_at_coordinator(self, now: float) -> None:
        """Say whether the coordinator steps, as it says itself; asked again soon until it does."""
        if not self._fleet.coordinator.kubernetes:
            return
        found = handles.signs(self._coordinators)
        wrong = "; ".join(liveness.told(found, time.time(), awaited=True))
        if not found.unknown:
            self._tries = 0
        elif self._tried_at != self._made_at:
            self._tried_at, self._tries = self._made_at, self._tries + 1
        if self._tries > 1:
            wrong = f"{wrong} [made {self._tries} times, every {MAKE_PERIOD_S:.0f} s]"
        self._coordinator_told(wrong or "it steps", found.found.pid if found.found else 0)
        if not wrong:  # thousands of bridges ask one actor
            self._coordinator_at = now + MAKE_PERIOD_S

    def _look(self, now: float) -> None:
        """Ping the actor that is known; only one that does not answer is a reason to ask the head.

        Thousands of bridges that list all nodes every few seconds would keep the head busy.
        """
        if self._node is not None and now - self._made_at < MAKE_PERIOD_S:
            try:
                self._tell(self._node.ping())
            except errors.FleetError as error:
                LOG.warning("the node actor does not answer: %s", error)
            else:
                return
        self._node, self._made_at = None, now
        self._tell(self._make())

    def _make(self) -> Pulse:
        """Create what is missing, and take an actor over only if it is what this plan would make.

        Only a bridge's first look replaces: two plugins that meet during an update would replace
        each other's actors for as long as both run.
        """
        node = self._created()
        pulse = node.ping(timeout_s=FIRST_PING_S)
        muster.check_same(self._fleet, {node.name: pulse.state})
        if not self._compared:
            self._end_others()
        if not self._compared and pulse.plan != self._digest:
            LOG.warning("the actor of %s has an earlier plan and is replaced", node.name)
            muster.replace(node)
            node = self._created()
            pulse = node.ping(timeout_s=FIRST_PING_S)
        self._node, self._compared = node, True
        return pulse

    def _end_others(self) -> None:
        """A coordinator of a selection that the settings do not ask for any more would go on."""
        if self._fleet.coordinator.kubernetes:
            shards = self._fleet.coordinator.shards()
            coordinators.end_others({coordinators.name_of(shard.nodes) for shard in shards})

    def _created(self) -> RemoteNode:
        nodes: list[RemoteNode] = []
        # Once: what differs later was made by a bridge that began after this one.
        first = not self._compared
        self._coordinators = muster.create(
            self._fleet, nodes, host=handles.own_host(), replace=first, compare=first
        )
        return nodes[0]

    def _tell(self, pulse: Pulse) -> None:
        shown = f"the node actor stands by: {pulse.standby}" if pulse.standby else "it serves"
        if pulse.tick_age_s > HELD_UP_S:
            shown = "it answers, and its steps do not end: see its log"
        self._node_told(shown, pulse.pid)


class _Told:
    """Says how an actor stands when that changes, and how often it was another process."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._said: tuple[str, int] = ("", 0)
        self._pids: list[int] = []

    def __call__(self, what: str, pid: int) -> None:
        """`pid` 0: it is not known which process it is."""
        if pid and pid not in self._pids[-1:]:
            self._pids.append(pid)
        plain, again = _AGE.sub("", what), len(self._pids) - 1
        if (plain, pid) == self._said:
            return
        self._said = (plain, pid)
        made = f" [made anew {again} times since this bridge began]" if again > 0 else ""
        where = f" (pid {pid})" if pid else ""
        LOG.warning("%s%s: %s%s", self._who, where, what, made)


def main(arguments: list[str]) -> int:
    """Run until standard input ends; the exit code: 0 asked to end, 2 Ray or the plan is no use."""
    logs.begin("bridge")
    leash, orphaned = Leash(), threading.Event()
    try:
        path, address, patience_s = _asked(arguments)
        bridge = Bridge(read_plan(path))
        threading.Thread(target=_watch_parent, args=(orphaned,), daemon=True).start()
        _await_head(address, orphaned, patience_s)
        if orphaned.is_set():
            return 0
        with leash.held(f"attaching to Ray at {address}", ATTACH_MAX_S):
            attached = cluster.attach(address)
        try:
            while not orphaned.is_set():
                with leash.held("a look at the node's actor", LOOK_MAX_S):
                    bridge.step(time.monotonic())
                orphaned.wait(PERIOD_S)
        finally:
            with leash.held("leaving Ray", FAREWELL_S):
                attached.close()
    except errors.FleetError as error:
        LOG.warning("%s", error)
        return RAY_AWAY
    return 0


def _await_head(address: str, orphaned: threading.Event, patience_s: float) -> None:
    """Until somebody listens at `address`. Raises `RayUnavailable` after `patience_s` seconds."""
    until, said = time.monotonic() + patience_s, False
    while not orphaned.is_set():
        try:
            cluster.knock(address)
        except errors.RayUnavailable as error:
            if time.monotonic() >= until:
                raise
            if not said:
                LOG.warning("waiting for Ray: %s", error)
            said = True
        else:
            return
        orphaned.wait(KNOCK_PERIOD_S)


def _asked(arguments: list[str]) -> tuple[Path, str, float]:
    try:
        plan, address, *more = arguments
        (patience_s,) = map(float, more or (PATIENCE_S,))
    except ValueError:
        raise errors.InputInvalid(
            f"{arguments} is not what the bridge needs",
            remedy="run: python -m actors.bridge PLAN ADDRESS [PATIENCE]",
        ) from None
    return Path(plan), address, patience_s


def _watch_parent(orphaned: threading.Event) -> None:
    """Wait for the end of standard input; then the end of this process is a matter of seconds."""
    # A thread in a buffered read would abort the process when the interpreter ends.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    orphaned.set()
    with Leash().held("the last call into Ray", FAREWELL_S, code=0):
        threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
