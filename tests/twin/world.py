"""`World`: one cluster and what users and misfortune may do to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from fleet.cli.store import Terms, follow
from fleet.core import errors
from fleet.core.model import HolderKind
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object, Selection, uid_of
from tests.lab.apiserver.engine import Target
from tests.lab.apiserver.kinds import CLAIM_TEMPLATES
from tests.lab.apiserver.removal import Preconditions
from tests.twin import objects
from tests.twin.assembly import SPACE, Assembly, Plan

__all__ = ["Plan", "World"]


class World(Assembly):
    """One cluster. Methods act at once; time passes in `run` and `settle`."""

    _store_backup: Any = None

    # --- pods ------------------------------------------------------------------------------------

    def template(self, count: int, space: str = SPACE, *, tolerant: bool = False) -> Name:
        """A template for `count` devices, made when it is first asked for."""
        name = Name(f"gpus-{count}{'-tolerant' if tolerant else ''}", space)
        if not self.engine.has(Target(CLAIM_TEMPLATES, name)):
            content = objects.spec(count, tolerant=tolerant)
            self.admin.create(CLAIM_TEMPLATES, objects.template(name, content))
        return name

    def pod(
        self,
        *,
        count: int = 1,
        claim: str = "",
        space: str = SPACE,
        claims: int = 1,
        tolerant: bool = False,
    ) -> Name:
        """A pod with `claims` claims of `count` devices from a template, or with a named claim.

        `tolerant`: its claims tolerate every taint.
        """
        self._pods += 1
        name = Name(f"p{self._pods}", space)
        if claim:
            uses: list[Object] = [{"name": "c0", "resourceClaimName": claim}]
        else:
            made = self.template(count, space, tolerant=tolerant).name
            uses = [{"name": f"c{i}", "resourceClaimTemplateName": made} for i in range(claims)]
        self.admin.create(PODS, objects.pod(name, uses))
        self.note(f"pod {name} {claim or count}{' tolerant' if tolerant else ''}")
        return name

    def named_claim(self, text: str, *, count: int = 1, space: str = SPACE) -> Name:
        """A claim that outlives its pods."""
        name = Name(text, space)
        self.admin.create(CLAIMS, objects.claim(name, objects.spec(count)))
        self.note(f"claim {name}")
        return name

    def delete(self, name: Name, *, force: bool = False) -> None:
        """Delete a pod; by force its object is gone at once."""
        self.note(f"delete {name}{' by force' if force else ''}")
        target = Target(PODS, name)
        if self.engine.has(target):
            self.engine.delete(target, Preconditions(grace_s=0 if force else None))

    def steal(self, claim: Name, victim: Name) -> None:
        """Somebody else allocates to `claim` what `victim` has: the server does not mind."""
        known = self.sight.all(CLAIMS)
        mine, theirs = known.get(claim), known.get(victim)
        given = objects.allocation(theirs) if theirs else None
        if mine is None or given is None or objects.allocation(mine) or objects.deleting(mine):
            return
        wanted = mine["spec"]["devices"]["requests"][0]["exactly"].get("count", 1)
        results = [{**one, "request": "gpu"} for one in given["devices"]["results"]]
        if len(results) != wanted:
            return
        self.note(f"{claim} steals from {victim}")
        self.stolen.add(claim)
        body = self.admin.replace(CLAIMS, objects.with_finalizers(mine, add=objects.BUILTIN))
        stolen = {
            **given,
            "devices": {"results": results},
            "allocationTimestamp": objects.stamp(self.timeline.now()),
        }
        body = objects.with_status(body, allocation=stolen)
        self.admin.replace(CLAIMS, body, subresource="status")

    def clear_allocation(self, claim: Name) -> None:
        """An administrator ends an allocation by hand, reservations and all."""
        found = self.sight.all(CLAIMS).get(claim)
        if found is not None and objects.allocation(found) is not None:
            self.note(f"allocation of {claim} is cleared")
            self.checker.excused.add(uid_of(found))
            for one in objects.results(found):  # its pod was not ended with it, and may run on
                self.checker.blame(one["pool"], one["device"])
            body = objects.with_status(found, allocation=None, reservedFor=None, devices=None)
            self.admin.replace(CLAIMS, body, subresource="status")

    def delete_claim(self, name: Name) -> None:
        """Delete a claim."""
        self.note(f"delete claim {name}")
        self.admin.delete(CLAIMS, name)

    def finish(self, name: Name) -> None:
        """The pod's containers end by themselves."""
        self.note(f"finish {name}")
        for kubelet in self.kubelets.values():
            kubelet.finish(name)

    def delete_namespace(self, space: str) -> None:
        """Delete a namespace with all that is in it."""
        self.note(f"delete namespace {space}")
        self.controller.namespaces.add(space)
        self._controller_alarm.wake(0.05)

    # --- trouble ---------------------------------------------------------------------------------

    def kill_coordinator(self, index: int = 0) -> None:
        """kill -9 of a coordinator."""
        self.note("coordinator is killed")
        self.chiefs.pop(index).stop()

    def restart_scheduler(self) -> None:
        """A new scheduler that knows nothing."""
        self.note("scheduler restarts")
        self._scheduler_alarm.stop()
        old = self.scheduler
        self.sight.ignore(old.pools.changed)
        self.sight.ignore(old._changed)
        self.scheduler = self._new_scheduler()
        self.scheduler.bound, self.scheduler.on_bound = old.bound, old.on_bound
        self._scheduler_alarm.wake(1.0)

    def crash_node(self, name: str) -> None:
        """kill -9 of the node service."""
        self.note(f"service of {name} is killed")
        if self.nodes[name].alive:
            self.nodes[name].crash()

    def start_node(self, name: str) -> None:
        """Start the node service again."""
        self.note(f"service of {name} starts")
        if not self.nodes[name].alive:
            self.nodes[name].start()

    def restart_plugin(self, name: str) -> None:
        """A new plugin process."""
        self.note(f"plugin of {name} restarts")
        self.plugins[name].stop()
        self._plug(name)

    def second_plugin(self, name: str) -> Callable[[], None]:
        """A new plugin process beside the old one; call what is returned to end the old."""
        self.note(f"{name} has two plugins")
        old = self.plugins[name]
        self._plug(name)
        self.spare.append(old)

        def end() -> None:
            old.stop()
            if old in self.spare:
                self.spare.remove(old)

        return end

    def power_off(self, name: str) -> None:
        """The node is off."""
        self.note(f"{name} is off")
        if self.kubelets[name].down:
            return
        self.crash_node(name)
        for plugin in (self.plugins[name], *(p for p in self.spare if p.node.name == name)):
            plugin.stop()
        self.spare = [plugin for plugin in self.spare if plugin.node.name != name]
        self.kubelets[name].power_off()
        self.nodes[name].hardware.boot(f"off-{self.nodes[name].starts}")

    def claimed(self, node: str, device: str) -> bool:
        """Whether a claim has a device by the API's word, the store's or the node's."""
        found = next(d for d in self.nodes[node].hardware.devices.values() if d.name == device)
        known = self.nodes[node].registry.journal.units
        rows = [self.store._rows.get(unit) for unit in found.units]
        return (
            any(row is not None and row.holder.kind is HolderKind.CLAIM for row in rows)
            or any(unit in known and known[unit].claim for unit in found.units)
            or any(
                (one["pool"], one["device"]) == (node, device)
                for claim in self.sight.all(CLAIMS).values()
                for one in objects.results(claim)
            )
        )

    def swap_card(self, name: str, index: int) -> None:
        """While the node is off another card takes the place of one."""
        self.note(f"card {index} of {name} is swapped")
        self.nodes[name].hardware.swap(index)

    def back_up(self) -> None:
        """Copies of all journals and of the store, to be restored some day."""
        for node in self.nodes.values():
            journal = node.kept.journal
            node.kept.backup = journal.copy() if journal is not None else None
        self._store_backup = (dict(self.store._rows), self.store._stored)

    def lose_journal(self, name: str, *, restored: bool) -> None:
        """The service is killed, and its journal is gone, or an older copy."""
        kept = self.nodes[name].kept
        self.note(f"journal of {name} is {'restored' if restored else 'lost'}")
        self.crash_node(name)
        kept.journal = kept.backup.copy() if restored and kept.backup is not None else None

    def restore_store(self) -> None:
        """An older copy of the store takes its place; it grants until a node tells it better."""
        self.note("the store is restored")
        rows, stored = self._store_backup
        self.store._rows, self.store._stored = dict(rows), stored
        self.checker.doubtful = True

    def adopt_store(self) -> bool:
        """An operator adopts the store once all nodes answer; whether all is well then.

        It is due after a restored store, and where a restored journal follows an older epoch.
        """
        epochs = {node.registry.journal.epoch for node in self.nodes.values()}
        if not self.checker.doubtful and epochs <= {0, self.store.newest().epoch}:
            return True
        if any(not node.alive or node.frozen for node in self.nodes.values()):
            return False
        nodes: Mapping[str, Any] = self.nodes
        stores: Any = SimpleNamespace(leases=self.store)
        adoption = follow(stores, nodes, Terms("twin"))
        if adoption.failed or adoption.conflicts:
            self.note(f"adoption: {len(adoption.failed)} failed, {len(adoption.conflicts)} differ")
            return False
        self.note("the store is adopted")
        self.checker.doubtful = False
        return True

    def strip_taints(self, name: str) -> None:
        """Somebody takes the taints out of a node's slices."""
        self.note(f"taints of {name} are stripped")
        for found in list(self.sight.all(SLICES).values()):
            devices = found["spec"].get("devices") or ()
            if found["spec"].get("nodeName") == name and any(d.get("taints") for d in devices):
                bare = [{k: v for k, v in d.items() if k != "taints"} for d in devices]
                spec = {**found["spec"], "devices": bare}
                with suppress(errors.FleetError):
                    self.admin.replace(SLICES, {**found, "spec": spec})

    def power_on(self, name: str) -> None:
        """The node has booted."""
        self.note(f"{name} is on")
        if not self.kubelets[name].down:
            return
        self.nodes[name].start(new_boot=True)
        self._plug(name)
        self.kubelets[name].power_on(list(self.sight.all(PODS).values()))

    def wipe_slices(self, name: str) -> None:
        """All slices of a node go, as when its kubelet starts."""
        self.note(f"slices of {name} are deleted")
        self.engine.delete_collection(SLICES, Selection(fields=f"spec.nodeName={name}"))

    def forget_node(self, name: str) -> None:
        """The Node object is deleted, and with it go its slices."""
        self.note(f"Node {name} is deleted")
        self.admin.delete(NODES, Name(name))
        self.wipe_slices(name)

    def register_node(self, name: str) -> None:
        """The Node object is made again, under another UID."""
        if Name(name) not in self.sight.all(NODES):
            self.note(f"Node {name} is registered")
            self._register(name)

    # --- time ------------------------------------------------------------------------------------

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass, until `done` if that comes first."""
        return self.timeline.run_until(self.timeline.now() + seconds, done)

    def phase(self, name: Name) -> str:
        """A pod's phase, "" when it is gone."""
        found = self.sight.all(PODS).get(name)
        return str(found.get("status", {}).get("phase", "")) if found else ""

    def running(self, *names: Name) -> bool:
        """Whether all of these run."""
        return all(self.phase(name) == "Running" for name in names)

    def recover(self) -> None:
        """All trouble over: everything that is down comes back."""
        self.note("peace")
        self.dice.on = self.dice.outage = False
        self.dice.cut.clear()
        self.lucky = True
        for chief in self.chiefs:
            chief.wire.deaf = False
            chief.means.clock.ahead_s = 0.0
        for name in list(self.nodes):
            node = self.nodes[name]
            node.full = node.unwritable = node.silent = node.frozen = False
            node.clock.ahead_s = 0.0
            self.register_node(name)
            self.power_on(name)
            self.start_node(name)
        if not self.chiefs:
            self.start_coordinator()
        self._adopt_soon()

    def _adopt_soon(self) -> None:
        if not self.adopt_store():
            self.timeline.after(2.0, self._adopt_soon, "adoption")

    def settle(self, seconds: float = 400.0) -> list[str]:
        """All trouble over, all pods deleted: what is left after that time, [] for nothing."""
        self.note("settle")
        self.recover()
        for name in list(self.sight.all(PODS)):
            self.delete(name)
        left: list[str] = []

        def done() -> bool:
            return not self.checker.unsettled() and not self.sight.all(PODS)

        end = self.timeline.now() + seconds
        while self.timeline.now() < end:
            self.run(2.0)
            if done():
                return []
        left = self.checker.unsettled()
        return [*left, *(f"pod {name}" for name in self.sight.all(PODS))]
