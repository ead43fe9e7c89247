"""What was found on the product: the manifests as they were handed in, in tests/corpus/F*."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.admission import rules
from fleet.admission.documents import Document, documents
from fleet.admission.ground import Ground
from fleet.admission.judge import judges
from fleet.admission.policies import files
from fleet.admission.review import Subject
from fleet.kube.shapes import Object, is_understood, mapping, text
from tests.fleet.admission import apiserver, corpus
from tests.fleet.admission.rights import KEYS, NOW

GROUND = Ground()
POLICIES = list(files(GROUND).values())
PRIVILEGED = {"name": "a", "securityContext": {"privileged": True}}
LISTS = corpus.ROOT / "F69-admission"
BY_KEY = "13-claim-tag-other-ns.yaml"
"""A tag whose signature was changed: nothing but the list of keys can tell."""


def objects(path: Path) -> list[Object]:
    """The objects of a file."""
    found = list(documents(path.read_text()))
    assert all(isinstance(one, Document) for one in found)
    return [one.value for one in found if isinstance(one, Document)]


def broken(document: Object) -> set[str]:
    """The rules that refuse an object; lint and the policies have to agree, in the same words."""
    found = {one.rule: one for one in rules.judge(document, GROUND) if one.refuses}
    request = apiserver.Request(document)
    denials = [one for policy in POLICIES for one in apiserver.denials(policy, request)]
    assert found.keys() - rules.LINT_ONLY == {one.rule for one in denials}
    for one in denials:
        assert one.message.startswith(f"{one.rule}: ")
        assert one.message.endswith(found[one.rule].remedy)
    return set(found)


def by_name(folder: str) -> Mapping[str, set[str]]:
    """What refuses each object of a case's files."""
    found = [one for path in sorted((corpus.ROOT / folder).iterdir()) for one in objects(path)]
    return {text(mapping(one, "metadata"), "name"): broken(one) for one in found}


def test_f01_a_device_is_known_by_what_is_allowed_not_by_what_it_is_called() -> None:
    """F01: whatever extended resource is not allowed is refused; networks and pages are."""
    refused = {name[0] for name, found in by_name("F01-extended-resource-names").items() if found}
    assert refused == set("abcdehi")
    assert by_name("F01-extended-resource-names")["b-by-model"] == {"C1-extended-resource"}


def test_f02_a_request_that_names_us_by_its_own_selector_is_ours() -> None:
    """F02: selectors of a request count as those of its class do; a class that names nobody is
    refused as well."""
    found = by_name("F02-class-without-driver-selector")
    needs = {"C2-deallocation", "C5-isolation-tag", "A5-agent-class"}
    assert found["by-request-selector"] == needs
    assert found["by-attribute-selector"] == needs
    assert found["accelerators.example.com"] == {"C2-class-open"}


def test_f03_devices_by_a_variable_of_the_runtime_are_refused() -> None:
    """F03: a variable, a mount or a runtime class that makes the runtime give devices."""
    found = by_name("F03-visible-devices-env")
    assert found["a-env"] == {"A5-runtime-devices"}
    assert {"A5-runtime-devices", "A5-runtime-class"} <= found["b-volume-mount"]
    assert found["c-void"] == set()


def test_f15_pods_are_found_in_any_kind() -> None:
    """F15: a pod's spec is one wherever it stands; what hides its pods is told to be not judged."""
    (path,) = (corpus.ROOT / "F15-workload-kinds-not-judged").iterdir()
    for document in objects(path):
        found = {one.rule for one in rules.judge(document, GROUND)}
        if document["kind"] == "VirtualMachineInstance":
            assert not is_understood(document)
        else:
            assert "A5-privileged" in found or "A5-host-path" in found, document["kind"]
            assert is_understood(document)


@pytest.mark.parametrize(
    "inner",
    [
        {"containers": [{"name": "fine"}], "template": {"spec": {"containers": [PRIVILEGED]}}},
        {"containers": [{"name": "fine"}], "deeper": {"spec": {"initContainers": [PRIVILEGED]}}},
        {"a": {"containers": [{"name": "fine"}]}, "pods": [{"containers": [PRIVILEGED]}]},
    ],
)
def test_f15_a_harmless_pod_hides_no_other(inner: dict[str, Any]) -> None:
    """F15: what looks like a pod's spec is looked into as well, and so are lists of them."""
    document = {"apiVersion": "example.com/v1", "kind": "Thing", "spec": inner}
    assert {one.rule for one in rules.judge(document, GROUND)} == {"A5-privileged"}


def test_f16_what_a_network_beside_a_gpu_needs_is_allowed() -> None:
    """F16: a claim for a GPU and a NIC, and memory locked for RDMA."""
    assert set(map(frozenset, by_name("F16-gpu-with-nic-claim").values())) == {frozenset()}


def test_f30_a_request_for_nothing_is_no_request() -> None:
    """F30: a quantity of zero, as text or number, asks for nothing."""
    found = by_name("F30-zero-gpus")
    assert found == {
        "a-zero-text": set(),
        "b-zero-number": set(),
        "c-one": {"C1-extended-resource"},
    }


@pytest.mark.parametrize("path", sorted((LISTS / "accept").iterdir()), ids=lambda path: path.stem)
def test_f69_what_is_harmless_is_accepted(path: Path) -> None:
    """F69: nothing refuses what harms nobody, neither lint nor the policies."""
    for document in objects(path):
        assert broken(document) == set()


@pytest.mark.parametrize(
    "path", sorted((LISTS / "accept").glob("*gpu*")), ids=lambda path: path.stem
)
def test_f69_the_webhook_refuses_by_the_same_rules(path: Path) -> None:
    """F69: what the policies accept the webhook's rules accept, and advice denies nothing."""
    by_rules, _ = judges(GROUND, lambda: KEYS)
    for document in objects(path):
        assert list(by_rules(Subject(document, "tenant-a", apiserver.TENANT, NOW))) == []


def test_f69_a_tag_that_was_changed_is_refused_by_who_has_the_keys() -> None:
    """F69: neither lint nor a policy has keys; the webhook says what is wrong with the tag."""
    (document,) = objects(LISTS / "refuse" / BY_KEY)
    assert broken(document) == set()
    _, by_tags = judges(GROUND, lambda: KEYS)
    (found,) = by_tags(Subject(document, "tenant-a", apiserver.TENANT, NOW))
    assert "which the list of tag keys" in found.wrong


@pytest.mark.parametrize(
    "path",
    sorted(path for path in (LISTS / "refuse").iterdir() if path.name != BY_KEY),
    ids=lambda path: path.stem,
)
def test_f69_what_gets_past_is_refused(path: Path) -> None:
    """F69: what reached devices past every rule is refused, by lint and by the policies."""
    for document in objects(path):
        assert broken(document) - rules.LINT_ONLY
