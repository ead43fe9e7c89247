"""A tenant's receipt by claim or pod: with the rights of the namespace, and no other call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import main
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES, Name, Object
from tests.fleet.control.binding.benches import Bench
from tests.fleet.control.binding.test_claim_writes import bind, writer_of
from tests.fleet.wiring.test_coordinator import Host, host
from tests.lab.apiserver.access import Access, Caller, Rule
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.server import StandIn

__all__ = ["host"]
Capture = pytest.CaptureFixture[str]
TENANT = [Rule("tenant", ("get",), ("resourceclaims", "pods"), namespace="tenant")]
"""All that a tenant may do: no list, no watch, nothing outside the namespace."""


def kubeconfig(standin: StandIn, path: Path) -> str:
    """The tenant's: everything beyond `TENANT` is denied from now on."""
    standin.engine.access = Access(TENANT)
    standin.accept("tenants-token", Caller("tenant"))
    user = {"name": "tenant", "user": {"token": "tenants-token"}}
    config = json.loads(standin.kubeconfig(path).read_text())
    context = {"name": "tenant", "context": {"cluster": "standin", "user": "tenant"}}
    config |= {"users": [user], "contexts": [context], "current-context": "tenant"}
    path.write_text(json.dumps(config))
    return str(path)


def pod(cluster: MemoryCluster, name: str, *claims: str, template: str = "") -> None:
    """A pod that names claims, and one that has one made from a template."""
    named: list[Object] = [{"name": f"c{n}", "resourceClaimName": c} for n, c in enumerate(claims)]
    made = [{"name": "made", "resourceClaimTemplateName": "t"}] if template else []
    body: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "tenant"},
        "spec": {"containers": [{"name": "c", "image": "x"}], "resourceClaims": [*named, *made]},
    }
    cluster.create(PODS, body)
    if template:
        found = cluster.get(PODS, Name(name, "tenant"))
        told = [{"name": "made", "resourceClaimName": template}]
        found["status"] = {**found.get("status", {}), "resourceClaimStatuses": told}
        cluster.replace(PODS, found, subresource="status")


@pytest.fixture(name="ground")
def ground_fixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[StandIn, list[str]]]:
    """An API server with a proven claim c and a fresh one d; and the tenant's options."""
    monkeypatch.delenv("FLEET_STATE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    bench = Bench()
    bench.given("c", "a", "b")
    bind(bench, writer_of(bench), "a", "b")
    bench.create("d")
    with StandIn(bench.admin.engine) as standin:
        pod(bench.admin, "p", "c", template="d")
        pod(bench.admin, "bare")
        yield standin, ["--kubeconfig", kubeconfig(standin, tmp_path / "kubeconfig")]


def asked(standin: StandIn) -> list[tuple[str, str]]:
    """Every call the verb made."""
    return [(one.method, one.path) for one in standin.requests]


def test_a_claim_is_read_and_nothing_else(ground: Any, capsys: Capture) -> None:
    """E3: one GET of the claim; no slice, node, pod, list or discovery is asked for."""
    standin, options = ground
    assert main(["claim", "show", "tenant/c", *options, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["claims"]
    assert [one["standing"] for one in found["devices"]] == ["proven", "proven"]
    assert [one["uuid"] for one in found["devices"]] == ["a", "b"]
    assert {one["token"] for one in found["devices"]} == {"1.5"}
    path = "/apis/resource.k8s.io/v1/namespaces/tenant/resourceclaims/c"
    assert asked(standin) == [("GET", path)]


def test_a_pod_leads_to_its_claims(ground: Any, capsys: Capture) -> None:
    """E3: named claims and those made from templates, by the pod alone."""
    standin, options = ground
    assert main(["claim", "show", "--pod", "tenant/p", *options]) == 0
    told = capsys.readouterr().out
    assert "claim tenant/c" in told
    assert "claim tenant/d" in told
    assert "it has no device yet" in told
    assert "proven: wiped, verified and checked for this claim alone" in told
    claims = "/apis/resource.k8s.io/v1/namespaces/tenant/resourceclaims"
    assert asked(standin) == [
        ("GET", "/api/v1/namespaces/tenant/pods/p"),
        ("GET", f"{claims}/c"),
        ("GET", f"{claims}/d"),
    ]


def test_the_tenant_may_do_nothing_else(ground: Any, capsys: Capture) -> None:
    """The ground itself: what a tenant is denied is denied here, so that the tests mean it."""
    standin, options = ground
    for resource in (CLAIMS, PODS, SLICES, NODES):
        assert not standin.engine.access.allows(
            Caller("tenant"), _wish("list", resource.plural, "tenant")
        )
    assert main(["claim", "show", "other/c", *options]) == 2
    told = capsys.readouterr().err
    assert "ask for a role in other that may `get` resourceclaims" in told


def _wish(verb: str, resource: str, namespace: str) -> Any:
    from tests.lab.apiserver.access import Wish

    return Wish(verb, resource, namespace=namespace)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pod", "tenant/bare"], "uses no claim"),
        (["--pod", "tenant/none"], "none"),
        (["tenant/c", "--pod", "tenant/p"], "both a claim and a pod"),
        ([], "neither a claim nor a pod"),
        (["--pod", "p"], "names no pod"),
    ],
)
def test_what_cannot_be_told_is_exit_2(
    ground: Any, arguments: list[str], words: str, capsys: Capture
) -> None:
    """Every refusal says what to write or ask for instead."""
    _, options = ground
    assert main(["claim", "show", *arguments, *options]) == 2
    assert words in capsys.readouterr().err


def test_another_driver_is_named(ground: Any, capsys: Capture) -> None:
    """A cluster whose driver has another name: --driver says which."""
    _, options = ground
    assert main(["claim", "show", "tenant/c", "--driver", "x.example", *options]) == 0
    assert "none of its devices is of driver x.example" in capsys.readouterr().out


def test_a_server_without_the_claim_says_so(tmp_path: Path, capsys: Capture) -> None:
    """A claim that is gone is an error with the object's name, not an empty receipt."""
    with StandIn(Engine()) as standin:
        options = ["--kubeconfig", kubeconfig(standin, tmp_path / "kubeconfig"), "--receipt"]
        assert main(["claim", "show", "tenant/c", *options]) == 2
    assert "resourceclaims" in capsys.readouterr().err


def test_a_real_wipe_is_told_to_the_tenant(host: Host, tmp_path: Path, capsys: Capture) -> None:
    """E3: what the coordinator writes after a real wipe is what the tenant reads: UUID, time,
    token and a certificate that is in the node's ledger under that digest."""
    import time

    from fleet.control.binding.loop import Loop
    from fleet.evidence.judged import judge
    from fleet.evidence.sources import collect
    from fleet.wiring import coordinator

    loop = Loop(coordinator.of_host(host.plan, host.kubeconfig))
    claim = host.pending("mine")
    host.until(lambda: host.reading(claim).bound, loop.turn, said=loop.view())
    options = ["--receipt", "--kubeconfig", kubeconfig(host.standin, tmp_path / "kubeconfig")]
    assert main(["claim", "show", "tenant/mine", *options, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["claims"]
    (one,) = found["devices"]
    host.standin.engine.access = None
    loop.stop()
    loop.run()
    (device,) = [d for d in host.site.door.view().devices if d.name == one["device"]]
    assert (one["uuid"], one["token"]) == (device.uuid, device.certified_under)
    assert one["certificate"] == device.certificate
    proven = {str(c.certificate.digest): c for c in judge(collect(host.site.state)).certificates}
    ended = proven[one["certificate"]].certificate.predicate["ended_at"]
    assert one["wiped_at"][:19] == str(ended)[:19]
    assert abs(time.time() - device.since) < 60
