"""The rules for device classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.admission import rules
from fleet.admission.classes import is_ours, is_strict
from fleet.admission.ground import Ground
from fleet.kube.shapes import Object, classes
from tests.deploy.manifests import of_kind
from tests.fleet.admission import corpus

GROUND = Ground()
CASES = {case.name: case for case in corpus.cases() if case.file == "classes"}


def broken(document: Object, ground: Ground = GROUND) -> set[str]:
    """Ids of the rules that a class breaks."""
    return {finding.rule for finding in rules.judge(document, ground)}


def test_a_class_concerns_us_by_its_name_or_by_our_driver() -> None:
    """C2: one that merely mentions our driver, in a selector or in configuration, is ours."""
    ours = {}
    for name, case in CASES.items():
        (found,) = classes(case.document.value)
        ours[name] = (is_ours(found, GROUND), is_strict(found, GROUND))
    assert ours["classes-DeviceClass-nic.example.com"] == (False, False)
    assert ours["classes-DeviceClass-my-gpus"] == (True, False)
    assert ours["classes-DeviceClass-gpu-multi-tenant.fleetscrub.dev-bus"] == (True, True)


@pytest.mark.parametrize(
    ("name", "ground"),
    [
        ("gpu.fleetscrub.dev-shared", replace(GROUND, consumable_capacity=False)),
        ("gpu-multi-tenant.fleetscrub.dev-bus", replace(GROUND, iommu_required=False)),
    ],
)
def test_what_a_cluster_cannot_ask_for_is_not_demanded(name: str, ground: Ground) -> None:
    """C3 C4: a cluster without the gate, or without IOMMU groups, says so once, in its values."""
    document = CASES[f"classes-DeviceClass-{name}"].document.value
    assert broken(document)
    assert not broken(document, ground)


def test_the_class_that_is_shipped_for_everybody_keeps_the_rules() -> None:
    """C3 A5: exclusive devices, without the agent's."""
    (plain,) = [
        found for found in of_kind("DeviceClass") if found["metadata"]["name"] == GROUND.driver
    ]
    assert not broken(plain)
