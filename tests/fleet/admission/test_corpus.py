"""The corpus, judged by the functions and by the generated CEL."""

from __future__ import annotations

import pytest

from fleet.admission import rules
from fleet.admission.ground import Ground
from fleet.admission.policies import files
from fleet.kube.shapes import Object
from tests.fleet.admission import apiserver, corpus
from tests.fleet.admission.corpus import Case

CASES = corpus.cases()
GROUND = Ground()
POLICIES = list(files(GROUND).values())


def denied(document: Object, requester: str) -> list[apiserver.Denial]:
    """What all policies together have against it."""
    request = apiserver.Request(document, username=requester or apiserver.TENANT)
    return [found for policy in POLICIES for found in apiserver.denials(policy, request)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lint_and_admission_agree(case: Case) -> None:
    """A5 C1 C2 C3 C4 C5 D1 D2 B17 B20 B35 B51: functions and CEL find what the corpus says."""
    requester = case.said(corpus.REQUESTER)
    findings = rules.judge(case.document.value, GROUND, requester=requester)
    assert {finding.rule for finding in findings} == case.expected
    assert {found.rule for found in denied(case.document.value, requester)} == case.refused


def test_every_rule_has_its_manifests() -> None:
    """Each rule is broken by a manifest, and no id is expected that the table has not."""
    ids = {rule.id for found in rules.TABLE.values() for rule in found}
    expected = {rule for case in CASES for rule in case.expected}
    assert expected - ids == set()
    assert ids - expected == set()
    assert len(CASES) >= 60
