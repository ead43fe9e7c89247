"""The webhook of the chart: what it is asked, by whom it is trusted, and that it gains nothing."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest
from cryptography import x509

from fleet.admission.ground import Ground
from tests.deploy.chart import rendering
from tests.deploy.chart.rendering import EVERYTHING, Values, containers, engine
from tests.deploy.webhook import NAME, configuration, dangers

pytestmark = pytest.mark.chart
KIND = "ValidatingWebhookConfiguration"


def values(**webhook: Any) -> Values:
    """The defaults, with the webhook on."""
    tags = {"existingConfigMap": "tag-keys"}
    return {
        "admission": {"tags": tags, "webhook": {"enabled": True, **webhook}},
        "settings": {"admission": {"tag_roots": ["0" * 64]}},
    }


def test_b65_the_configuration_is_the_one_that_is_tested() -> None:
    """B65: what the e2e suite applies to a real cluster is what the chart renders."""
    found = rendering.one(KIND, NAME, values())
    (webhook,) = found["webhooks"]
    assert list(dangers(found)) == []
    assert found["webhooks"] == configuration(webhook["clientConfig"])["webhooks"]
    service = webhook["clientConfig"]["service"]
    assert service == {"name": NAME, "namespace": "fleetscrub", "path": "/review", "port": 443}


def test_b65_the_bundle_is_that_of_the_certificate() -> None:
    """B65: caBundle is the authority that signed what is served, for the service's name."""
    found = rendering.one(KIND, NAME, values())
    secret = rendering.one("Secret", f"{NAME}-tls", values())
    bundle = found["webhooks"][0]["clientConfig"]["caBundle"]
    assert bundle == secret["data"]["ca.crt"]
    ca, served = (
        x509.load_pem_x509_certificate(base64.b64decode(secret["data"][name]))
        for name in ("ca.crt", "tls.crt")
    )
    served.verify_directly_issued_by(ca)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{NAME}.fleetscrub.svc" in names.get_values_for_type(x509.DNSName)


def test_b65_certificates_of_others_are_trusted_as_told() -> None:
    """B65: cert-manager fills the bundle in and renews the Secret; or both are given."""
    issuer = {"name": "ca", "kind": "Issuer"}
    managed = values(tls={"mode": "cert-manager", "issuerRef": issuer})
    found = rendering.one(KIND, NAME, managed)
    assert found["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"fleetscrub/{NAME}"
    }
    assert "caBundle" not in found["webhooks"][0]["clientConfig"]
    certificate = rendering.one("Certificate", NAME, managed)["spec"]
    assert (certificate["secretName"], certificate["issuerRef"]) == (f"{NAME}-tls", issuer)
    own = values(tls={"mode": "secret", "existingSecret": "mine", "caBundle": "QQ=="})
    assert rendering.one(KIND, NAME, own)["webhooks"][0]["clientConfig"]["caBundle"] == "QQ=="
    volumes = rendering.one("Deployment", NAME, own)["spec"]["template"]["spec"]["volumes"]
    assert "mine" in [one["secret"]["secretName"] for one in volumes if "secret" in one]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"admission": {"webhook": {"enabled": True}}}, "existingConfigMap"),
        (values(tls={"mode": "secret"}), "existingSecret"),
        (values(tls={"mode": "cert-manager"}), "issuerRef"),
        ({**values(), "driver": {"name": "gpu.example"}}, "three parts or more"),
        (values(clients={"names": ["kube-apiserver"]}), "existingConfigMap"),
    ],
)
def test_a_webhook_that_could_judge_nothing_is_not_rendered(given: Values, told: str) -> None:
    """C5, B65: what is missing is named before anything fails closed."""
    with pytest.raises(Exception, match=told) as caught:
        rendering.files(given)
    assert type(caught.value).__module__.startswith(engine().__name__)


def test_c5_another_root_starts_the_webhook_anew() -> None:
    """C5: it reads its settings once, and one with the root of before denies every claim."""

    def template(root: str) -> Any:
        given = copy.deepcopy(values(podAnnotations={"example.com/a": "b"}))
        given["settings"]["admission"]["tag_roots"] = [root * 64]
        return rendering.one("Deployment", NAME, given)["spec"]["template"]["metadata"]

    before, after = (template(root)["annotations"] for root in "01")
    assert before["checksum/settings"] != after["checksum/settings"]
    assert before["example.com/a"] == "b"


@pytest.mark.parametrize("given", [values(), EVERYTHING], ids=["alone", "everything"])
def test_b65_two_replicas_that_need_nothing(given: Values) -> None:
    """B65, A5: two, spread, one kept through drains; no token, no way out, no claim, no privilege;
    a replica that cannot judge takes no traffic."""
    spec = rendering.one("Deployment", NAME, given)["spec"]
    pod = spec["template"]["spec"]
    (container,) = containers(spec["template"])
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert rendering.one("PodDisruptionBudget", NAME, given)["spec"]["maxUnavailable"] == 1
    assert rendering.one("NetworkPolicy", NAME, given)["spec"]["egress"] == []
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (
        False,
        True,
    )
    assert not {"hostNetwork", "hostPID", "hostIPC", "resourceClaims"} & pod.keys()
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")}
    assert (probes["liveness"]["path"], probes["readiness"]["path"]) == ("/healthz", "/readyz")


def test_the_webhook_judges_on_the_ground_of_the_chart() -> None:
    """B35: classes, accounts and namespaces that it is told are those of this installation."""
    given = copy.deepcopy(values())
    given["driver"] = {"name": "gpu.example.com"}
    (container,) = containers(rendering.one("Deployment", NAME, given)["spec"]["template"])
    told = container["args"]
    ground = Ground.of_driver("gpu.example.com")
    assert [one for one in told if one.startswith("--requester")] == [
        f"--requester={one}" for one in ground.requesters
    ]
    assert {one for one in told if one.startswith("--own-namespace")} == {
        f"--own-namespace={one}" for one in ground.own_namespaces
    }
    assert "--class=gpu.example.com" in told


@pytest.mark.parametrize(
    ("requesters", "spared"),
    [(["system:serviceaccount:x:y"], ["--requester=system:serviceaccount:x:y"]),
     ([], ["--requester="])],
)  # fmt: skip
def test_the_webhook_is_told_the_lists_that_the_policies_are_told(
    requesters: list[str], spared: list[str]
) -> None:
    """B35, C4: spread classes and requesters of the values replace the defaults; none is none."""
    given = copy.deepcopy(values())
    given["admission"] |= {"requesters": requesters, "spreadClasses": ["a.example.com", "b"]}
    (container,) = containers(rendering.one("Deployment", NAME, given)["spec"]["template"])
    told = container["args"]
    assert [one for one in told if one.startswith("--requester")] == spared
    assert [one for one in told if one.startswith("--spread-class")] == [
        "--spread-class=a.example.com",
        "--spread-class=b",
    ]
    given["admission"] |= {"spreadClasses": [], "otherClasses": ["mig.example.com"]}
    (container,) = containers(rendering.one("Deployment", NAME, given)["spec"]["template"])
    assert "--spread-class=" in container["args"]
    assert "--other-class=mig.example.com" in container["args"]


def test_f62_strangers_are_kept_from_the_webhook_as_told() -> None:
    """F62: with the addresses of the control plane nobody else reaches the port; with an authority
    for callers the webhook asks for their certificate, and names without one are refused."""
    plain = rendering.one("NetworkPolicy", NAME, values())["spec"]["ingress"]
    assert plain == [{"ports": [{"port": "https", "protocol": "TCP"}]}]
    peers = [{"ipBlock": {"cidr": "192.0.2.0/28"}}]
    limited = {**values(), "networkPolicy": {"apiServerFrom": peers}}
    (rule,) = rendering.one("NetworkPolicy", NAME, limited)["spec"]["ingress"]
    assert rule["from"] == peers
    asking = values(clients={"existingConfigMap": "callers", "names": ["kube-apiserver"]})
    pod = rendering.one("Deployment", NAME, asking)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--client-ca=/etc/fleetscrub-clients/ca.crt" in container["args"]
    assert "--client-name=kube-apiserver" in container["args"]
    assert {"name": "clients", "configMap": {"name": "callers"}} in pod["volumes"]
