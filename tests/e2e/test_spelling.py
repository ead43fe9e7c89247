"""Claims whose opaque parameters are spelled as people and programs spell JSON."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.core import errors
from fleet.kube.base import (
    CLAIMS,
    CLASSES,
    EVENTS,
    Name,
    Object,
    PatchKind,
    Resource,
    Selection,
    name_of,
    uid_of,
)
from fleet.plugin.configuration import API_VERSION, KIND
from tests.deploy import manifests
from tests.e2e import workloads
from tests.e2e.ground import Footing, Ground
from tests.e2e.plugin_process import DEVICES, DRIVER, PluginProcess
from tests.e2e.polling import eventually, throughout
from tests.e2e.workloads import NOT_ZERO, STAY, Wish, program
from tests.stories.stage import WAIT_S, CoordinatorProcess, Stage
from tests.stories.worlds import RealWorld

pytestmark = pytest.mark.e2e

GROUP = "admissionregistration.k8s.io"
(FILE,) = (manifests.ROOT / "helm" / "fleetscrub" / "spelling").glob("*.yaml")
RESOURCES = {
    kind: Resource(GROUP, "v1", plural, kind, namespaced=False)
    for kind, plural in (
        ("MutatingAdmissionPolicy", "mutatingadmissionpolicies"),
        ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"),
    )
}
PARAMETERS = {"profile": "strict", "kind": KIND, "apiVersion": API_VERSION}
"""Not in the order in which the server writes keys."""
Spelled = Callable[[Object], bytes]


def plain(found: Object) -> bytes:
    """As the server writes it."""
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def reordered(found: Object) -> bytes:
    """Keys as they were written down."""
    return json.dumps(found, separators=(",", ":")).encode()


def spaced(found: Object) -> bytes:
    """As Python writes it by itself."""
    return json.dumps(found, sort_keys=True).encode()


def made(ground: Footing, spelled: Spelled, *, uuid: str = "", version: str = "v1") -> Object:
    """A new claim that says `strict`, spelled so."""
    wish = Wish(uuid=uuid, parameters=PARAMETERS)
    spec = workloads.claim_spec(wish)
    if version == "v1beta1":
        spec["devices"]["requests"] = [{"name": workloads.TENANT, "deviceClassName": DRIVER}]
    body = workloads.claim(f"claim-{secrets.token_hex(4)}", ground.namespace, spec)
    body["apiVersion"] = f"resource.k8s.io/{version}"
    path = f"/apis/resource.k8s.io/{version}/namespaces/{ground.namespace}/resourceclaims"
    return ground.post(path, spelled(body))


@pytest.fixture
def strict(ground: Ground, tmp_path: Path) -> Iterator[Stage]:
    """A plugin of profile strict in the place of the usual one, with its coordinator."""
    assert ground.plugin.stop() == 0
    state = tmp_path / "fleet" / "state"
    state.parent.mkdir()
    plugin = PluginProcess(ground.place, state, ground.plugin.node, profile="strict")
    coordinator = CoordinatorProcess(ground.place, state)
    ground.instances.append(plugin)
    plugin.start()
    found = Stage(
        place=ground.place,
        cluster=ground.cluster,
        plugin=plugin,
        namespace=ground.namespace,
        figures=ground.figures,
        world=RealWorld(),
        coordinator=coordinator,
    )
    eventually(
        "all are clean",
        lambda: plugin.serves() and len(found.clean_devices()) == DEVICES,
        timeout_s=60,
        tell=plugin.told,
    )
    coordinator.start()
    yield found
    found.clean()
    assert coordinator.stop() == 0, coordinator.told()
    assert plugin.stop() == 0, plugin.told()


@pytest.fixture
def policy(ground: Ground) -> Iterator[None]:
    """The policy that spells parameters, as shipped, on the server for one test."""
    shipped = list(yaml.safe_load_all(FILE.read_text()))
    for one in shipped:
        ground.cluster.apply(RESOURCES[one["kind"]], one, manager="fleet-e2e")
    try:
        eventually(
            "the policy is in force",
            lambda: takes_patch(ground, made(ground, spaced)),
            timeout_s=30,
        )
        yield
    finally:
        for one in reversed(shipped):
            ground.cluster.delete(RESOURCES[one["kind"]], name_of(one))
    eventually("it is gone", lambda: not takes_patch(ground, made(ground, spaced)), timeout_s=30)


def takes_patch(ground: Footing, claim: Object) -> bool:
    """Whether the server takes a patch of the claim that names none of its parameters."""
    body: Object = {"metadata": {"labels": {"seen": "yes"}}}
    try:
        ground.cluster.patch(CLAIMS, name_of(claim), body, kind=PatchKind.MERGE)
    except errors.ApiInvalid:
        return False
    return True


def runs(stage: Stage, claim: Object) -> None:
    """A pod with this claim runs on a device wiped for it, and lets it go."""
    pod = stage.run(program(NOT_ZERO, STAY), {"resourceClaimName": name_of(claim).name})
    stage.in_phase(pod, "Running")
    bound = stage.finalized(claim)
    assert (bound.bound, bound.held) == (True, True)
    stage.delete(pod)
    stage.cluster.delete(CLAIMS, name_of(claim))
    stage.undone(claim)


@pytest.mark.timeout(300)
def test_f61_a_strict_claim_is_bound_however_its_keys_are_ordered(strict: Stage) -> None:
    """F61: parameters with their keys in another order than the API server's are as good as any:
    wiped for the claim, bound with our hold and our finalizer, and let go."""
    for spelled in (plain, reordered):
        runs(strict, made(strict, spelled))


@pytest.mark.timeout(300)
def test_f61_a_strict_claim_with_spaces_is_told_and_holds_no_device(strict: Stage) -> None:
    """F61: where nobody spells them the server's way, parameters with spaces (Python's json.dumps)
    are an event on the claim that says what to write; its device is neither kept nor wiped for it
    again, and the next claim has it."""
    uuid = strict.uuid("gpu-2")
    claim = made(strict, spaced, uuid=uuid)
    pod = strict.run(program(STAY), {"resourceClaimName": name_of(claim).name})
    chosen = Selection(namespace=strict.namespace, fields=f"involvedObject.uid={uid_of(claim)}")

    def told() -> str:
        found = strict.cluster.list(EVENTS, chosen).items
        reasons = [one for one in found if one.get("reason") == "ParametersRespelled"]
        return str(reasons[0]["message"]) if reasons else ""

    begun = strict.plugin.certificates("gpu-2")
    message = eventually("an event", told, timeout_s=WAIT_S, tell=lambda: strict.told(pod))
    assert "json.dumps" in message
    eventually("no lease is left", lambda: not strict.plugin.leases(), timeout_s=WAIT_S)
    throughout("no lease is taken again", lambda: not strict.plugin.leases(), for_s=5.0)
    assert len(strict.plugin.certificates("gpu-2")) - len(begun) <= 1
    assert "nodeName" not in strict.pod(pod)["spec"]
    strict.delete(pod)
    strict.cluster.delete(CLAIMS, name_of(claim))
    strict.undone(claim)
    runs(strict, made(strict, plain, uuid=uuid))


@pytest.mark.timeout(300)
def test_f61_a_strict_claim_with_spaces_is_bound_under_the_policy(
    strict: Stage, policy: None
) -> None:
    """F61: with the policy a claim whose parameters came with spaces is bound like any other."""
    runs(strict, made(strict, spaced))


@pytest.mark.timeout(300)
def test_f61_the_policy_spells_claims_of_every_version_and_classes(
    ground: Ground, policy: None
) -> None:
    """F61: whoever makes a claim, in whatever version, with a template or without, or a class, it
    is spelled the server's way from then on; parameters of other drivers stay as they came."""
    for version in ("v1", "v1beta1", "v1beta2"):
        assert takes_patch(ground, made(ground, spaced, version=version)), version
    template = f"template-{secrets.token_hex(4)}"
    body = workloads.template(
        template, ground.namespace, workloads.claim_spec(Wish(parameters=PARAMETERS))
    )
    templates = f"/apis/resource.k8s.io/v1/namespaces/{ground.namespace}/resourceclaimtemplates"
    ground.post(templates, spaced(body))
    pod = ground.run(program(STAY), {"resourceClaimTemplateName": template})
    assert takes_patch(ground, ground.claim_of(pod))
    ground.delete(pod)
    foreign = workloads.claim_spec(Wish(parameters=PARAMETERS))
    foreign["devices"]["config"][0]["opaque"]["driver"] = "other.example.com"
    claim = workloads.claim(f"claim-{secrets.token_hex(4)}", ground.namespace, foreign)
    claims = f"/apis/resource.k8s.io/v1/namespaces/{ground.namespace}/resourceclaims"
    assert not takes_patch(ground, ground.post(claims, spaced(claim)))
    name = f"class-{secrets.token_hex(4)}"
    of_class = {
        "apiVersion": CLASSES.api_version,
        "kind": CLASSES.kind,
        "metadata": {"name": name},
        "spec": {"config": [{"opaque": {"driver": DRIVER, "parameters": PARAMETERS}}]},
    }
    ground.post("/apis/resource.k8s.io/v1/deviceclasses", spaced(of_class))
    found = ground.cluster.get(CLASSES, Name(name))
    ground.cluster.delete(CLASSES, Name(name))
    (config,) = found["spec"]["config"]
    assert list(config["opaque"]["parameters"]) == sorted(PARAMETERS)
