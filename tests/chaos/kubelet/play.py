"""One story around kubelet's calls: processes are forked, killed, started again, and judged.

All are forked from a process that has imported everything and has one thread, so that a life costs
milliseconds to begin. After each death of the owner the disk is judged before the next one starts.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.core.settings import MIB, HealthPolicy, KubernetesSettings, NodeSettings, Settings
from fleet.wiring import adapters, plugin
from fleet.wiring.adapters import FleetPlan
from fleet.wiring.plans import plan_fleet
from tests.chaos import checks
from tests.chaos.kubelet import records, roles, world
from tests.chaos.kubelet.roles import Site
from tests.chaos.kubelet.story import DEVICES, Story, draw
from tests.chaos.life import MARKER, die_with_parent
from tests.chaos.plain import GONE_WAIT_S, Case, hardware, plant, wipe_workers
from tests.scratch import scratch

NODE = "node-1"
STORY_MAX_S = 150.0
BUDGET_S = 3.0
"""What a call may wait for its work, s: short, so that kubelet has to come back."""


def run(seed: int, keep: Path | None = None) -> Case:
    """Live one story and judge it. Call only from a process with a single thread."""
    case, story, began = Case(seed), draw(seed), time.monotonic()
    case.log += story.told()
    root = Path(tempfile.mkdtemp(prefix=f"kubelet-{seed}-", dir=keep or scratch()))
    try:
        _Play(case, story, root).play()
    except Exception:  # noqa: BLE001 - whatever a check stumbles over is a finding of this seed
        case.broken.append(traceback.format_exc())
    finally:
        for pid in checks.living(MARKER, str(root)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if case.broken or keep:
            case.state = root
        else:
            shutil.rmtree(root)
    case.seconds = time.monotonic() - began
    return case


@dataclass
class _Role:
    """A process that is started again whenever it was killed."""

    name: str
    body: Callable[[Site, int], None]
    pid: int = 0
    starts: int = 0


@dataclass
class _Play:
    """One story being lived."""

    case: Case
    story: Story
    root: Path
    _rest: bytes = b""
    _struck: int = 0
    _ended: dict[str, Any] | None = None
    _ready: bool = False
    _pids: list[int] = field(default_factory=list)

    def play(self) -> None:
        """Everything; findings are in the case."""
        fleet = _fleet(self.root, self.story)
        self._site = Site(self.root, fleet.nodes[0])
        plugin.write_plan(self._site.plan)
        plant(hardware(self._site.plan), random.Random(f"tenant/{self.story.seed}"))
        self._before = checks.sample(Path(self._site.plan.state))
        self._told, self._writing = os.pipe()
        try:
            # It makes the store; in a process of its own, since SQLite must not cross a fork.
            made = self._fork("coordinator", lambda *_: _make_stores(fleet))
            os.waitpid(made, 0)
            self._pids.remove(made)
            self._play()
        finally:
            for pid in self._pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
            os.close(self._told)
            os.close(self._writing)
        self._judge("the end")
        if not self.case.broken:
            self.case.broken += records.at_rest(self._site.plan, self._before)

    def _play(self) -> None:
        story = self.story
        whole = self._fork("world", lambda site, told: world.live(story, site, told))
        deadline = time.monotonic() + STORY_MAX_S
        while not self._ready and time.monotonic() < deadline:
            self._read()
        roles_ = [_Role("owner", roles.own), _Role("plugin", roles.serve)]
        for role in roles_:
            self._start(role)
        while self._ended is None and not self.case.broken:
            self._read()
            for role in roles_:
                self._supervise(role)
            if time.monotonic() > deadline:
                self._dump(role.pid for role in (*roles_, _Role("world", roles.own, whole)))
                self.case.broken.append(f"not over after {STORY_MAX_S:g} s")
        ended = self._ended or {"broken": [], "log": []}
        self.case.log += ended["log"]
        self.case.broken += ended["broken"]
        starts = ", ".join(f"{role.name} {role.starts}" for role in roles_)
        self.case.log.append(f"starts: {starts}")

    # --- processes ---

    def _start(self, role: _Role) -> None:
        role.pid, role.starts = self._fork(role.name, role.body), role.starts + 1

    def _supervise(self, role: _Role) -> None:
        pid, status = os.waitpid(role.pid, os.WNOHANG)
        if not pid:
            return
        self._pids.remove(pid)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            log = (self.root / f"{role.name}.log").read_text()[-3000:]
            self.case.broken.append(f"the {role.name} ended with status {status}: {log}")
            return
        self._read()
        if role.name == "owner":
            self._judge(f"death {role.starts} of the owner")
        if not self.case.broken:
            self._start(role)

    def _fork(self, name: str, body: Callable[[Site, int], None]) -> int:
        pid = os.fork()
        if pid == 0:
            _be(name, self._site, body, self._writing)
        self._pids.append(pid)
        return pid

    def _read(self) -> None:
        """What the processes told, waiting for it a little."""
        if not select.select([self._told], [], [], 0.01)[0]:
            return
        *lines, self._rest = (self._rest + os.read(self._told, 1 << 20)).split(b"\n")
        for line in lines:
            word, _, more = line.decode().partition(" ")
            if word == "ready":
                self._ready = True
            elif word == "ended":
                self._ended = json.loads(more)
            else:
                self.case.kills += 1
                self.case.log.append(line.decode())

    def _dump(self, pids: Any) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)

    # --- judging ---

    def _judge(self, when: str) -> None:
        deadline = time.monotonic() + GONE_WAIT_S
        state = Path(self._site.plan.state)
        while left := wipe_workers(self.root):
            if time.monotonic() > deadline:
                self.case.broken.append(f"{when}: workers {left} outlived their service")
                return
            time.sleep(0.005)
        now = checks.sample(state)
        found = [
            *checks.after_a_kill(state, self._before, now),
            *records.after_a_kill(self._site.plan, now),
        ]
        self.case.broken += [f"after {when}: {broken}" for broken in found]
        self._before = now


def _fleet(root: Path, story: Story) -> FleetPlan:
    """One simulated node whose every path is below `root`."""
    settings = Settings(
        profile=story.profile,
        # A patient story begins with clean devices; in the others each call wipes for itself.
        node=NodeSettings(idle_delay_s=0.0 if story.patient else 2.0),
        # A machine that does much else answers late, and a device given up is not wiped.
        health=HealthPolicy(sweep_period_s=5.0, reading_timeout_s=30.0),
        kubernetes=KubernetesSettings(
            kubelet_root=str(root / "kubelet"),
            cdi_directory=str(root / "cdi"),
            cgroup_root=str(root / "cgroup"),
            budget_s=BUDGET_S,
            publish_period_s=0.2,
            api_qps=1000.0,
        ),
    )
    for name in ("plugins", "plugins_registry"):
        (root / "kubelet" / name).mkdir(parents=True)
    (root / "cdi").mkdir()
    return plan_fleet(
        root / "state", simulate=f"1x{DEVICES}", memory_bytes=MIB, settings=settings, serve=NODE
    )


def _make_stores(fleet: FleetPlan) -> None:
    adapters.open_coordinator(fleet.coordinator)


def _be(name: str, site: Site, body: Callable[[Site, int], None], told: int) -> None:
    """The child. Never returns."""
    code = 1
    try:
        log = site.root / f"{name}.log"
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        faulthandler.enable(file=2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        die_with_parent()
        os.environ[MARKER] = str(site.root)
        body(site, told)
        code = 0
    except BaseException:  # noqa: BLE001 - the log tells, and the parent must see that it failed
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
