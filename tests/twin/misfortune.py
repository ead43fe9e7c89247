"""What goes wrong in a story by itself: processes, machines, clocks, disks, networks, people.

Each act names what it is (`tests.twin.kinds`) and ends by itself, or at peace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from fleet.core import errors
from fleet.kube.base import NODES, Name
from tests.twin.node import TwinNode
from tests.twin.users import Move, Users
from tests.twin.world import World

STEPS_S = (-600.0, -90.0, -5.0, 5.0, 90.0, 600.0)


class Misfortune:
    """Trouble of one world."""

    def __init__(self, world: World, users: Users) -> None:
        self.world = world
        self.users = users

    def moves(self) -> Sequence[Move]:
        """What may happen. Clearing and backups are no trouble, but what trouble needs."""
        return (
            Move("clear", self._clear, 1),
            Move("back-up", lambda _: self.world.back_up(), 0.4),
            *self._of_devices(),
            *self._of_services(),
            *self._of_control(),
        )

    def _of_devices(self) -> Sequence[Move]:
        return (
            Move("device-fails", self._break, 1.2),
            Move("foreign-process", self._lose_trust, 0.3),
            Move("driver-reloaded", self._reload, 0.3),
            Move("tenant-lingers", self._linger, 0.4),
            Move("spec-removed", self._remove_spec, 0.3),
            Move("specs-unwritable", self._unwritable, 0.3),
            Move("disk-full", self._fill, 0.4),
            Move("card-swapped", self._swap, 0.15),
        )

    def _of_services(self) -> Sequence[Move]:
        return (
            Move("service-killed", self._crash, 1),
            Move("service-frozen", self._freeze, 0.4),
            Move("node-silent", self._silence, 1),
            Move("node-cut", self._cut, 0.4),
            Move("node-reboots", self._power, 0.5),
            Move("node-clock-steps", self._step_node, 0.4),
            Move("journal-lost", self._lose_journal, 0.3),
            Move("journal-restored", self._restore_journal, 0.3),
            Move("plugin-restarts", self._restart_plugin, 0.6),
            Move("two-plugins", self._two_plugins, 0.3),
            Move("kubelet-restarts", self._restart_kubelet, 0.5),
        )

    def _of_control(self) -> Sequence[Move]:
        return (
            Move("coordinator-killed", self._kill_chief, 1),
            Move("two-coordinators", self._second_chief, 0.5),
            Move("coordinator-deaf", self._deafen, 0.5),
            Move("coordinator-clock-steps", self._step_chief, 0.3),
            Move("store-restored", self._restore_store, 0.2),
            Move("api-outage", self._outage, 0.3),
            Move("scheduler-restarts", lambda _: self.world.restart_scheduler(), 0.3),
            Move("slices-deleted", self._slices, 0.3),
            Move("taints-stripped", self._strip, 0.3),
            Move("node-deleted", self._node_object, 0.2),
        )

    def _node(self, rng: random.Random) -> TwinNode:
        node = self.world.nodes[rng.choice(sorted(self.world.nodes))]
        kind = self.world.dice.struck[-1].partition("@")[0]
        self.world.weather.strike(kind, node.name)
        return node

    def _later(
        self, rng: random.Random, low: float, high: float, act: Callable[[], object]
    ) -> None:
        self.world.timeline.after(rng.uniform(low, high), act, "trouble ends")

    # --- devices ---

    def _device(self, rng: random.Random) -> tuple[TwinNode, int, str]:
        node, index = self._node(rng), rng.randrange(self.world.plan.devices)
        name = list(node.hardware.devices.values())[index].name
        return node, index, name

    def _break(self, rng: random.Random) -> None:
        node, index, name = self._device(rng)
        self.world.note(f"fault on {node.name} {name}")
        self.world.checker.blame(node.name, name)
        node.break_device(
            index, rng.choice(("ecc-uncorrectable", "memory-mismatch", "device-lost"))
        )

    def _clear(self, rng: random.Random) -> None:
        node = self._node(rng)
        bad = [
            device.name
            for device in node.registry.devices.values()
            if any(unit.reasons for unit in node.registry.units(device))
        ]
        if bad:
            units = node.registry.units(node.registry.device(bad[0]))
            found = sorted({reason.code for unit in units for reason in unit.reasons})
            codes = found[:1] if rng.random() < 0.3 else ()
            self.world.note(f"cleared {node.name} {bad[0]} {' '.join(codes)}")
            self.world.checker.cleared(node.name, bad[0])
            with suppress(errors.FleetError):
                node.quarantine_clear(bad[0], codes=codes)

    def _lose_trust(self, rng: random.Random) -> None:
        self._distrust(rng, driver=False)

    def _reload(self, rng: random.Random) -> None:
        self._distrust(rng, driver=True)

    def _distrust(self, rng: random.Random, *, driver: bool) -> None:
        node = self._node(rng)
        if node.registry.devices:
            node.lose_trust(rng.choice(sorted(node.registry.devices)), driver=driver)

    def _linger(self, rng: random.Random) -> None:
        """A pod is deleted by force, and what it started does not end."""
        name = self.users.some(rng, running=True)
        if name is None:
            return
        for kubelet in self.world.kubelets.values():
            if kubelet.runs(name):
                kubelet.lingers_s = rng.uniform(20.0, 200.0)
                for device in kubelet.node.hardware.devices.values():
                    self.world.checker.blame(kubelet.node.name, device.name)
        self.world.delete(name, force=True)

    def _remove_spec(self, rng: random.Random) -> None:
        hardware = self._node(rng).hardware
        if hardware.specs:
            uid = rng.choice(sorted(hardware.specs))
            self.world.note(f"spec of {uid} on {hardware.node} is removed")
            del hardware.specs[uid]

    def _unwritable(self, rng: random.Random) -> None:
        node = self._node(rng)
        self.world.note(f"CDI directory of {node.name} is unwritable")
        node.unwritable = True

        def end() -> None:
            node.unwritable = False

        self._later(rng, 1.0, 30.0, end)

    def _fill(self, rng: random.Random) -> None:
        node = self._node(rng)
        self.world.note(f"disk of {node.name} is full")
        node.full = True

        def end() -> None:
            node.full = False

        self._later(rng, 1.0, 30.0, end)

    def _swap(self, rng: random.Random) -> None:
        """Of a device that no claim has, as the manual asks; docs/simulation.md has the rest."""
        node, index, name = self._device(rng)
        if not self.world.kubelets[node.name].down and not self.world.claimed(node.name, name):
            self.world.power_off(node.name)
            self.world.checker.blame(node.name, name)
            self.world.swap_card(node.name, index)
            self._later(rng, 5.0, 40.0, lambda: self.world.power_on(node.name))

    # --- services and machines ---

    def _crash(self, rng: random.Random) -> None:
        self._killed(rng, self._node(rng))

    def _killed(self, rng: random.Random, node: TwinNode) -> None:
        self.world.crash_node(node.name)
        self._later(rng, 0.5, 20.0, lambda: self._up(node))

    def _up(self, node: TwinNode) -> None:
        if not self.world.kubelets[node.name].down:
            self.world.start_node(node.name)

    def _freeze(self, rng: random.Random) -> None:
        """It thaws in time, or the standby kills it and takes its place."""
        node = self._node(rng)
        if not node.alive or node.frozen:
            return
        self.world.note(f"service of {node.name} is frozen")
        node.frozen, starts, thaws = True, node.starts, rng.random() < 0.5

        def end() -> None:
            if node.alive and node.starts == starts:
                node.frozen = False
                if not thaws:
                    self._killed(rng, node)

        self._later(rng, 1.0 if thaws else 30.0, 60.0, end)

    def _silence(self, rng: random.Random) -> None:
        node = self._node(rng)
        self.world.note(f"{node.name} is silent")
        node.silent = True

        def end() -> None:
            node.silent = False

        self._later(rng, 1.0, 60.0, end)

    def _cut(self, rng: random.Random) -> None:
        node = self._node(rng)
        self.world.note(f"{node.name} is cut off")
        self.world.dice.cut.add(node.name)
        self._later(rng, 1.0, 60.0, lambda: self.world.dice.cut.discard(node.name))

    def _power(self, rng: random.Random) -> None:
        node = self._node(rng)
        if not self.world.kubelets[node.name].down:
            self.world.power_off(node.name)
            self._later(rng, 5.0, 40.0, lambda: self.world.power_on(node.name))

    def _step_node(self, rng: random.Random) -> None:
        node = self._node(rng)
        node.clock.ahead_s = rng.choice(STEPS_S)
        self.world.note(f"clock of {node.name} is {node.clock.ahead_s} s ahead")
        for device in node.hardware.devices.values():  # a deadline may come to pass at once
            self.world.checker.blame(node.name, device.name)

    def _lose_journal(self, rng: random.Random) -> None:
        node = self._node(rng)
        self.world.lose_journal(node.name, restored=False)
        self._later(rng, 0.5, 20.0, lambda: self._up(node))

    def _restore_journal(self, rng: random.Random) -> None:
        node = self._node(rng)
        if node.kept.backup is not None:
            self.world.lose_journal(node.name, restored=True)
            self._later(rng, 0.5, 20.0, lambda: self._up(node))
            self._adopt(rng)

    def _restart_plugin(self, rng: random.Random) -> None:
        node = self._node(rng)
        if not self.world.kubelets[node.name].down:
            self.world.restart_plugin(node.name)

    def _two_plugins(self, rng: random.Random) -> None:
        node = self._node(rng)
        if not self.world.kubelets[node.name].down:
            self._later(rng, 1.0, 30.0, self.world.second_plugin(node.name))

    def _restart_kubelet(self, rng: random.Random) -> None:
        kubelet = self.world.kubelets[self._node(rng).name]
        if not kubelet.down:
            self.world.note(f"kubelet of {kubelet.node.name} restarts")
            kubelet.restart()

    # --- what is there once ---

    def _kill_chief(self, rng: random.Random) -> None:
        if self.world.chiefs:
            self.world.kill_coordinator(rng.randrange(len(self.world.chiefs)))
        if not self.world.chiefs:
            self._later(rng, 0.5, 15.0, self._replace_chief)

    def _replace_chief(self) -> None:
        if not self.world.chiefs:
            self.world.start_coordinator()

    def _second_chief(self, rng: random.Random) -> None:  # noqa: ARG002 - nothing to draw
        if len(self.world.chiefs) < 2:
            self.world.start_coordinator()

    def _deafen(self, rng: random.Random) -> None:
        """A coordinator's watch hangs: it acts on what was."""
        if self.world.chiefs:
            wire = rng.choice(self.world.chiefs).wire
            self.world.note("a coordinator is deaf")
            wire.deaf = True

            def hear() -> None:
                wire.deaf = False

            self._later(rng, 5.0, 60.0, hear)

    def _step_chief(self, rng: random.Random) -> None:
        if self.world.chiefs:
            clock = rng.choice(self.world.chiefs).means.clock
            clock.ahead_s = rng.choice(STEPS_S)
            self.world.note(f"a coordinator's clock is {clock.ahead_s} s ahead")

    def _restore_store(self, rng: random.Random) -> None:
        """Until an operator adopts it: nobody knows, or it grants nothing."""
        if not self.world.checker.doubtful:
            self.world.restore_store()
            self._adopt(rng)

    def _adopt(self, rng: random.Random) -> None:
        def try_it() -> None:
            if not self.world.adopt_store():
                self._adopt(rng)

        self._later(rng, 3.0, 25.0, try_it)

    def _outage(self, rng: random.Random) -> None:
        self.world.note("the API server is away")
        self.world.dice.outage = True

        def back() -> None:
            self.world.dice.outage = False

        self._later(rng, 2.0, 30.0, back)

    def _slices(self, rng: random.Random) -> None:
        self.world.wipe_slices(self._node(rng).name)

    def _strip(self, rng: random.Random) -> None:
        self.world.strip_taints(self._node(rng).name)

    def _node_object(self, rng: random.Random) -> None:
        name = self._node(rng).name
        if Name(name) in self.world.sight.all(NODES):
            self.world.forget_node(name)
            self._later(rng, 2.0, 60.0, lambda: self.world.register_node(name))
