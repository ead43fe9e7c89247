"""The generated policies in a real API server: it judges the corpus as the CEL here does."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import kubernetes
import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.admission.ground import GOVERNED_LABEL, Ground
from fleet.admission.policies import API_VERSION, files
from fleet.admission.rules import LINT_ONLY, TABLE
from fleet.kube.shapes import Object, group_and_version
from tests.deploy import manifests
from tests.e2e.place import Place
from tests.e2e.polling import eventually
from tests.fleet.admission import corpus
from tests.fleet.admission.apiserver import Request
from tests.fleet.admission.corpus import Case

pytestmark = pytest.mark.e2e
CASES = corpus.cases()
GOVERNED = sorted((manifests.ROOT / "helm" / "fleetscrub" / "namespaces").glob("*.yaml"))
OF_NAMESPACES = "fleetscrub-governed"
OF_ACCOUNTS = "'fleetscrub-claim-marks' denied request"
CLUSTER_SCOPED = ("DeviceClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
                  "CustomResourceDefinition", "Namespace", "ClusterRoleBinding")  # fmt: skip
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "CustomResourceDefinition": "customresourcedefinitions",
}
RAY_KINDS = ("RayCluster", "RayCronJob", "RayJob", "RayService")
DENIED = re.compile(r"denied request: ([A-Z]\d+-[a-z-]+): ")
WARNED = re.compile(r"with binding '[a-z-]+-warning': ([A-Z]\d+-[a-z-]+): ")


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    body: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def denied_by(self) -> set[str]:
        """Id of the rule it was denied by: of several the server names the first."""
        return set(DENIED.findall(self.body.get("message", "")))

    @property
    def rules(self) -> set[str]:
        """Ids of all rules it breaks, by the bindings that only warn."""
        return {found for text in self.warnings for found in WARNED.findall(text)}


@dataclass(frozen=True)
class Server:
    """A real API server, asked as anybody would, and a governed namespace of it."""

    host: str
    pool: Any
    """Connections of the administrator, by urllib3."""
    namespace: str

    def path(self, found: Object, name: str = "") -> str:
        """Where objects like this one are."""
        group, version = group_and_version(found)
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        kind = found["kind"]
        plural = PLURALS.get(kind) or Request({"kind": kind}).resource
        place = "" if kind in CLUSTER_SCOPED else f"/namespaces/{self.namespace}"
        return f"{base}{place}/{plural}" + (f"/{name}" if name else "")

    def ask(
        self, method: str, path: str, body: Object | None = None, *, user: str = "", query: str = ""
    ) -> Answer:
        """One request; whatever the answer is."""
        merge = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": merge, "Accept": "application/json"}
        if user:
            headers["Impersonate-User"] = user
        answer = self.pool.request(
            method, f"{self.host}{path}?{query}", headers=headers, timeout=20.0, retries=False,
            body=None if body is None else json.dumps(body),
        )  # fmt: skip
        warnings = tuple(answer.headers.getlist("Warning"))
        return Answer(answer.status, json.loads(answer.data or b"{}"), warnings)

    def create(self, found: Object, *, user: str = "", dry: bool = True) -> Answer:
        """Create it; `dry`: only up to the point where it would be stored."""
        metadata = {**found["metadata"]}
        if found["kind"] not in CLUSTER_SCOPED:
            metadata["namespace"] = self.namespace
        query = "dryRun=All" if dry else ""
        placed = {**found, "metadata": metadata}
        return self.ask("POST", self.path(found), placed, user=user, query=query)

    def delete(self, found: Object) -> Answer:
        """Delete it."""
        return self.ask("DELETE", self.path(found, found["metadata"]["name"]))


def crd(kind: str) -> Object:
    """A definition that takes everything, for clusters without KubeRay."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.ray.io"},
        "spec": {
            "group": "ray.io",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


def namespace(name: str, **labels: str) -> Object:
    """A namespace whose tenant has labelled it for admin access."""
    found = {"resource.kubernetes.io/admin-access": "true", **labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": found}}


def warning(binding: Object) -> Object:
    """The same binding, which tells every rule that is broken and denies nothing."""
    name = f"{binding['metadata']['name']}-warning"
    return {
        **binding,
        "metadata": {"name": name},
        "spec": {**binding["spec"], "validationActions": ["Warn"]},
    }


def rights(users: list[str]) -> Object:
    """Whoever the corpus asks as may write; admission is all that is left."""
    subjects = [
        {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"} for user in users
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "fleet-e2e-admission"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": subjects,
    }


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Server]:
    """The server with Ray's kinds, the policies and a governed namespace; all gone at the end."""
    configuration = kubernetes.client.Configuration()
    load = kubernetes.config.load_kube_config
    load(str(place.kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    name = f"fleet-e2e-{secrets.token_hex(3)}"
    pool = kubernetes.client.rest.RESTClientObject(configuration).pool_manager
    found = Server(configuration.host.rstrip("/"), pool, name)
    users = sorted({case.said(corpus.REQUESTER) for case in CASES} - {""})
    policies = [one for objects in files(Ground()).values() for one in objects]
    policies += [one for path in GOVERNED for one in yaml.safe_load_all(path.read_text())]
    bindings = [one for one in policies if one["kind"].endswith("Binding")]
    policies += [warning(one) for one in bindings if one["spec"]["policyName"] != OF_NAMESPACES]
    made = [
        *map(crd, RAY_KINDS),
        namespace(name, **{GOVERNED_LABEL: "true"}),
        rights(users),
        *policies,
    ]
    kept = [one for one in made if found.create(one, dry=False).status == 201]
    try:
        assert len(kept) == len(made), "something of an earlier run is in the way"
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually("an account", lambda: found.ask("GET", account).status == 200, timeout_s=30)
        eventually("the policies hold", lambda: in_force(found), timeout_s=30)
        yield found
    finally:
        for one in reversed(kept):
            found.delete(one)
        pool.clear()


def in_force(server: Server) -> bool:
    """Whether every policy denies what it is for."""
    wanted = {"cases-ResourceClaimTemplate-b17-no-key", "pods-Pod-privileged",
              "ray-RayCluster-shared-raycluster", "classes-DeviceClass-my-gpus"}  # fmt: skip
    answers = [server.create(case.document.value) for case in CASES if case.name in wanted]
    return all(answer.denied_by and answer.rules for answer in answers)


def test_the_server_has_no_warning(server: Server) -> None:
    """B20: the server's type check finds nothing to say about any expression."""
    for policy, _ in files(Ground()).values():
        path = server.path(policy, policy["metadata"]["name"])

        def checked(path: str = path) -> bool:
            return "typeChecking" in (server.ask("GET", path).body.get("status") or {})

        eventually("the type check", checked, timeout_s=30)
        status = server.ask("GET", path).body["status"]
        assert status["typeChecking"] == {}, json.dumps(status, indent=2)
        assert policy["apiVersion"] == API_VERSION


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_server_judges_the_corpus_as_we_do(case: Case, server: Server) -> None:
    """A5 C1 C2 C3 C4 C5 D1 D2 B17 B20 B35 B51: the cluster's verdict is that of the CEL."""
    if case.said(corpus.OFFLINE):
        return
    answer = server.create(case.document.value, user=case.said(corpus.REQUESTER))
    assert answer.rules == case.refused, answer
    first = [rule.id for found in TABLE.values() for rule in found if rule.id in case.refused][:1]
    assert answer.denied_by == set(first), answer
    if not case.expected:
        # What is there already was let in as well: policies are asked first. Which of our own
        # accounts may make claims at all is for another policy, where the whole chart is installed.
        let_in = answer.status == 201 or answer.body.get("reason") == "AlreadyExists"
        assert let_in or OF_ACCOUNTS in answer.body.get("message", ""), answer
    elif case.expected <= LINT_ONLY:
        assert "ValidatingAdmissionPolicy" not in answer.body.get("message", "")
    else:
        assert answer.status == 422, answer


def test_a_container_for_debugging_is_judged(server: Server) -> None:
    """A5: what the server takes by pods/ephemeralcontainers alone is a container like any other,
    also in a pod that a finalizer holds after its deletion."""
    (plain,) = [case for case in CASES if case.name == "good-Pod-plain"]
    assert server.create(plain.document.value, dry=False).status == 201
    path = server.path(plain.document.value, f"{'plain'}/ephemeralcontainers")
    debug = {"name": "debug", "image": "busybox", "securityContext": {"privileged": True}}
    body = {"spec": {"ephemeralContainers": [debug]}}
    assert server.ask("PATCH", path, body, query="dryRun=All").denied_by == {"A5-privileged"}
    debug["securityContext"] = {"privileged": False}
    assert server.ask("PATCH", path, body, query="dryRun=All").status == 200
    pod = server.path(plain.document.value, "plain")
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    assert server.ask("PATCH", pod, held).status == 200
    assert server.delete(plain.document.value).status == 200
    debug["securityContext"] = {"privileged": True}
    assert server.ask("PATCH", path, body, query="dryRun=All").denied_by == {"A5-privileged"}
    assert server.ask("PATCH", pod, {"metadata": {"finalizers": None}}).status == 200


def test_what_was_there_before_may_end(server: Server) -> None:
    """D2 B20: an object from before the policies is labelled and deleted; changed for the worse it
    is refused."""
    by_name = {case.name: case.document.value for case in CASES}
    bare = server.path({"apiVersion": "v1", "kind": "Namespace"}, server.namespace)
    off = {"metadata": {"labels": {GOVERNED_LABEL: "false"}}}
    assert server.ask("PATCH", bare, off).status == 200
    old = by_name["workloads-Deployment-extended-deployment"]
    eventually("the policies let go", lambda: server.create(old).status == 201, timeout_s=30)
    assert server.create({**old, "spec": {**old["spec"], "replicas": 0}}, dry=False).status == 201
    on = {"metadata": {"labels": {GOVERNED_LABEL: "true"}}}
    assert server.ask("PATCH", bare, on).status == 200
    eventually("the policies hold again", lambda: server.create(old).status == 422, timeout_s=30)
    path = server.path(old, old["metadata"]["name"])
    assert server.ask("PATCH", path, {"metadata": {"labels": {"seen": "yes"}}}).status == 200
    worse = server.ask("PATCH", path, {"spec": {"replicas": 3}}, query="dryRun=All")
    assert worse.denied_by == {"C1-extended-resource"}
    assert server.delete(old).status == 200


def test_nobody_leaves_the_rules_with_rights_in_a_namespace_alone(server: Server) -> None:
    """C1 to C5: "*" on "*" in a namespace reaches its labels; the governed one stays, others go."""
    path = f"/api/v1/namespaces/{server.namespace}"
    with owner(server) as tenant:

        def change(value: str | None, *, user: str = tenant, label: str = GOVERNED_LABEL) -> Answer:
            body = {"metadata": {"labels": {label: value}}}
            return server.ask("PATCH", path, body, user=user, query="dryRun=All")

        for value in (None, "false", ""):
            answer = change(value)
            assert answer.status == 403, answer.body
            assert "stays governed" in answer.body["message"]
        for subresource in ("status", "finalize"):
            whole = dict(server.ask("GET", path).body)
            whole["metadata"] = {**whole["metadata"], "labels": {}}
            answer = server.ask("PUT", f"{path}/{subresource}", whole, user=tenant)
            assert (answer.status, "stays governed" in answer.body["message"]) == (403, True)
        assert change(None, label="a").status == 200
        assert change(None, user="").status == 200


def test_f68_the_pod_security_level_of_a_governed_namespace_stays(server: Server) -> None:
    """F68: "*" on "*" in a governed namespace makes its Pod Security level stricter, and loosens or
    removes neither it nor its version; whoever may update namespaces cluster-wide does."""
    path = f"/api/v1/namespaces/{server.namespace}"
    level = "pod-security.kubernetes.io/enforce"
    set_to = {"metadata": {"labels": {level: "baseline", f"{level}-version": "latest"}}}
    assert server.ask("PATCH", path, set_to).status == 200
    with owner(server) as tenant:
        for label, value, user, status in (
            (level, None, tenant, 403),
            (level, "privileged", tenant, 403),
            (f"{level}-version", "v1.0", tenant, 403),
            (f"{level}-version", None, tenant, 403),
            (level, "restricted", tenant, 200),
            (level, "privileged", "", 200),
        ):
            body = {"metadata": {"labels": {label: value}}}
            answer = server.ask("PATCH", path, body, user=user, query="dryRun=All")
            assert answer.status == status, (label, value, answer.body)
            assert (status == 200) is (
                "keeps its Pod Security" not in answer.body.get("message", "")
            )
    off = {"metadata": {"labels": {level: None, f"{level}-version": None}}}
    assert server.ask("PATCH", path, off).status == 200


def test_f60_rights_in_a_namespace_alone_label_it_for_no_admin_access(server: Server) -> None:
    """F60: "*" on "*" in a namespace nobody governs does not label it for admin access, at the
    object or its subresources; an administrator does, and everybody may take the label off."""
    path = f"/api/v1/namespaces/{server.namespace}"
    label = "resource.kubernetes.io/admin-access"
    free = {"metadata": {"labels": {label: None, GOVERNED_LABEL: None}}}
    assert server.ask("PATCH", path, free).status == 200
    try:
        with owner(server) as tenant:
            on = {"metadata": {"labels": {label: "true"}}}
            for subresource in ("", "/status", "/finalize"):
                whole = dict(server.ask("GET", path).body)
                labels = {**whole["metadata"].get("labels", {}), label: "true"}
                whole["metadata"] = {**whole["metadata"], "labels": labels}
                answer = server.ask("PUT", f"{path}{subresource}", whole, user=tenant)
                assert answer.status == 403, answer.body
                assert "may not be labelled for admin access" in answer.body["message"]
            assert server.ask("PATCH", path, on, user=tenant).status == 403
            assert server.ask("PATCH", path, on).status == 200
            off = {"metadata": {"labels": {label: None}}}
            assert server.ask("PATCH", path, off, user=tenant).status == 200
    finally:
        both = {"metadata": {"labels": {label: "true", GOVERNED_LABEL: "true"}}}
        assert server.ask("PATCH", path, both).status == 200


@contextmanager
def owner(server: Server) -> Iterator[str]:
    """Somebody with "*" on "*" in the namespace, and with nothing outside of it; his name."""
    tenant, group = "tenant-owner", "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "Role",
        "metadata": {"name": "everything"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "everything"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "everything"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": tenant}],
    }
    for one in (role, binding):
        assert server.create(one, dry=False).status == 201
    path = f"/api/v1/namespaces/{server.namespace}"
    harmless = {"metadata": {"labels": {"a": "x"}}}
    try:
        eventually(
            "the role counts",
            lambda: (
                server.ask("PATCH", path, harmless, user=tenant, query="dryRun=All").status == 200
            ),
            timeout_s=30,
        )
        yield tenant
    finally:
        for one in (binding, role):
            server.delete(one)
