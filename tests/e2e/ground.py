"""What the tests stand on: the cluster, a namespace of their own, and the plugin under test."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kubernetes import client as library
from kubernetes import config as library_config

from fleet.core import errors
from fleet.kube.base import (
    CLAIMS,
    EVENTS,
    PODS,
    SLICES,
    Cluster,
    Name,
    Object,
    Resource,
    Selection,
    name_of,
    uid_of,
)
from fleet.node import kubelet_checkpoint
from fleet.node.cgroups import CgroupTree
from tests.e2e import workloads
from tests.e2e.node_state import NodeState
from tests.e2e.place import Component, Place
from tests.e2e.plugin_process import DRIVER, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import TEMPLATES, TENANT, Wish

ANY = Wish()
AGENT = "agent"
"""The device by which our own worker has the others; in its CDI specs' names as well."""
RUN_S = 120.0
"""Time, s, a pod may take to run. Kubelet tries again only after 60 to 90 s where it failed itself:
now and then the API server's node authorizer has not heard of a pod yet."""
GONE_S = 60.0
CLEAN_S = 120.0
"""Time, s, until everything is given back: two looks of the orphan sweep included."""


@dataclass
class Footing:
    """The world of one test, whatever kind of cluster it stands on."""

    place: Place
    cluster: Cluster
    plugin: NodeState
    namespace: str
    figures: list[str]
    """Lines shown at the end of the run."""
    instances: list[PluginProcess] = field(default_factory=list)
    """Further instances of the plugin that a test has started."""

    # --- pods and claims ---

    def claim_template(self, wish: Wish = ANY, *, uuid: str = "") -> dict[str, str]:
        """A new template of a wish, or for the device of `uuid`; as a pod names it."""
        name = _new("template")
        spec = workloads.claim_spec(replace(wish, uuid=uuid) if uuid else wish)
        self.cluster.create(TEMPLATES, workloads.template(name, self.namespace, spec))
        return {"resourceClaimTemplateName": name}

    def named_claim(self, *, uuid: str = "") -> dict[str, str]:
        """A new claim for one device; as a pod names it."""
        name = _new("claim")
        spec = workloads.claim_spec(Wish(uuid=uuid))
        self.cluster.create(CLAIMS, workloads.claim(name, self.namespace, spec))
        return {"resourceClaimName": name}

    def post(self, path: str, body: bytes) -> Object:
        """POST JSON spelled just so, past our own client; what the server answers."""
        api = library_config.new_client_from_config(  # type: ignore[no-untyped-call]
            config_file=str(self.place.kubeconfig)
        )
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        with api:
            api.update_params_for_auth(headers, [], ["BearerToken"], path, "POST", body)
            answer = api.rest_client.pool_manager.request(
                "POST", f"{api.configuration.host}{path}", body=body, headers=headers, timeout=20.0
            )
        found: Object = json.loads(answer.data)
        assert answer.status == 201, found
        return found

    def run(
        self, command: Sequence[str], source: dict[str, str], *, restart: str = "Never"
    ) -> Name:
        """Create a pod; its name. It is not waited for."""
        name = _new("pod")
        body = workloads.pod(
            name,
            self.namespace,
            command,
            image=self.place.image,
            source=source,
            restart=restart,
        )
        self.cluster.create(PODS, body)
        return Name(name, self.namespace)

    def pod(self, name: Name) -> Object:
        """The pod now, {} when it is gone."""
        try:
            return self.cluster.get(PODS, name)
        except errors.ApiNotFound:
            return {}

    def in_phase(self, name: Name, *phases: str, timeout_s: float = RUN_S) -> Object:
        """The pod once it is in one of these phases; an AssertionError if it gets into another."""

        def look() -> Object | None:
            found = self.pod(name)
            return found if workloads.phase(found) in phases else None

        return eventually(
            f"pod {name} is {' or '.join(phases)}",
            look,
            timeout_s=timeout_s,
            tell=lambda: self.told(name),
        )

    def ended(self, name: Name, *, timeout_s: float = RUN_S) -> list[str]:
        """What the pod's container said, once it has ended well."""
        found = self.in_phase(name, "Succeeded", "Failed", timeout_s=timeout_s)
        assert workloads.phase(found) == "Succeeded", self.told(name)
        return workloads.said(workloads.container(found).get("state") or {})

    def delete(self, name: Name, *, timeout_s: float = GONE_S) -> None:
        """Delete a pod and wait until it is gone."""
        self.cluster.delete(PODS, name)
        self.gone(name, timeout_s=timeout_s)

    def gone(self, name: Name, *, timeout_s: float = GONE_S) -> None:
        """Wait until a pod is gone."""
        eventually(
            f"pod {name} is gone",
            lambda: not self.pod(name),
            timeout_s=timeout_s,
            tell=lambda: self.told(name),
        )

    def force_delete(self, name: Name) -> None:
        """Delete with grace 0: the API forgets the pod at once, whatever still runs."""
        api = library_config.new_client_from_config(  # type: ignore[no-untyped-call]
            config_file=str(self.place.kubeconfig)
        )
        with api:
            library.CoreV1Api(api).delete_namespaced_pod(
                name.name, name.namespace, grace_period_seconds=0
            )
        self.gone(name, timeout_s=5)

    def claim_of(self, name: Name) -> Object:
        """The claim of a pod, once it has one."""

        def look() -> Object | None:
            status = self.pod(name).get("status") or {}
            for one in status.get("resourceClaimStatuses") or []:
                if one.get("name") == TENANT and one.get("resourceClaimName"):
                    return self.cluster.get(CLAIMS, Name(one["resourceClaimName"], self.namespace))
            return None

        return eventually(f"pod {name} has its claim", look, timeout_s=10)

    def claims(self) -> Sequence[Object]:
        """The claims of the namespace."""
        return self._own(CLAIMS)

    def unscheduled(self, name: Name) -> str:
        """What the scheduler says about a pod it has no place for."""
        conditions = (self.pod(name).get("status") or {}).get("conditions") or []
        return next(
            (
                str(one.get("message", ""))
                for one in conditions
                if one.get("type") == "PodScheduled" and one.get("status") == "False"
            ),
            "",
        )

    def events(self, name: Name) -> list[str]:
        """Messages of the pod's events."""
        selection = Selection(
            namespace=self.namespace, fields=f"involvedObject.uid={uid_of(self.pod(name))}"
        )
        return [str(one.get("message")) for one in self.cluster.list(EVENTS, selection).items]

    def signal(self, pod_uid: str, number: int) -> None:
        """Send a signal to the first process of the pod's container, as its own would."""
        tree = CgroupTree(self.place.cgroup_root)
        pids = {
            int(line)
            for path in tree.pods(pod_uid)
            for procs in path.rglob("cgroup.procs")
            for line in procs.read_text().split()
        }
        shells = [pid for pid in sorted(pids) if Path(f"/proc/{pid}/comm").read_text() == "sh\n"]
        assert shells, "the pod's container has no process"
        os.kill(shells[0], number)

    def alive(self, pod_uid: str) -> bool:
        """Whether a process is in one of the pod's cgroups."""
        tree = CgroupTree(self.place.cgroup_root)
        return any(tree.occupied(path) for path in tree.pods(pod_uid))

    # --- devices ---

    def slices(self) -> list[Object]:
        """The slices of our driver for our node."""
        fields = f"spec.nodeName={self.plugin.node},spec.driver={DRIVER}"
        return list(self.cluster.list(SLICES, Selection(fields=fields)).items)

    def published(self) -> dict[str, Object]:
        """The devices in them by name."""
        return {
            device["name"]: device
            for one in self.slices()
            for device in one["spec"].get("devices") or []
        }

    def taints(self, device: str) -> set[str]:
        """Keys of a published device's taints, without the driver's name; AssertionError: none."""
        found = self.published()
        assert device in found, f"{device} is not published"
        return {
            taint["key"].removeprefix(f"{DRIVER}/") for taint in found[device].get("taints") or []
        }

    def uuid(self, device: str) -> str:
        """UUID of a device."""
        return str(self.published()[device]["attributes"]["uuid"]["string"])

    def memory(self, claim_uid: str) -> Path:
        """The file that is the memory of the claim's one device."""
        known = [one for one in self.plugin.claims() or () if one.uid == claim_uid]
        assert len(known) == 1, "the claim has no record"
        (uuid,) = known[0].devices
        return self.plugin.directory / "sim" / "memory" / f"{uuid}.bin"

    def clean_devices(self) -> list[str]:
        """Names of the devices that are clean and published without a taint."""
        view = self.plugin.view()
        published = self.published()
        return [
            one.name
            for one in (view.devices if view else ())
            if one.state == "CLEAN" and one.name in published and not self.taints(one.name)
        ]

    # --- everything given back ---

    def clean(self) -> None:
        """Delete what is left in the namespace, and wait until no trace of it is left."""
        for one in self.cluster.list(PODS, Selection(namespace=self.namespace)).items:
            self.cluster.delete(PODS, name_of(one))
        for one in self.cluster.list(CLAIMS, Selection(namespace=self.namespace)).items:
            self.cluster.delete(CLAIMS, name_of(one))
        eventually(
            "nothing is left", lambda: not self.left(), timeout_s=CLEAN_S, tell=self._told_left
        )

    def left(self) -> list[str]:
        """What pods and claims of the past have left, here and at the API."""
        found = [f"pod {name_of(one)}" for one in self._own(PODS)]
        found += [f"claim {name_of(one)} {one.get('status')}" for one in self._own(CLAIMS)]
        found += [f"spec {name}" for name in self.plugin.specs() if AGENT not in name]
        found += [f"lease {one.holder} {one.token}" for one in self.plugin.leases()]
        records = self.plugin.claims()
        view = self.plugin.view()
        if records is None or view is None:
            return [*found, "nobody owns the node"]
        found += [f"record {one.uid} {one.state}" for one in records]
        found += [f"{view.outbox} remote acts still to be done"] if view.outbox else []
        found += [
            f"{one.name} is {one.state} {one.claim} {one.reasons}"
            for one in view.devices
            if one.state != "CLEAN" or one.claim or one.reasons
        ]
        published = {name: one for name, one in self.published().items() if name != AGENT}
        found += [f"{name}: {one['taints']}" for name, one in published.items() if "taints" in one]
        if len(published) != len(view.devices):
            found.append(f"only {sorted(published)} are published")
        found += [f"kubelet remembers claim {uid}" for uid in self.remembered()]
        return found

    def remembered(self) -> list[str]:
        """UIDs of the claims that kubelet has on record."""
        return sorted(kubelet_checkpoint.read(self.place.checkpoint).pods)

    def _own(self, resource: Resource) -> Sequence[Object]:
        return self.cluster.list(resource, Selection(namespace=self.namespace)).items

    def _told_left(self) -> str:
        return "\n".join((*self.left(), self.plugin.told()))

    def told(self, name: Name) -> str:
        """All there is to know about a pod that does not do as it should."""
        found = self.pod(name)
        status = str(found.get("status"))
        return "\n".join((status, *self.events(name), *self.left(), self.plugin.told()))


@dataclass(kw_only=True)
class Ground(Footing):
    """The world of one test on a real cluster, with its kubelet."""

    plugin: PluginProcess
    kubelet: Component


def _new(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(4)}"
