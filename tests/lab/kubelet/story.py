"""The life of pods on one node, told step by step, each step with what must hold.

What a newcomer sees first of the product: two tenants, one device, and everything that goes wrong
in a cluster between them. The telling ends with a summary; a promise that did not hold is named.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.core import errors
from fleet.kube.base import CLAIMS, Name, uid_of
from tests.lab.kubelet.control import ControlPlane, Seen
from tests.lab.kubelet.kubelet import KubeletSim
from tests.lab.kubelet.narration import Telling
from tests.lab.kubelet.pods import Phase, Pod, PodEvent
from tests.lab.kubelet.resources import PodIdentity
from tests.lab.kubelet.runtime import Container

SECRET_BYTES = 64
PATIENCE_S = 60.0
"""Time, s, for anything in the story; a wipe on a busy machine takes seconds."""
_PAUSE_S = 0.05


class Site(Protocol):
    """The node under the story: the plugin with all that belongs to it."""

    def start_plugin(self) -> None:
        """Start plugin and node service; returns once kubelet can find the plugin."""
        ...

    def stop_plugin(self) -> None:
        """End them, as an update does."""
        ...

    def new_boot(self) -> None:
        """Give the simulated node a new boot id; nothing of the plugin runs."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything the story acts on."""

    control: ControlPlane
    sim: KubeletSim
    site: Site
    cdi_directory: Path


@dataclass(frozen=True, slots=True)
class Tenant:
    """One pod with one claim on one device, and its secret."""

    pod: Pod
    name: Name
    claim: Name
    claim_uid: str
    device: Seen
    secret: bytes


class Story:
    """Tells the story once."""

    def __init__(self, stage: Stage, telling: Telling, *, patience_s: float = PATIENCE_S) -> None:
        """`patience_s`: what anything may take before it counts as not happening."""
        self._patience_s = patience_s
        self.stage = stage
        self.telling = telling
        self._sim = stage.sim
        self._control = stage.control

    def run(self) -> int:
        """All steps; 0 when everything held, else 1. What breaks off is told, not raised."""
        try:
            self._tell()
        except errors.FleetError as error:
            self.telling.expect(f"the story can be told to its end: {error}", holds=False)
        return self.telling.end()

    def _tell(self) -> None:
        self._devices_appear()
        alice = self._first_tenant()
        self._container_restarts(alice)
        self._stranger_asks(alice)
        self._kubelet_restarts(alice)
        self._plugin_restarts(alice)
        bob = self._second_tenant(alice)
        carol = self._deleted_by_force(bob)
        self._node_reboots(carol)
        self._nothing_is_left(carol)

    # --- steps ---------------------------------------------------------------

    def _devices_appear(self) -> None:
        self.telling.step("The node publishes its devices, once each is wiped and checked")
        self.stage.site.start_plugin()
        appeared = self._wait(lambda: bool(self._control.free()))
        for seen in self._control.devices():
            state = ", ".join(seen.taints) or "free"
            self.telling.line(f"   {seen.driver}/{seen.pool}/{seen.name}: {state}")
        self.telling.expect("a clean device is on offer", holds=appeared)
        if not appeared:
            raise errors.DeviceUnknown("no device came to be on offer")

    def _first_tenant(self) -> Tenant:
        self.telling.step("Tenant alice: claim allocated, prepared, container writes a secret")
        alice = self._started("alice")
        running = self._running(alice)
        self.telling.expect("alice runs", holds=running)
        self._show_spec(alice)
        written = self._container(alice).ask("write", alice.secret)
        found = self._search(alice, alice.secret)
        self.telling.expect(
            "her secret is in the device's memory", holds=bool(written["written"] and found)
        )
        return alice

    def _container_restarts(self, alice: Tenant) -> None:
        self.telling.step("Her container is restarted: CDI ids are resolved again, nobody is asked")
        before = self._container(alice).pid
        self._sim.restart_container(alice.pod.uid)
        self._expect_runs_again(alice, before)

    def _stranger_asks(self, alice: Tenant) -> None:
        self.telling.step(
            "A stranger's pod names her claim and is deleted: kubelet 1.36.2 unprepares it for that"
        )
        before, seen = self._container(alice).pid, len(self._sim.events)
        identity = PodIdentity(
            alice.claim.namespace, "stranger", str(uuid.uuid4()), (alice.claim.name,)
        )
        self._sim.add_pod(Pod(identity))
        self._wait(lambda: bool(self._sim.error(identity.uid)))
        self._sim.delete_pod(identity.uid)
        asked = self._wait(lambda: self._unprepares("stranger", seen) > 0)
        self.telling.expect("the plugin was asked to unprepare a claim in use", holds=asked)
        self.telling.expect(
            "her container runs on, and its spec is there",
            holds=self._container(alice).pid == before
            and any(alice.claim_uid in path.name for path in self._specs()),
        )
        self.telling.expect(
            "her memory is as she left it", holds=self._search(alice, alice.secret) > 0
        )
        self._sim.delete_pod(identity.uid, force=True)  # kubelet forgets it with its restart

    def _kubelet_restarts(self, alice: Tenant) -> None:
        self.telling.step(
            "Kubelet restarts: it deletes the node's slices and forgets what it asked"
        )
        before = self._container(alice).pid
        self._sim.restart()
        self.telling.expect(
            "the container is not touched", holds=self._container(alice).pid == before
        )
        self.telling.expect(
            "the plugin is registered again",
            holds=self._wait(lambda: bool(self._sim.plugins.registered())),
        )
        self.telling.expect(
            "the slices are published again",
            holds=self._wait(lambda: bool(self._control.devices())),
        )

    def _plugin_restarts(self, alice: Tenant) -> None:
        self.telling.step("The plugin restarts under her running pod")
        self.stage.site.stop_plugin()
        self.stage.site.start_plugin()
        self.telling.expect(
            "the plugin is registered again",
            holds=self._wait(lambda: bool(self._sim.plugins.registered())),
        )
        before = self._container(alice).pid
        self._sim.restart_container(alice.pod.uid)
        self._expect_runs_again(alice, before)

    def _second_tenant(self, alice: Tenant) -> Tenant:
        self.telling.step("alice is deleted; tenant bob gets the same device and searches it")
        self._ended(alice)
        again = self._wait(lambda: any(one.key == alice.device.key for one in self._control.free()))
        self.telling.expect("the device is on offer again, after a wipe", holds=again)
        bob = self._started("bob", device=alice.device, stubborn=True)
        self.telling.expect("bob runs", holds=self._running(bob))
        self._expect_clean(bob, alice)
        self._container(bob).ask("write", bob.secret)
        return bob

    def _deleted_by_force(self, bob: Tenant) -> Tenant:
        self.telling.step(
            "bob is deleted by force and ignores SIGTERM; the API gives his device to carol"
        )
        process = self._container(bob)
        refused = len(self._refusals("carol"))
        self._control.erase(bob.name, phase="Failed")
        self._sim.delete_pod(bob.pod.uid, force=True)
        self._control.settle()
        self._delete_claim(bob)
        carol = self._started("carol", device=bob.device)
        overlapped = False
        deadline = time.monotonic() + self._patience_s
        while self._sim.phase(carol.pod.uid) is not Phase.RUNNING:
            overlapped = overlapped or process.running()
            if time.monotonic() > deadline:
                break
            self._pass()
        self.telling.expect("carol's prepare was asked while bob's process ran", holds=overlapped)
        refusals = self._refusals("carol")[refused:]
        self.telling.expect(
            "every refusal of carol's prepare said why and named no claim of bob's",
            holds=all(
                "another claim" in event.detail and bob.claim_uid not in event.detail
                for event in refusals
            ),
        )
        running = self._running(carol)
        self.telling.expect(
            "carol runs, and only after bob's process was gone",
            holds=running and not process.running(),
        )
        self._expect_clean(carol, bob)
        self._container(carol).ask("write", carol.secret)
        return carol

    def _node_reboots(self, carol: Tenant) -> None:
        self.telling.step("The node reboots: processes and CDI directory are gone, memory is not")
        before = self._container(carol).pid
        self.stage.site.stop_plugin()
        self._sim.power_off()
        self.stage.site.new_boot()
        self.stage.site.start_plugin()
        self._sim.start()
        running = self._running(carol)
        again = running and self._container(carol).pid != before
        if not self.telling.expect("carol is prepared again and runs", holds=again):
            raise errors.ClaimUnready(f"carol does not run: {self._sim.error(carol.pod.uid)}")
        self.telling.expect(
            "not even her own secret survived: what a reboot leaves is unknown, so it is wiped",
            holds=self._search(carol, carol.secret) == 0,
        )

    def _nothing_is_left(self, carol: Tenant) -> None:
        self.telling.step("carol is deleted: nothing is left")
        self._ended(carol)
        free = self._wait(lambda: len(self._control.free()) == self._with_memory())
        self.telling.expect("every device is on offer", holds=free)
        self.telling.expect("no CDI spec is left", holds=not self._specs())
        claims = self._control.cluster.list(CLAIMS).items
        self.telling.expect("no claim is left at the API", holds=not claims)
        self.telling.expect("kubelet knows no claim", holds=not self._sim.resources.entries())

    # --- what steps are made of ----------------------------------------------

    def _started(self, name: str, *, device: Seen | None = None, stubborn: bool = False) -> Tenant:
        """Create pod and claim, allocate, wait for the conditions, bind: then it is kubelet's."""
        namespace = f"tenant-{name}"
        pod_name, claim_name = Name(name, namespace), Name(f"{name}-gpu", namespace)
        claim = self._control.create_claim(claim_name)
        pod = self._control.create_pod(pod_name, claim=claim_name.name)
        if device is None:
            device = self._control.free()[0]
        self._control.allocate(claim_name, pod, device)
        self.telling.line(f"   claim {claim_name} ({uid_of(claim)}) is allocated {device.name}")
        if not self._wait(lambda: self._control.ready(claim_name)):
            raise errors.ClaimUnready(f"the binding conditions of {claim_name} never came true")
        self._control.bind(pod_name)
        identity = PodIdentity(namespace, name, uid_of(pod), (claim_name.name,))
        tenant = Tenant(
            pod=Pod(identity, stubborn=stubborn),
            name=pod_name,
            claim=claim_name,
            claim_uid=uid_of(claim),
            device=device,
            secret=secrets.token_bytes(SECRET_BYTES),
        )
        self._sim.add_pod(tenant.pod)
        return tenant

    def _ended(self, tenant: Tenant) -> None:
        """Delete the pod normally and wait until kubelet is done with it."""
        self._control.mark_deleted(tenant.name)
        self._sim.delete_pod(tenant.pod.uid)
        gone = self._wait(lambda: self._sim.phase(tenant.pod.uid) is Phase.GONE)
        why = self._sim.error(tenant.pod.uid)
        self.telling.expect(f"{tenant.name.name} ends{f': {why}' if why else ''}", holds=gone)
        self._control.erase(tenant.name)
        self._delete_claim(tenant)

    def _delete_claim(self, tenant: Tenant) -> None:
        self._control.settle()
        self._control.delete_claim(tenant.claim)
        self._control.settle()

    def _running(self, tenant: Tenant) -> bool:
        return self._wait(lambda: self._sim.phase(tenant.pod.uid) is Phase.RUNNING)

    def _container(self, tenant: Tenant) -> Container:
        container = self._sim.runtime.container(tenant.pod.uid)
        if container is None:
            raise errors.ApiNotFound(f"{tenant.name} has no container")
        return container

    def _search(self, tenant: Tenant, secret: bytes) -> int:
        answer = self._container(tenant).ask("search", secret)
        self.telling.line(
            f"   {tenant.name.name} searched {answer['searched'] >> 20} MiB:"
            f" {answer['found']} pieces found, {answer['nonzero']} bytes are not zero"
        )
        return int(answer["found"])

    def _expect_clean(self, tenant: Tenant, earlier: Tenant) -> None:
        self.telling.expect(
            f"{tenant.name.name} finds nothing of {earlier.name.name}'s secret",
            holds=self._search(tenant, earlier.secret) == 0,
        )

    def _expect_runs_again(self, tenant: Tenant, pid: int) -> None:
        again = self._wait(
            lambda: (
                self._sim.phase(tenant.pod.uid) is Phase.RUNNING
                and self._container(tenant).pid != pid
            )
        )
        self.telling.expect("the new container has its device", holds=again)
        self.telling.expect(
            "her own memory is as she left it", holds=self._search(tenant, tenant.secret) > 0
        )

    def _refusals(self, pod: str) -> list[PodEvent]:
        return [e for e in tuple(self._sim.events) if e.pod == pod and "FailedPrepare" in e.what]

    def _unprepares(self, pod: str, since: int) -> int:
        """How often the plugin was asked to unprepare for this pod, whatever it answered."""
        words = ("FailedUnprepareDynamicResources", "NodeUnprepareResources answered")
        return sum(e.pod == pod and e.what in words for e in tuple(self._sim.events)[since:])

    def _show_spec(self, tenant: Tenant) -> None:
        for path in self._specs():
            if tenant.claim_uid in path.name:
                self.telling.line(f"   CDI spec {path.name}:")
                for line in path.read_text().splitlines():
                    self.telling.line(f"      {line}")

    def _specs(self) -> list[Path]:
        return sorted(self.stage.cdi_directory.glob("*.json"))

    def _with_memory(self) -> int:
        return sum(seen.has_memory for seen in self._control.devices())

    def _wait(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self._patience_s
        while not condition():
            if time.monotonic() >= deadline:
                return False
            self._pass()
        return True

    def _pass(self) -> None:
        """Let the controller do its part, and a little time pass."""
        self._control.settle()
        time.sleep(_PAUSE_S)
