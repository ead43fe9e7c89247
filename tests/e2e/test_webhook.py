"""The webhook before a real API server: fail closed for claims, and nothing else waits for it."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from fleet.admission.ground import GOVERNED_LABEL, Ground
from fleet.admission.judge import judges
from fleet.admission.review import Reviewing
from fleet.admission.tls import Certificates
from fleet.admission.webhook import Webhook
from tests.deploy.webhook import configuration
from tests.e2e.place import Place
from tests.e2e.polling import eventually
from tests.e2e.test_admission import Server, namespace
from tests.fleet.admission.certificates import Ca
from tests.fleet.admission.reviews import claim, devices, exactly, flat, template
from tests.fleet.admission.rights import KEYS, config, issued, parameters, tag

pytestmark = pytest.mark.e2e
GROUND = Ground()


class Site:
    """The cluster with a governed namespace, and a webhook that can be away."""

    def __init__(self, server: Server, ca: Ca) -> None:
        self.server = server
        self.ca = ca
        self.webhook = self.serve(0)
        self.port = self.webhook.port
        right = tag(namespaces=(server.namespace,), not_before=0, not_after=4_000_000_000)
        self.text = issued(
            namespaces=right.namespaces, not_before=right.not_before, not_after=right.not_after
        )

    def serve(self, port: int) -> Webhook:
        """Serve at this port, 0: a free one."""
        return Webhook(
            ("127.0.0.1", port),
            Certificates(self.ca.certificate, self.ca.private),
            Reviewing(judges(GROUND, lambda: KEYS), frozenset(GROUND.own_namespaces)),
        )

    def good(self) -> dict[str, Any]:
        """Devices with the right for them."""
        return devices(exactly(), entries=[config(given=parameters(self.text))])

    def made(self, document: dict[str, Any], name: str = "x") -> dict[str, Any]:
        """The object in the governed namespace."""
        metadata = {"name": name, "namespace": self.server.namespace}
        return {**document, "metadata": {**document["metadata"], **metadata}}


@pytest.fixture(scope="module")
def site(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """All of it; gone at the end."""
    found = kubernetes.client.Configuration()
    load = kubernetes.config.load_kube_config
    load(str(place.kubeconfig), client_configuration=found)  # type: ignore[no-untyped-call]
    pool = kubernetes.client.rest.RESTClientObject(found).pool_manager
    server = Server(found.host.rstrip("/"), pool, f"fleet-e2e-{secrets.token_hex(3)}")
    ca = Ca(Path(tmp_path_factory.mktemp("ca")))
    site = Site(server, ca)
    hook = configuration(
        {
            "url": f"https://127.0.0.1:{site.port}/review",
            "caBundle": base64.b64encode(ca.bundle).decode(),
        }
    )
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    space = namespace(server.namespace, **{GOVERNED_LABEL: "true"})
    assert server.create(space, dry=False).status == 201
    try:
        assert server.ask("POST", path, hook).status == 201
        account = f"/api/v1/namespaces/{server.namespace}/serviceaccounts/default"
        eventually("an account", lambda: server.ask("GET", account).status == 200, timeout_s=30)
        bad = site.made(template(devices(exactly(), entries=[])))
        eventually("the webhook is asked", lambda: server.create(bad).status != 201, timeout_s=30)
        yield site
    finally:
        server.ask("DELETE", f"{path}/{hook['metadata']['name']}")
        server.delete(space)
        site.webhook.close()
        pool.clear()


def test_claims_are_judged_in_every_version(site: Site) -> None:
    """B20, C5: with the right, allowed in every version served; without, denied with the path."""
    for document in (
        claim(site.good()),
        template(site.good()),
        template(site.good(), "v1beta2"),
        template({**site.good(), "requests": [flat()]}, "v1beta1"),
    ):
        answer = site.server.create(site.made(document))
        assert answer.status == 201, answer.body
    stolen = devices(exactly(), entries=[config(given=parameters(issued()))])
    answer = site.server.create(site.made(template(stolen)))
    assert answer.status == 403
    assert "is for namespace tenant-a" in answer.body["message"]
    assert "spec.spec.devices.config[0].opaque.parameters.isolationTag" in answer.body["message"]
    wish = site.good()
    wish["requests"] = [exactly(tolerations=[{"operator": "Exists"}])]
    assert site.server.create(site.made(claim(wish))).status == 403


def test_b65_only_claims_wait_for_the_webhook(site: Site) -> None:
    """B65: with nobody at the endpoint (a) pods, (b) our own and kube-system's objects, (d) leases
    are made; (c) a template is refused with a clear message, and a claim can end: its finalizer
    goes, its labels change. Back again, under a renewed certificate, it judges at once."""
    server = site.server
    kept = site.made(claim(site.good()), "kept")
    # The API server compares opaque parameters by bytes: what was sent with spaces takes no patch.
    kept["spec"]["devices"].pop("config")
    kept["metadata"]["finalizers"] = ["example.com/x"]
    kept["spec"]["devices"]["requests"] = [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]
    assert server.create(kept, dry=False).status == 201
    site.webhook.close()
    try:
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        lease = {"metadata": {"name": "l"}, "spec": {}}
        for api, kind, body in (
            ("v1", "Pod", pod),
            ("coordination.k8s.io/v1", "Lease", lease),
        ):
            assert server.create({"apiVersion": api, "kind": kind, **body}).status == 201
        path = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
        own = template(devices(exactly(), entries=[]))
        own["metadata"]["namespace"] = "kube-system"
        answer = server.ask("POST", path.format("kube-system"), own, query="dryRun=All")
        assert answer.status == 201
        answer = server.create(site.made(template(site.good())))
        assert answer.status == 500
        assert "failed calling webhook" in answer.body["message"]
        place = server.path(kept, "kept")
        assert server.ask("PATCH", place, {"metadata": {"labels": {"a": "b"}}}).status == 200
        assert server.ask("DELETE", place).status == 200
        assert server.ask("PATCH", place, {"metadata": {"finalizers": None}}).status == 200
        eventually("it is gone", lambda: server.ask("GET", place).status == 404, timeout_s=10)
    finally:
        site.ca.renew()
        site.webhook = site.serve(site.port)
    again = site.made(template(site.good()))
    eventually("it judges", lambda: server.create(again).status == 201, timeout_s=30)
