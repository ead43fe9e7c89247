"""The table of all rules, and an object judged by it."""

from __future__ import annotations

import re
from random import Random

import pytest

from fleet.admission import rules
from fleet.admission.ground import Ground
from fleet.admission.policies import files
from fleet.admission.rules import LINT_ONLY, TABLE
from fleet.kube.shapes import Object
from tests.fleet.admission import apiserver, corpus, mutations

GROUND = Ground()
POLICIES = list(files(GROUND).values())
SERVED = [case for case in corpus.cases() if "F-version" not in case.expected]
SEEDS = 300


def denied(document: Object) -> set[str] | None:
    """Ids of the rules that the policies deny by; None: no server takes such an object at all."""
    try:
        request = apiserver.Request(document)
        return {one.rule for policy in POLICIES for one in apiserver.denials(policy, request)}
    except (LookupError, RuntimeError, TypeError, ValueError):
        return None


def test_the_table_is_complete() -> None:
    """A5 C1 C2 C3 C4 C5 D1 D2 D3 B17 B35: each has a rule; each says what is wrong and what to do;
    a rule without CEL says why."""
    found = [rule for part in TABLE.values() for rule in part]
    assert len({rule.id for rule in found}) == len(found)
    wanted = {"A5", "B17", "B35", "C1", "C2", "C3", "C4", "C5", "D1", "D2", "D3", "F"}
    assert {rule.requirement for rule in found} == wanted
    for rule in found:
        assert re.fullmatch(r"([A-D]\d+|F)(-[a-z]+)+", rule.id)
        assert rule.says
        assert rule.remedy
        assert bool(rule.cel) != bool(rule.why_lint_only), rule.id


def test_functions_and_cel_agree_on_what_nobody_thought_of() -> None:
    """B20: manifests changed at random are judged alike, as long as a server would take them."""
    compared = 0
    for seed in range(SEEDS):
        random = Random(seed)
        case = random.choice(SERVED)
        document = mutations.changed(case.document.value, random)
        verdict = denied(document)
        if verdict is not None:
            compared += 1
            found = {finding.rule for finding in rules.judge(document, GROUND)}
            assert found - LINT_ONLY == verdict, f"seed {seed}: {case.name}"
    assert compared > SEEDS / 2


@pytest.mark.parametrize("namespace", GROUND.own_namespaces)
def test_our_own_namespace_and_the_clusters_are_not_judged(namespace: str) -> None:
    """A5: what runs our service or the cluster itself is not a tenant's."""
    (case,) = [case for case in SERVED if case.name == "pods-Pod-privileged"]
    document = {**case.document.value, "metadata": {"name": "x", "namespace": namespace}}
    assert rules.judge(document, GROUND) == []
    assert not rules.is_judged(document, GROUND)


def test_a_field_that_is_null_is_not_there() -> None:
    """B20: as the server stores it; opaque parameters stay as they were written."""
    found = rules.settled({"a": None, "b": [{"c": None}, None], "parameters": {"d": None}})
    assert found == {"b": [{}, None], "parameters": {"d": None}}
