"""Rules of selectors."""

from __future__ import annotations

import pytest

from fleet.kube.base import SLICES
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.selectors import field_match, label_match

FOUND = {"metadata": {"name": "a", "labels": {"team": "x", "empty": ""}}, "spec": {"nodeName": "n"}}
SELECTABLE = ("metadata.name", "spec.nodeName", "spec.driver")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("spec.nodeName=n", True),
        ("spec.nodeName==n,metadata.name=a", True),
        ("spec.nodeName!=n", False),
        ("spec.driver=", True),
        ("spec.driver=d", False),
    ],
)
def test_field_selectors_compare_text(text: str, expected: bool) -> None:
    """All terms must hold; an absent field is empty."""
    assert field_match(text, SLICES, SELECTABLE)(FOUND) is expected


@pytest.mark.parametrize("text", ["spec.pool.name=p", "spec.nodeName", "spec.nodeName in (a)"])
def test_a_field_that_cannot_be_selected_by_is_a_400(text: str) -> None:
    """Unknown fields and other operators are refused, not ignored."""
    with pytest.raises(Refusal) as caught:
        field_match(text, SLICES, SELECTABLE)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("team=x", True),
        ("team==x,empty=", True),
        ("team!=x", False),
        ("other!=x", True),
        ("team in (x, y)", True),
        ("team notin (x,y)", False),
        ("other notin (x)", True),
        ("other in (x)", False),
        ("team", True),
        ("!team", False),
        ("!other,team in (x)", True),
    ],
)
def test_label_selectors_know_sets_and_presence(text: str, expected: bool) -> None:
    """Equality, sets, presence and absence; all terms must hold."""
    assert label_match(text)(FOUND) is expected


def test_a_label_selector_that_does_not_parse_is_a_400() -> None:
    """Nothing is guessed."""
    with pytest.raises(Refusal, match="unable to parse requirement"):
        label_match("a = = b")
