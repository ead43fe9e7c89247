"""The rules for claims; what they find in whole manifests is the corpus' affair."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fleet.admission.claims import RULES, TAG, is_ours
from fleet.admission.ground import Ground
from fleet.kube.shapes import ClaimSpec
from fleet.plugin.configuration import API_VERSION, KIND, TAG_MAX, SanitizationConfig
from fleet.plugin.tags import PREFIX

GROUND = Ground()
BY_ID = {rule.id: rule for rule in RULES}
GOOD: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "deallocation": "WipeOnDeallocate",
    "isolationTag": "fst1.eyJ9.b",
}
SOMETHING = st.sampled_from(
    ["strict", "always", "on-fault", "x", "", 0, 1, 0.5, 2, -1, True, [], {}]
)


def claim(parameters: Any, **fields: Any) -> ClaimSpec:
    """A claim for one device of ours with these parameters."""
    request = {"name": "gpu", "exactly": {"deviceClassName": GROUND.driver, **fields}}
    opaque = {"driver": GROUND.driver, "parameters": parameters}
    return ClaimSpec({"requests": [request], "config": [{"opaque": opaque}]}, ("d",))


def found(rule: str, spec: ClaimSpec) -> list[str]:
    """The places of what a rule finds."""
    return [finding.place for finding in BY_ID[rule].findings(spec, GROUND)]


@settings(max_examples=150, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(["apiVersion", "kind", "profile", "reset", "coverageFloor", "other"]),
        SOMETHING,
        max_size=3,
    )
)
def test_parameters_pass_as_the_driver_takes_them(changes: dict[str, Any]) -> None:
    """B20: what admission lets through is what prepare understands, and nothing besides."""
    parameters: dict[str, Any] = {**GOOD, **changes}
    try:
        SanitizationConfig.model_validate(parameters)
        is_taken = True
    except ValidationError:
        is_taken = False
    assert (not found("C2-parameters", claim(parameters))) == is_taken


def test_parameters_that_are_no_object_are_told() -> None:
    """B20: a text or nothing in the place of the parameters."""
    wrong: tuple[Any, ...] = ("x", None, [])
    for parameters in wrong:
        places = found("C2-parameters", claim(parameters))
        assert places == ["d.config[0].opaque.parameters"]


@pytest.mark.parametrize(
    "value", ["fst1.eyJ9", "fst1..b", "fst1.a.b", "fst2.eyJ9.b", "fst1.eyJ9.b\n", "x" * 5000, 3]
)
def test_what_is_no_tag_is_refused_by_its_shape(value: Any) -> None:
    """C5: whose signature a tag carries is the webhook's and the node's to say, its shape ours."""
    places = found("C5-isolation-tag", claim({**GOOD, "isolationTag": value}))
    assert places == ["d.config[0].opaque.parameters.isolationTag"]


def test_the_shape_of_a_tag_is_that_of_its_maker() -> None:
    """C5: prefix and length are those that `fleet tag issue` writes."""
    assert TAG.startswith(f"^{PREFIX}\\.")
    longest = f"{PREFIX}.eyJ9." + "b" * (TAG_MAX - len(PREFIX) - 6)
    assert not found("C5-isolation-tag", claim({**GOOD, "isolationTag": longest}))
    assert found("C5-isolation-tag", claim({**GOOD, "isolationTag": f"{longest}b"}))


def test_a_class_of_somebody_else_needs_nothing_of_ours() -> None:
    """C2: policy, tag and count are asked of requests for governed classes alone."""
    foreign = claim({}, deviceClassName="nic.example.com", allocationMode="All")
    (wish,) = foreign.wishes
    assert not is_ours(wish, GROUND)
    for rule in ("C2-deallocation", "C5-isolation-tag", "C3-exact-count", "C3-explicit"):
        assert found(rule, foreign) == []


def test_tolerations_of_others_taints_are_left_alone() -> None:
    """B17: only a key of ours, and none at all, which is every key."""
    keys: list[dict[str, Any]] = [
        {"key": f"{GROUND.driver}.example/x"},
        {"key": f"{GROUND.driver}/not-clean"},
        {},
        {"key": ""},
    ]
    assert found("B17-toleration", claim(GOOD, tolerations=keys)) == [
        "d.requests[0].exactly.tolerations[1].key",
        "d.requests[0].exactly.tolerations[2]",
        "d.requests[0].exactly.tolerations[3]",
    ]
