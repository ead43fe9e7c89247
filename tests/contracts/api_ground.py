"""Claims, slices and leases as the rows need them, on one API server."""

from __future__ import annotations

import secrets
from typing import Any

from fleet.kube.base import Object
from tests.contracts.api_server import APPLY, MERGE, Reply, Server

GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
TEMPLATES = f"{GROUP}/namespaces/default/resourceclaimtemplates"
SLICES = f"{GROUP}/resourceslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
DRIVER = "rows.fleetscrub.dev"
POOL = "rows"
DONE = "x.example.com/Sanitized"
FAILED = "x.example.com/SanitizationFailed"
AT = "2026-11-29T13:13:23Z"
HEAD = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"
HOLD = "x.example.com/hold"


def condition(kind: str = DONE, **fields: Any) -> Object:
    """A condition that is accepted, with `fields` changed; a field set to None is left out."""
    whole = {
        "type": kind,
        "status": "True",
        "reason": "Done",
        "message": "",
        "lastTransitionTime": AT,
        **fields,
    }
    return {key: value for key, value in whole.items() if value is not None}


def entry(device: str = "d0", *conditions: Object, **fields: Any) -> Object:
    """An entry of status.devices."""
    found = {"driver": DRIVER, "pool": POOL, "device": device, **fields}
    return {**found, "conditions": list(conditions)} if conditions else found


def allocation(*devices: str, timestamp: str = AT, node: str = "") -> Object:
    """An allocation of devices of our driver; results carry their condition lists."""
    results = [
        {
            "request": "gpu",
            "driver": DRIVER,
            "pool": POOL,
            "device": device,
            "bindingConditions": [DONE],
            "bindingFailureConditions": [FAILED],
        }
        for device in devices
    ]
    found: Object = {"devices": {"results": results}}
    if timestamp:
        found["allocationTimestamp"] = timestamp
    if node:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        found["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return found


def reservation(name: str) -> Object:
    """A reservation of our own kind, which no controller takes for a pod that is gone."""
    return {
        "apiGroup": "x.example.com",
        "resource": "sanitizations",
        "name": name,
        "uid": f"uid-of-{name}",
    }


class Ground:
    """One server, with objects of unique names that are removed at the end."""

    def __init__(self, server: Server) -> None:
        """`server` answers already."""
        self.server = server
        self._made: list[str] = []

    # --- requests ----------------------------------------------------------

    def send(self, method: str, path: str, body: Any = None, **options: str) -> Reply:
        """One request; options are `content_type` and `token`."""
        reply = self.server.send(method, path, body, **options)
        if reply.code == 201:
            metadata = reply.body.get("metadata", {})
            home = path.partition("?")[0]
            name = metadata.get("name", "")
            self._made.append(home if home.endswith(f"/{name}") else f"{home}/{name}")
        return reply

    def clean(self) -> None:
        """Remove what was made, whatever holds it."""
        for path in self._made:
            body = {"metadata": {"finalizers": None}}
            self.server.send("PATCH", path, body, content_type=MERGE)
            if path.startswith(CLAIMS):
                gone = {"status": {"allocation": None, "reservedFor": None}}
                self.server.send("PATCH", f"{path}/status", gone, content_type=MERGE)
            self.server.send("DELETE", path)

    # --- claims ------------------------------------------------------------

    def claim(self, *devices: str, node: str = "", finalizers: tuple[str, ...] = ()) -> str:
        """A claim with these devices allocated (none: not allocated); its path."""
        name = f"row-{secrets.token_hex(5)}"
        metadata: Object = {"name": name, "namespace": "default"}
        if finalizers:
            metadata["finalizers"] = list(finalizers)
        exact = {"deviceClassName": "rows"}
        body = {
            **HEAD,
            "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exact}]}},
        }
        self.send("POST", CLAIMS, body).ok()
        path = f"{CLAIMS}/{name}"
        if devices:
            self.allocate(path, allocation(*devices, node=node)).ok()
        return path

    def get(self, path: str) -> Object:
        """The object at `path`."""
        return self.send("GET", path).ok()

    def status(self, path: str) -> Object:
        """Its status."""
        found: Object = self.get(path).get("status", {})
        return found

    def conditions(self, path: str, device: str = "d0") -> dict[str, str]:
        """Type and status of the conditions of one device."""
        for found in self.status(path).get("devices", []):
            if found["device"] == device:
                return {item["type"]: item["status"] for item in found.get("conditions") or []}
        return {}

    def allocate(self, path: str, wanted: Object, **status: Any) -> Reply:
        """PUT of what was read with an allocation added."""
        found = self.get(path)
        found["status"] = {**found.get("status", {}), "allocation": wanted, **status}
        return self.put_status(path, found)

    def put_status(self, path: str, body: Object, *, token: str = "") -> Reply:
        """PUT to the status."""
        return self.send("PUT", f"{path}/status", body, token=token)

    def merge(self, path: str, body: Object, *, token: str = "") -> Reply:
        """A merge patch."""
        return self.send("PATCH", path, body, content_type=MERGE, token=token)

    def apply(
        self,
        path: str,
        status: Object,
        *,
        owner: str = "rows",
        force: bool = False,
        metadata: Object | None = None,
        token: str = "",
    ) -> Reply:
        """Server-side apply of a claim's status."""
        name = path.rpartition("/")[2]
        body = {**HEAD, "metadata": {"name": name, **(metadata or {})}, "status": status}
        query = f"fieldManager={owner}" + ("&force=true" if force else "")
        return self.send("PATCH", f"{path}/status?{query}", body, content_type=APPLY, token=token)

    def confirm(self, path: str, *entries: Object, **options: Any) -> Reply:
        """Server-side apply of status.devices."""
        return self.apply(path, {"devices": list(entries)}, **options)

    # --- slices ------------------------------------------------------------

    def slice(self, devices: list[Object], *, name: str = "") -> Object:
        """The body of a slice."""
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name or f"row-{secrets.token_hex(5)}"},
            "spec": {
                "driver": DRIVER,
                "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1},
                "nodeName": "row-node",
                "devices": devices,
            },
        }

    def publish(self, devices: list[Object]) -> Reply:
        """POST of a slice."""
        return self.send("POST", SLICES, self.slice(devices))

    def rewrite(self, found: Object, devices: list[Object]) -> Reply:
        """PUT of a slice that was read, with other devices."""
        path = f"{SLICES}/{found['metadata']['name']}"
        body = {**found, "spec": {**found["spec"], "devices": devices}}
        return self.send("PUT", path, body)

    # --- leases ------------------------------------------------------------

    def lease(self, name: str = "", **spec: Any) -> Object:
        """The body of a lease."""
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name or f"row-{secrets.token_hex(5)}", "namespace": "default"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, **spec},
        }
