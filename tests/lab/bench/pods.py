"""Pods on a real cluster beside a plugin that does nothing: ``make bench-pods``.

One pod at a time, each with one device of its own: from its creation until it is Ready, and from
its deletion until it is gone, as a watch tells it. Each profile in a run of its own, a pod of ours
and one of the idle plugin (`tests.e2e.idle_plugin`) by turns, so that both meet the same machine.
The cluster is named by FLEET_E2E_KUBECONFIG, FLEET_E2E_KUBELET_ROOT and FLEET_E2E_CDI_DIR.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.evidence import dsse
from fleet.kube.base import PODS, SLICES, Change, Name, Object, Selection, name_of
from tests.e2e import idle_plugin, workloads
from tests.e2e.ground import Footing
from tests.e2e.plugin_process import DEVICES, DRIVER, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, Wish
from tests.stories.stage import CoordinatorProcess
from tests.stories.worlds import RealWorld

LATE_S = 30.0
"""A pod that starts later than this was refused by the API server's node authorizer first, and
kubelet tried again after 60 to 90 s: no figure of any plugin."""
LIFE_S = 180.0
START_S = 90.0
ROUND_S = 300.0
WANTED_START_S = {"fast": 0.3, "strict": 5.7}
"""Most, s, that a pod may take longer to be Ready than with the idle plugin."""
WANTED_END_S = 1.0
"""Most, s, that it may take longer to be gone, besides the wipe."""


class Sight:
    """When each pod of a namespace was first seen bound, ready and gone, monotonic time, s."""

    def __init__(self, world: RealWorld, namespace: str) -> None:
        self._world = world
        self._namespace = namespace
        self._seen: dict[tuple[str, str], float] = {}
        self._news = threading.Condition()
        self._begun = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()
        assert self._begun.wait(START_S), "the watch does not begin"

    def when(self, pod: Name, what: str) -> float:
        """Once it is: "bound", "ready" or "gone"."""
        key = (pod.name, what)
        with self._news:
            assert self._news.wait_for(lambda: key in self._seen, LIFE_S), f"{pod} is not {what}"
            return self._seen[key]

    def _follow(self) -> None:
        selection = Selection(namespace=self._namespace)
        while True:
            with suppress(errors.FleetError):
                for event in self._world.cluster.watch(PODS, selection, timeout_s=ROUND_S):
                    now = time.monotonic()
                    if event.change is Change.SYNCED:
                        self._begun.set()
                        continue
                    with self._news:
                        for what in _said(event.change, event.object):
                            self._seen.setdefault((name_of(event.object).name, what), now)
                        self._news.notify_all()


def _said(change: Change, pod: Object) -> Iterator[str]:
    if (pod.get("spec") or {}).get("nodeName"):
        yield "bound"
    for one in (pod.get("status") or {}).get("conditions") or []:
        if (one.get("type"), one.get("status")) == ("Ready", "True"):
            yield "ready"
    if change is Change.DELETED:
        yield "gone"


@dataclass
class Times:
    """Of one kind of pod, in seconds, one entry a pod."""

    bound: list[float] = field(default_factory=list)
    """From creation until it has a node."""
    ready: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    wiped: list[float] = field(default_factory=list)
    """Of `gone`, how long the wipe took by the times on its certificate."""
    late: int = 0


@dataclass
class Bench:
    """The cluster, and what is measured on it."""

    world: RealWorld
    namespace: str
    sight: Sight

    def template(self, device_class: str) -> dict[str, str]:
        """A template of claims for one device of a class; as a pod names it."""
        name = f"template-{secrets.token_hex(4)}"
        spec = workloads.claim_spec(Wish(device_class=device_class))
        body = workloads.template(name, self.namespace, spec)
        self.world.cluster.create(workloads.TEMPLATES, body)
        return {"resourceClaimTemplateName": name}

    def life(self, source: dict[str, str], times: Times) -> None:
        """One pod from its creation to its end."""
        name = Name(f"pod-{secrets.token_hex(4)}", self.namespace)
        image = self.world.place.image
        body = workloads.pod(
            name.name, self.namespace, ["sh", "-c", STAY], image=image, source=source
        )
        began = time.monotonic()
        self.world.cluster.create(PODS, body)
        ready = self.sight.when(name, "ready") - began
        bound = self.sight.when(name, "bound") - began
        time.sleep(1.0)  # the shell has set its trap, kubelet has said what it has to say
        began = time.monotonic()
        self.world.cluster.delete(PODS, name)
        gone = self.sight.when(name, "gone") - began
        if ready > LATE_S:
            times.late += 1
            return
        times.bound.append(bound)
        times.ready.append(ready)
        times.gone.append(gone)


@contextmanager
def idle(world: RealWorld) -> Iterator[None]:
    """The plugin that does nothing, as a process."""
    place = world.place
    command = [sys.executable, "-m", "tests.e2e.idle_plugin", "--node", world.node]
    command += ["--kubeconfig", str(place.kubeconfig), "--cdi", str(place.cdi_directory)]
    command += ["--kubelet-root", str(place.kubelet_root)]
    process = subprocess.Popen(command)
    try:
        fields = f"spec.nodeName={world.node},spec.driver={idle_plugin.DRIVER}"
        eventually(
            "the idle plugin has its slice",
            lambda: world.cluster.list(SLICES, Selection(fields=fields)).items,
            timeout_s=START_S,
        )
        yield
    finally:
        process.terminate()
        process.wait(20)


def profile(bench: Bench, name: str, root: Path, pods: int) -> tuple[Times, Times]:
    """Ours under a profile, and the idle plugin's, by turns."""
    state = root / name / "state"
    state.parent.mkdir()
    plugin = PluginProcess(bench.world.place, state, bench.world.node, profile=name)
    coordinator = CoordinatorProcess(bench.world.place, state)
    footing = Footing(bench.world.place, bench.world.cluster, plugin, bench.namespace, [])
    ours, yardstick = Times(), Times()
    plugin.start()
    try:
        eventually("it serves", plugin.serves, timeout_s=START_S, tell=plugin.told)
        if name == "strict":
            coordinator.start()
        sources = {one: bench.template(one) for one in (DRIVER, idle_plugin.DRIVER)}
        for number in range(pods + 1):
            first = number == 0  # warms what is read once, and is not counted
            eventually(
                "all devices are clean",
                lambda: not footing.left() and len(footing.clean_devices()) == DEVICES,
                timeout_s=START_S,
                period_s=0.5,
                tell=plugin.told,
            )
            bench.life(sources[idle_plugin.DRIVER], Times() if first else yardstick)
            bench.life(sources[DRIVER], Times() if first else ours)
            if not first:
                ours.wiped.append(_wiped_s(plugin))
    finally:
        if name == "strict":
            coordinator.stop()
        plugin.stop()
    return ours, yardstick


def _wiped_s(plugin: PluginProcess) -> float:
    """How long the newest wipe took, s."""
    found = [one for number in range(DEVICES) for one in plugin.certificates(f"gpu-{number}")]
    told = max((one.predicate for one in found), key=lambda one: str(one["ended_at"]))
    return dsse.seconds_of(told["ended_at"]) - dsse.seconds_of(told["started_at"])


def p50(found: Sequence[float]) -> float:
    """The median."""
    return statistics.median(found)


def p95(found: Sequence[float]) -> float:
    """The nearest rank."""
    return sorted(found)[math.ceil(0.95 * len(found)) - 1]


def shown(name: str, ours: Times, yardstick: Times) -> Iterator[str]:
    """The lines of one profile."""
    for what in ("bound", "ready", "gone"):
        mine, theirs = getattr(ours, what), getattr(yardstick, what)
        yield (
            f"{name:7} {'create' if what != 'gone' else 'delete'} -> {what:5}  "
            f"ours p50 {p50(mine):.2f} p95 {p95(mine):.2f} s,  "
            f"idle plugin p50 {p50(theirs):.2f} p95 {p95(theirs):.2f} s,  "
            f"more: {p50(mine) - p50(theirs):+.2f} s"
        )
    more = p50(ours.ready) - p50(yardstick.ready)
    wipe = p50(ours.wiped)
    end = p50(ours.gone) - p50(yardstick.gone) - wipe
    for told, found, wanted in (
        ("create -> ready", more, WANTED_START_S[name]),
        (f"delete -> gone without its wipe of {wipe:.2f} s", end, WANTED_END_S),
    ):
        verdict = "met" if found <= wanted else "MISSED"
        yield f"{name:7} {told}: {found:+.2f} s, wanted at most {wanted:+.2f} s: {verdict}"
    if ours.late or yardstick.late:
        yield f"{name:7} left out as late: {ours.late} of ours, {yardstick.late} of the idle plugin"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=10, help="Pods of each kind.")
    parser.add_argument("--profiles", nargs="+", default=["fast", "strict"])
    asked = parser.parse_args()
    world = RealWorld()
    namespace = f"fleet-bench-{secrets.token_hex(3)}"
    world.open_namespace(namespace)
    before = os.getloadavg()[0]
    lines: list[str] = []
    try:
        bench = Bench(world, namespace, Sight(world, namespace))
        with tempfile.TemporaryDirectory(prefix="pods") as root, idle(world):
            for name in asked.profiles:
                lines += shown(name, *profile(bench, name, Path(root), asked.pods))
    finally:
        world.end_namespace(namespace)
        world.close()
    load = f"load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    head = f"{os.cpu_count()} cores, {load}; {asked.pods} pods of each kind, one at a time"
    sys.stdout.write("\n".join((head, *lines, "")))


if __name__ == "__main__":
    main()
