"""One API server to put questions to by plain HTTP: the stand-in, or a real cluster.

A real one takes part when FLEET_E2E_KUBECONFIG names its administrator's kubeconfig. Nothing here
is shared with the product's own client: the rows are facts about servers.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import secrets
import ssl
import tempfile
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from fleet.core.clock import ManualClock
from fleet.kube.base import Object
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.server import StandIn

KUBECONFIG = os.environ.get("FLEET_E2E_KUBECONFIG", "")
JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
START = 1_764_000_000.0
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    code: int
    body: Object

    @property
    def reason(self) -> str:
        """The reason of a Status."""
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        """The message of a Status."""
        return str(self.body.get("message", ""))

    @property
    def causes(self) -> list[tuple[str, str, str]]:
        """(reason, field, message) of every cause."""
        return [
            (cause.get("reason", ""), cause.get("field", ""), cause.get("message", ""))
            for cause in self.body.get("details", {}).get("causes", [])
        ]

    def ok(self) -> Object:
        """The body of a success."""
        assert 200 <= self.code < 300, (self.code, self.message)
        return self.body


@dataclass(frozen=True, slots=True)
class Grant:
    """One right of a service account. `cluster`: by a ClusterRoleBinding."""

    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    cluster: bool = False


class Server(Protocol):
    """What the rows need of a server."""

    def send(
        self, method: str, path: str, body: Any = None, *, content_type: str = "", token: str = ""
    ) -> Reply:
        """One request; `token` "" is the administrator's. A `body` of bytes is sent as it is."""
        ...

    def account(self, grants: list[Grant], *, node: str = "") -> tuple[str, str]:
        """A new service account with these rights: its user name and a token (bound to `node`)."""
        ...

    def node(self) -> str:
        """The name of a node that exists."""
        ...

    def later(self) -> None:
        """Let more than a second go by."""
        ...

    def close(self) -> None:
        """Remove the accounts made."""
        ...


class StandInServer:
    """The stand-in, its time standing still."""

    def __init__(self, standin: StandIn, access: Access, clock: ManualClock) -> None:
        """`standin` serves already."""
        self._standin = standin
        self._access = access
        self._clock = clock

    def send(
        self, method: str, path: str, body: Any = None, *, content_type: str = "", token: str = ""
    ) -> Reply:
        """As `Server.send`."""
        connection = HTTPConnection("127.0.0.1", self._standin.port, timeout=10)
        return _exchange(
            connection, method, path, body, {
                "Authorization": f"Bearer {token or self._standin.token}",
                "Content-Type": content_type or JSON,
            },
        )  # fmt: skip

    def account(self, grants: list[Grant], *, node: str = "") -> tuple[str, str]:
        """As `Server.account`."""
        name = f"account-{secrets.token_hex(4)}"
        user, token = f"system:serviceaccount:default:{name}", secrets.token_hex(16)
        for grant in grants:
            namespace = "" if grant.cluster else "default"
            self._access.rules.append(
                Rule(user, grant.verbs, (grant.resource,), grant.names, namespace)
            )
        self._standin.accept(token, Caller(user, node))
        return user, token

    def node(self) -> str:
        """As `Server.node`."""
        return "node-1"

    def later(self) -> None:
        """As `Server.later`."""
        self._clock.advance(2)

    def close(self) -> None:
        """As `Server.close`."""
        self._standin.close()


def standing_in() -> StandInServer:
    """A stand-in that serves."""
    clock = ManualClock(START)
    access = Access()
    standin = StandIn(Engine(clock=clock, access=access)).start()
    return StandInServer(standin, access, clock)


class RealServer:
    """A real cluster, as its administrator."""

    def __init__(self, kubeconfig: str) -> None:
        """Read the current context of `kubeconfig`."""
        yaml = importlib.import_module("yaml")
        config = yaml.safe_load(Path(kubeconfig).read_text())
        chosen = {entry["name"]: entry["context"] for entry in config["contexts"]}
        context = chosen[config["current-context"]]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        self._host = urlsplit(cluster["server"])
        self._token = str(user.get("token", ""))
        self._trust = ssl.create_default_context(cadata=None)
        with tempfile.TemporaryDirectory() as folder:
            if authority := _material(cluster, "certificate-authority", Path(folder)):
                self._trust.load_verify_locations(authority)
            if certificate := _material(user, "client-certificate", Path(folder)):
                key = _material(user, "client-key", Path(folder))
                self._trust.load_cert_chain(certificate, key)
        self._made: list[str] = []
        self._plain = ssl.create_default_context()
        self._plain.check_hostname = False
        self._plain.verify_mode = ssl.CERT_NONE

    def send(
        self, method: str, path: str, body: Any = None, *, content_type: str = "", token: str = ""
    ) -> Reply:
        """As `Server.send`."""
        # A client certificate would win over a service account's token.
        trust = self._plain if token else self._trust
        host, port = self._host.hostname or "", self._host.port
        connection = HTTPSConnection(host, port, context=trust, timeout=20)
        headers = {"Content-Type": content_type or JSON, "Accept": JSON}
        if token or self._token:
            headers["Authorization"] = f"Bearer {token or self._token}"
        return _exchange(connection, method, path, body, headers)

    def account(self, grants: list[Grant], *, node: str = "") -> tuple[str, str]:
        """As `Server.account`; waits until the rights are in force."""
        name = f"account-{secrets.token_hex(4)}"
        home = "/api/v1/namespaces/default/serviceaccounts"
        self._make(home, {"metadata": {"name": name}})
        for index, grant in enumerate(grants):
            self._bind(f"{name}-{index}", name, grant)
        spec: Object = {"expirationSeconds": 3600}
        if node:
            uid = self.send("GET", f"/api/v1/nodes/{node}").ok()["metadata"]["uid"]
            spec["boundObjectRef"] = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": uid}
        made = self.send("POST", f"{home}/{name}/token", {"spec": spec}).ok()
        token = str(made["status"]["token"])
        for grant in grants:
            self._wait_for(grant, token)
        return f"system:serviceaccount:default:{name}", token

    def node(self) -> str:
        """As `Server.node`."""
        items = self.send("GET", "/api/v1/nodes").ok()["items"]
        return str(items[0]["metadata"]["name"])

    def later(self) -> None:
        """As `Server.later`."""
        ends = time.monotonic() + 1.2
        while time.monotonic() < ends:
            self.send("GET", "/version")

    def close(self) -> None:
        """As `Server.close`."""
        for path in reversed(self._made):
            self.send("DELETE", path)

    def _bind(self, name: str, account: str, grant: Grant) -> None:
        group = "coordination.k8s.io" if grant.resource == "leases" else "resource.k8s.io"
        rule = {"apiGroups": [group], "resources": [grant.resource], "verbs": list(grant.verbs)}
        if grant.names:
            rule["resourceNames"] = list(grant.names)
        role = "ClusterRole" if grant.cluster else "Role"
        root = RBAC if grant.cluster else f"{RBAC}/namespaces/default"
        head = {"metadata": {"name": name}}
        self._make(f"{root}/{role.lower()}s", {**head, "rules": [rule]})
        binding = {
            **head,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
        }
        self._make(f"{root}/{role.lower()}bindings", binding)

    def _make(self, home: str, body: Object) -> None:
        self.send("POST", home, body).ok()
        self._made.append(f"{home}/{body['metadata']['name']}")

    def _wait_for(self, grant: Grant, token: str) -> None:
        plural, _, subresource = grant.resource.partition("/")
        wish = {
            "group": "resource.k8s.io",
            "resource": plural,
            "subresource": subresource,
            "verb": grant.verbs[0],
            "name": grant.names[0] if grant.names else "",
            "namespace": "" if grant.cluster else "default",
        }
        body = {"spec": {"resourceAttributes": wish}}
        ends = time.monotonic() + 10
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        while time.monotonic() < ends:
            if self.send("POST", path, body, token=token).body.get("status", {}).get("allowed"):
                return
        raise AssertionError(f"{grant} is not in force after 10 s")


def _named(entries: list[Any], name: str) -> Any:
    return next(entry for entry in entries if entry["name"] == name)


def _material(entry: Any, name: str, folder: Path) -> str:
    if inline := entry.get(f"{name}-data"):
        path = folder / name
        path.write_bytes(base64.b64decode(inline))
        return str(path)
    return str(entry.get(name, ""))


def _exchange(
    connection: HTTPConnection, method: str, path: str, body: Any, headers: dict[str, str]
) -> Reply:
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body, separators=(",", ":")).encode()
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        raw = answer.read()
    finally:
        connection.close()
    # Of a watch the first line counts.
    text = raw.decode().strip()
    found = json.JSONDecoder().raw_decode(text)[0] if text.startswith("{") else {}
    return Reply(answer.status, found)
