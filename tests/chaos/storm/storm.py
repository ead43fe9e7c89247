"""One storm from its beginning to its verdict."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.storm import hosts, plan, verdict
from tests.chaos.storm.campaigns import Campaigns
from tests.chaos.storm.exposure import Exposures
from tests.chaos.storm.log import Story
from tests.chaos.storm.plan import Blow
from tests.chaos.storm.reading import NodeDisk
from tests.chaos.storm.site import DEVICES
from tests.chaos.storm.striking import Striker
from tests.chaos.storm.system import System
from tests.chaos.storm.tenants import CALM_MAX_S, Kubelet, Slot
from tests.chaos.storm.verdict import Operator
from tests.chaos.storm.watch import Watch

FIRST_POD_MAX_S = 300.0
"""Time, s, in which the first pod runs; faults fall from then on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a storm is to be."""

    minutes: float
    seed: int
    nodes: int
    gap_s: float
    log: Path


class Storm:
    """Everything in its place. `run` once."""

    def __init__(self, root: Path, asked: Asked) -> None:
        self.asked = asked
        self.story = Story(asked.log, seed=asked.seed)
        self.system = System(root, self.story, count=asked.nodes)
        self.disks = {place.node: NodeDisk(place) for place in self.system.places}
        self.exposures = Exposures(self.story, self.disks, self.system.stores)
        self.campaigns = Campaigns(self.system)
        self.striker = Striker(self.system, self.campaigns)
        self.watch = Watch(self.system, self.disks)
        self.operator = Operator(self.system)
        self.stopping, self.calm = threading.Event(), threading.Event()
        self.slots: list[Slot] = []
        self.settled_s = -1.0

    def run(self) -> None:
        """The storm, then the calm, then the judgement; findings are in the story."""
        story = self.story
        story.tell(
            "storm",
            seed=self.asked.seed,
            minutes=self.asked.minutes,
            nodes=self.asked.nodes,
            ground="namespaces" if hosts.own() else "none: one node",
            full_disk=self.system.places[0].disk.told,
        )
        self.system.start()
        self._inhabit()
        self._await_pods()
        began_s = story.now_s
        ends = began_s + 60.0 * self.asked.minutes
        blows = plan.draw(
            self.asked.seed,
            seconds=60.0 * self.asked.minutes,
            nodes=self.asked.nodes,
            gap_s=self.asked.gap_s,
        )
        self._strike(blows, began_s)
        while story.now_s < ends and not story.broken:
            threading.Event().wait(0.2)
        self.striker.calm()
        self._calm()

    def _inhabit(self) -> None:
        system = self.system
        self.kubelets = [Kubelet(system, place) for place in system.places]
        for kubelet in self.kubelets:
            for device in range(DEVICES):
                slot = Slot(
                    system, kubelet, self.exposures, device, stopping=self.stopping, calm=self.calm
                )
                self.slots.append(slot)
                system.loop(f"slot {kubelet.place.node}/{device}", slot.step, 0.2)
        system.loop("watch", self.watch.step, 1.5)
        system.loop("operator", self.operator.step, 3.0)

    def _await_pods(self) -> None:
        deadline = time.monotonic() + FIRST_POD_MAX_S
        while not self.exposures.count and not self.story.broken:
            if time.monotonic() > deadline:
                self.story.breaks(f"no pod runs {FIRST_POD_MAX_S:g} s after the start")
            threading.Event().wait(0.2)
        self.story.tell("first pod")
        self.system.loop("campaigns", self._campaign, 0.5)

    def _campaign(self) -> None:
        if not self.stopping.is_set():
            self.campaigns.step()

    def _strike(self, blows: list[Blow], began_s: float) -> None:
        for blow in blows:
            while self.story.now_s < began_s + blow.at_s:
                threading.Event().wait(0.05)
                if self.story.broken:
                    return
            self.striker.strike(blow)

    def _calm(self) -> None:
        self.story.tell("calm")
        if self.story.broken:
            self.stopping.set()
            return
        self.stopping.set()
        self.calm.set()
        began = time.monotonic()
        deadline = began + CALM_MAX_S
        while time.monotonic() < deadline and (
            self.campaigns.pid or any(slot.busy for slot in self.slots)
        ):
            threading.Event().wait(0.2)
        for run in self.campaigns.settle(deadline):
            self.story.breaks(f"run {run} does not end")
        _, left = verdict.settled(self.system, max(1.0, deadline - time.monotonic()))
        self.settled_s = time.monotonic() - began
        for one in left:
            self.story.breaks(f"not at rest {self.settled_s:.0f} s after the last fault: {one}")
        self.story.tell("settled" if not left else "unsettled", after_s=round(self.settled_s, 1))
        if self.story.broken:
            return
        self.story.tell("ending")
        self.system.quiet()
        for kubelet in self.kubelets:
            kubelet.end()
        self.system.end_services()
        for one in verdict.at_the_end(self.system):
            self.story.breaks(f"at the end: {one}")

    def told(self) -> str:
        """What happened, in lines."""
        story, seen, asked = self.story, self.exposures, self.asked
        faults = {name: n for name, n in sorted(story.counts.items()) if ": " in name}
        starts = ", ".join(f"{n} {p.starts}" for n, p in self.system.plugins.items())
        shape = f"{asked.nodes} nodes x {DEVICES} devices"
        disk = self.system.places[0].disk.told
        lines = [f"  {n} x {name}" for name, n in faults.items()]
        lines.append(f"storm of {asked.minutes:g} minutes, seed {asked.seed}, {shape}")
        lines.append(
            f"{sum(faults.values())} faults, {self.striker.missed} met nobody; full disk: {disk}"
        )
        lines.append(f"log of faults: {story.path}")
        lines.append(
            f"{seen.count} exposures, {seen.certified} certificates verified at them,"
            f" {story.counts['pod given up']} pods given up, {self.watch.looks} looks at journals"
        )
        lines.append(
            f"campaigns by exit code: {dict(sorted(self.campaigns.ended.items()))};"
            f" quarantines cleared by the operator: {self.operator.cleared}"
        )
        lines.append(f"starts of plugins: {starts}; of Ray's head: {self.system.rays.starts}")
        lines += [f"BROKEN {one}" for one in story.broken]
        lines.append(
            f"{len(story.broken)} broken promises,"
            f" settled {self.settled_s:.1f} s after the last fault"
        )
        return "\n".join(lines)


def run(root: Path, asked: Asked) -> list[str]:
    """Let it storm below `root`; what was broken. Prints what happened."""
    storm = Storm(root, asked)
    try:
        storm.run()
    finally:
        storm.stopping.set()
        storm.campaigns.end()
        storm.system.end()
        sys.stdout.write(storm.told() + "\n")
        sys.stdout.flush()
        storm.story.close()
    return storm.story.broken
