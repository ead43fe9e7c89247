"""Requirements as data: figures are in a certificate, demands can be met and broken."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from fleet.core.errors import InputInvalid
from fleet.evidence import parsed
from fleet.evidence.certificate import Reset, issue
from fleet.evidence.keys import SigningKey
from fleet.evidence.requirements import mapping
from fleet.evidence.requirements.mapping import LEDGER, Answer, Requirement, requirements, values
from fleet.evidence.verify import Report
from tests.fleet.evidence.samples import attested, device_named, reset_of

ALL = requirements()


def by_id(requirement: Requirement) -> str:
    """What a parametrized test is called."""
    return requirement.id


@pytest.fixture(name="predicate", scope="module")
def predicate_fixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the certificate of a wipe with a reset of the engine says."""
    key = SigningKey.load_or_create(tmp_path_factory.mktemp("keys") / "node.key")
    reset = Reset(performed=True, method="flr", reason="policy always")
    done = issue(attested(device_named("a"), reset=reset), key=key, now=2e9, version="0.1")
    return dict(parsed.read(done.envelope).predicate)


def changed(predicate: dict[str, Any], figure: str, value: object) -> dict[str, Any]:
    """The predicate with every place of one figure set."""
    found = copy.deepcopy(predicate)
    path, _, last = figure.rpartition(".")
    for place in values(found, path) if path else [found]:
        place[last] = value
    return found


def test_the_requirements_the_issue_names_are_there() -> None:
    """E3: NIST's Clear, verification, validation and certificate, SEC21-05 and AISVS C4.2.4."""
    ids = [one.id for one in ALL]
    assert len(ids) == len(set(ids))
    assert {"SEC21-05", "AISVS-C4.2.4", "NIST-800-88-CLEAR", "NIST-800-88-CERTIFICATE"} <= set(ids)
    assert {"NIST-800-88-VERIFICATION", "NIST-800-88-VALIDATION"} <= set(ids)


@pytest.mark.parametrize("requirement", ALL, ids=by_id)
def test_every_figure_is_in_a_certificate_or_a_verification(
    requirement: Requirement, predicate: dict[str, Any]
) -> None:
    """E3: a claim names figures a reader finds in the signed text or in what `verify` prints."""
    ledger = {"ledger": Report().as_json()}
    for figure in requirement.figures():
        where = ledger if figure.startswith(LEDGER) else predicate
        assert values(where, figure), figure
    for demand in requirement.demands:
        assert values(predicate, demand.figure), demand.figure
        assert not demand.same_as or values(predicate, demand.same_as)


@pytest.mark.parametrize("requirement", ALL, ids=by_id)
def test_every_row_says_what_it_does_not_cover(requirement: Requirement) -> None:
    """E3: no requirement is mapped without source, gaps with their reasons, and what is added."""
    assert requirement.covered
    assert requirement.source
    assert requirement.operator
    assert requirement.not_covered
    assert all(one.what and one.why for one in requirement.not_covered)
    assert all(one.words and one.remedy for one in requirement.demands)
    assert bool(requirement.demands) == (requirement.answered_by is Answer.CERTIFICATE)


@pytest.mark.parametrize("requirement", ALL, ids=by_id)
def test_a_wipe_meets_every_demand_and_each_can_be_broken(
    requirement: Requirement, predicate: dict[str, Any]
) -> None:
    """Promise 8: a genuine wipe answers; one figure changed and exactly its demand is not met."""
    assert list(requirement.against(predicate)) == []
    for demand in requirement.demands:
        wrong = demand.value if demand.unlike else "something else"
        against = list(requirement.against(changed(predicate, demand.figure, wrong)))
        assert demand in against


def test_a_device_that_was_only_reset_answers_no_wipe(tmp_path: Path) -> None:
    """B3: a certificate of a reset meets the demands of health and evidence alone."""
    key = SigningKey.load_or_create(tmp_path / "node.key")
    done = issue(reset_of(device_named("a")), key=key, now=2e9, version="0.1")
    said = parsed.read(done.envelope).predicate
    answered = {one.id for one in ALL if one.demands and not any(one.against(said))}
    assert answered == {"B1", "E3"}


def test_a_figure_that_is_missing_is_a_demand_not_met() -> None:
    """Promise 8: what a certificate does not say does not count, and true is not 1."""
    (clear,) = (one for one in ALL if one.id == "NIST-800-88-CLEAR")
    assert list(clear.against({})) == list(clear.demands)
    assert list(clear.against({"sanitization": {"passes": 7}})) == list(clear.demands)
    (b1,) = (one for one in ALL if one.id == "B1")
    assert b1.demands[0] in b1.against({"health": {"healthy": 1, "findings": []}})
    assert b1.demands[1] in b1.against({"health": {"healthy": True, "findings": []}})


def test_figures_are_found_by_path() -> None:
    """Fields, elements, named elements and values of objects; nothing where there is none."""
    said = {
        "a": {"b": 1},
        "scope": [{"region": "x", "n": 1}, {"region": "y", "n": 2}, "stray"],
        "chain": {"u": {"sequence": 3}, "v": {"sequence": 4}},
    }
    assert values(said, "a.b") == [1]
    assert values(said, "scope[].n") == [1, 2]
    assert values(said, "scope[y].n") == [2]
    assert values(said, "chain.*.sequence") == [3, 4]
    for nothing in ("a.c", "a.b.c", "a[].b", "scope[z].n", "not a path", ""):
        assert values(said, nothing) == []


def test_an_unknown_requirement_lists_the_ids() -> None:
    """A wrong id is an error that names all there are; case does not matter."""
    assert mapping.requirement("sec21-05").id == "SEC21-05"
    with pytest.raises(InputInvalid) as caught:
        mapping.requirement("SEC99")
    assert all(one.id in caught.value.remedy for one in ALL)


def test_the_page_tells_every_row() -> None:
    """docs/compliance.md has every requirement, figure, gap and addition."""
    page = mapping.reference()
    for one in ALL:
        for words in (one.text, *one.figures(), *one.operator, *(n.why for n in one.not_covered)):
            assert words in page
