"""The world around the node in one story: API server, kubelet and tenants. It is never killed.

Kubelet repeats each call until it succeeds. Tenants are real processes that write a secret into the
memory they got and search it for the secrets of all before them.
"""

from __future__ import annotations

import json
import os
import random
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.core.messages import NodeView
from fleet.core.model import State
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.evidence import layout
from fleet.kube.base import CLAIMS, NODES, Name, uid_of
from fleet.wiring import adapters
from tests.chaos.kubelet.roles import Site, arm
from tests.chaos.kubelet.story import Act, Call, Story, Who
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn

CONVERGE_MAX_S = 30.0
"""Time, s, in which kubelet's repeated call succeeds, whoever was killed."""
REST_MAX_S = 20.0
"""Time, s, in which everything comes to rest once the last pod is gone."""
PAUSE_S = 0.1
"""Between two tries; kubelet waits longer, which would only take longer."""
CALL_S = 45.0
NAMESPACE = "tenants"
SECRET_BYTES = 32


@dataclass
class Tenant:
    """One pod with its claim and its secret."""

    number: int
    device: int
    pod: str = ""
    claim: str = ""
    secret: bytes = b""
    running: bool = False

    @property
    def name(self) -> Name:
        """Of the pod."""
        return Name(f"pod-{self.number}", NAMESPACE)

    @property
    def claimed(self) -> Name:
        """Name of its claim."""
        return Name(f"claim-{self.number}", NAMESPACE)


@dataclass
class World:
    """One story being told. Everything broken is a sentence in `broken`."""

    story: Story
    site: Site
    standin: StandIn
    broken: list[str]
    log: list[str]
    before: Callable[[Call], None] = lambda _: None
    """Called when everything for a call is ready, just before it is made."""

    def __post_init__(self) -> None:
        from tests.lab.kubelet.cgroups import PodCgroups
        from tests.lab.kubelet.connection import V1, Connection
        from tests.lab.kubelet.control import ControlPlane
        from tests.lab.kubelet.resources import Resources
        from tests.lab.kubelet.runtime import Runtime

        plan, kubernetes = self.site.plan, self.site.plan.settings.kubernetes
        self.cluster = MemoryCluster(self.standin.engine)
        self.control = ControlPlane(self.cluster, node=plan.node, now=time.time)
        root = Path(kubernetes.kubelet_root)
        self.runtime = Runtime(
            Path(kubernetes.cdi_directory), PodCgroups(Path(kubernetes.cgroup_root))
        )
        self.connection = Connection(str(root / "plugins" / kubernetes.driver / "dra.sock"), V1)
        self.resources = Resources(
            root / "dra_manager_state",
            read_claim=lambda namespace, name: self.cluster.get(CLAIMS, Name(name, namespace)),
            find=lambda _: self.connection,
            call_s=CALL_S,
        )
        self.backend = SimulatedBackend(layout.node_directory(Path(plan.state), plan.node) / "sim")
        self.door = adapters.open_door(plan)
        self.chance = random.Random(f"secrets/{self.story.seed}")
        self.tenants = [Tenant(n, device) for n, device in enumerate(self.story.devices)]

    # --- the story ---

    def play(self) -> None:
        """All calls, then the rest."""
        began = time.monotonic()
        wanted = self._offered if not self.story.patient else self._free
        if not self._wait(wanted, CONVERGE_MAX_S):
            self.broken.append("the devices never came to be on offer")
            return
        self.log.append(f"devices on offer after {time.monotonic() - began:.2f} s")
        for call in self.story.calls:
            self.perform(call)
            if self.broken:
                return
        self.rest()

    def perform(self, call: Call) -> None:
        """The pod comes or goes, and the call is made until it succeeds."""
        tenant = self.tenants[call.pod]
        if call.act is Act.PREPARE:
            self._appear(tenant)
        else:
            self._leave(tenant)
        for who in Who:
            mine = [blow.strike for blow in call.blows if blow.who is who]
            if mine and not arm(self.site, who, mine):
                self.broken.append(f"the {who} did not come back")
                return
        self.before(call)
        began = time.monotonic()
        tries = self._converge(call, tenant)
        took_s = time.monotonic() - began
        self.log.append(f"{call.act} of pod {call.pod}: {tries} tries, {took_s:.2f} s")
        if call.act is Act.PREPARE and not self.broken:
            self._begin(tenant)
        elif not self.broken:
            self._ended(tenant)

    def _converge(self, call: Call, tenant: Tenant) -> int:
        """Repeat a call until it succeeds; how often it was tried."""
        from tests.lab.kubelet.resources import PodIdentity

        identity = PodIdentity(NAMESPACE, tenant.name.name, tenant.pod, (tenant.claimed.name,))
        asked = self.resources.prepare if call.act is Act.PREPARE else self.resources.unprepare
        deadline, tries, last = time.monotonic() + CONVERGE_MAX_S, 0, ""
        while time.monotonic() < deadline:
            tries += 1
            try:
                asked(identity)
            except FleetError as error:
                last = error.detail
                time.sleep(PAUSE_S)
            else:
                return tries
        self.broken.append(f"{call} does not converge in {tries} tries: {last}")
        return tries

    # --- pods ---

    def _appear(self, tenant: Tenant) -> None:
        """Created, scheduled, bound."""
        claim = self.control.create_claim(tenant.claimed)
        pod = self.control.create_pod(tenant.name, claim=tenant.claimed.name)
        device = sorted(self.control.devices(), key=lambda seen: seen.name)[tenant.device]
        self.control.allocate(tenant.claimed, pod, device)
        self.control.bind(tenant.name)
        tenant.pod, tenant.claim = uid_of(pod), uid_of(claim)
        self.runtime.start_sandbox(tenant.pod)

    def _begin(self, tenant: Tenant) -> None:
        """The container starts: it finds nothing, and leaves its secret."""
        try:
            ids = [cdi for one in self._prepared(tenant) for cdi in one]
            container = self.runtime.create(tenant.pod, ids)
        except FleetError as error:
            self.broken.append(f"pod {tenant.number} is prepared and cannot start: {error.detail}")
            return
        for other in self.tenants:
            if other.running and other.device == tenant.device:
                self.broken.append(f"pods {other.number} and {tenant.number} have one device")
            if other.secret:
                seen = container.ask("search", other.secret)
                if seen["found"] or seen["nonzero"]:
                    self.broken.append(
                        f"pod {tenant.number} finds {seen['found']} pieces of pod {other.number},"
                        f" {seen['nonzero']} bytes are not zero"
                    )
        tenant.secret = bytes(self.chance.randrange(1, 256) for _ in range(SECRET_BYTES))
        container.ask("write", tenant.secret)
        tenant.running = True
        if tenant.number in self.story.early:
            self._asked_early(tenant)

    def _prepared(self, tenant: Tenant) -> list[tuple[str, ...]]:
        found = next(one for one in self.resources.entries() if one.uid == tenant.claim)
        return [device.cdi_ids for listed in found.drivers.values() for device in listed]

    def _asked_early(self, tenant: Tenant) -> None:
        """A teardown asked for under a running pod is refused, and changes nothing."""
        from fleet.plugin.requests import AskedClaim

        asked = AskedClaim(NAMESPACE, tenant.claim, tenant.claimed.name)
        with suppress(errors.PluginUnavailable):
            answer = self.connection.unprepare([asked], timeout_s=CALL_S)[tenant.claim]
            if not answer.error:
                self.broken.append(f"pod {tenant.number} was torn down while it runs")

    def _leave(self, tenant: Tenant) -> None:
        """Deleted: its container ends first, with its memory as it left it."""
        container = self.runtime.container(tenant.pod)
        if container is not None and not container.ask("search", tenant.secret)["found"]:
            self.broken.append(f"pod {tenant.number} lost its memory while it ran")
        self.control.mark_deleted(tenant.name)
        self.runtime.remove_container(tenant.pod)
        tenant.running = False

    def _ended(self, tenant: Tenant) -> None:
        """Torn down: nothing of it is left on the node."""
        self.runtime.remove_sandbox(tenant.pod)
        with suppress(errors.ApiNotFound):
            self.control.erase(tenant.name)
        self.control.settle()
        self.control.delete_claim(tenant.claimed)
        self.control.settle()
        memory = self._memory(tenant)
        if memory.count(0) != len(memory):
            self.broken.append(f"pod {tenant.number} was torn down, its memory is not zero")
        left = [path.name for path in self.runtime.cdi_directory.glob(f"*{tenant.claim}*")]
        if left:
            self.broken.append(f"pod {tenant.number} was torn down, {left} is left")

    def _memory(self, tenant: Tenant) -> bytes:
        """The memory of its device; nothing while another tenant has it already."""
        if any(other.running and other.device == tenant.device for other in self.tenants):
            return b""
        accelerator = sorted(self.backend.inventory(), key=lambda one: one.device.name)
        content: bytes = self.backend.memory(accelerator[tenant.device].uuid).read_bytes()
        return content

    # --- rest ---

    def rest(self) -> None:
        """Everything clean and on offer, and nothing left anywhere."""
        began, last = time.monotonic(), ""

        def resting() -> bool:
            nonlocal last
            last = self._unrest()
            return not last

        if not self._wait(resting, REST_MAX_S):
            self.broken.append(f"no rest: {last}")
        self.log.append(f"at rest after {time.monotonic() - began:.2f} s")

    def _unrest(self) -> str:
        try:
            view, claims = self.door.view(), self.door.claims()
        except FleetError as error:
            return f"nobody owns the node: {error.detail}"
        if claims:
            return f"claims are left: {claims}"
        if view.outbox or view.degraded:
            return f"{view.outbox} acts in the outbox, {view.degraded}"
        if view.owed:
            return f"claims are owed to be let go: {view.owed}"
        if list(self.runtime.cdi_directory.glob("*")):
            return "a file is left in the CDI directory"
        self.control.settle()  # our hold may have gone after its last pass
        if left := self.cluster.list(CLAIMS).items:
            return f"a claim is left at the API server: {left}"
        return self._untrue(view)

    def _untrue(self, view: NodeView) -> str:
        """Where state, slices and the way there do not agree."""
        states = {device.name: device.state for device in view.devices}
        dirty = sorted(name for name, state in states.items() if state != State.CLEAN)
        if dirty:
            return f"{dirty} are {sorted(set(states.values()))}"
        shown = {seen.name: seen.taints for seen in self.control.devices() if seen.has_memory}
        if shown.keys() != states.keys():
            return f"the slices show {sorted(shown)}"
        tainted = {name: keys for name, keys in shown.items() if keys}
        return f"clean devices are not on offer: {tainted}" if tainted else ""

    def _offered(self) -> bool:
        return bool(self.control.devices())

    def _free(self) -> bool:
        return len(self.control.free()) == len(self.backend.inventory())

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def live(story: Story, site: Site, told: int) -> None:
    """Tell the story, then what came of it; never returns by an error of its own."""
    with StandIn() as standin:
        cluster = MemoryCluster(standin.engine)
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": site.plan.node}}
        cluster.create(NODES, body)
        standin.kubeconfig(site.kubeconfig)
        os.write(told, b"ready\n")
        broken: list[str] = []
        log: list[str] = []
        try:
            world = World(story, site, standin, broken, log)
            try:
                world.play()
            finally:
                world.runtime.power_off()
        except Exception:  # noqa: BLE001 - whatever it stumbles over is a finding of this seed
            broken.append(traceback.format_exc())
        os.write(told, f"ended {json.dumps({'broken': broken, 'log': log})}\n".encode())
