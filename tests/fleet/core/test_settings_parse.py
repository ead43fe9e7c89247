"""Settings from a mapping: all problems at once, nearest keys named, rules between fields."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.profiles import Profile
from fleet.core.settings import Settings
from fleet.core.settings_parse import SECTIONS, Problem, parse, reference


def problems(mapping: dict[str, Any]) -> list[Problem]:
    with pytest.raises(errors.SettingsInvalid) as caught:
        parse(mapping)
    found: list[Problem] = caught.value.problems
    assert all(str(problem) in caught.value.detail for problem in found)
    return found


def test_nothing_given_is_the_defaults() -> None:
    """Every setting is optional."""
    assert parse({}) == Settings()


def test_what_is_given_counts() -> None:
    """Values reach their section; the rest stays at the default."""
    found = parse({"profile": "fast", "campaign": {"attempts": 3, "max_parallel": 4}})
    assert (found.profile, found.campaign.attempts, found.campaign.max_parallel) == (
        Profile.FAST,
        3,
        4,
    )
    assert found.health == Settings().health


def test_all_problems_are_reported_at_once() -> None:
    """Unknown keys, bad values, bad sections and broken rules come in one error."""
    found = problems(
        {
            "wipee": {},
            "profile": "loose",
            "wipe": {"chunk_smalest_bytes": 1, "reset": "sometimes"},
            "campaign": {"attempts": 9},
            "health": {"fresh_s": 1},
            "store": 5,
        }
    )
    assert {(p.path, p.write) for p in found} == {
        ("wipee", "wipe"),
        ("profile", 'one of "strict", "fast", "lab"'),
        ("wipe.chunk_smalest_bytes", "wipe.chunk_smallest_bytes"),
        ("campaign.attempts", "a whole number at least 1 and at most 3"),
        ("wipe.reset", 'one of "always", "on-fault", "never"'),
        ("health.fresh_s", "at least 25"),
        ("store", "a table [store]"),
    }


def test_a_key_in_the_wrong_place_is_sent_to_the_right_one() -> None:
    """A valid name at the wrong path is named at its own."""
    assert problems({"lease_ttl_s": 3})[0].write == "campaign.lease_ttl_s"
    assert problems({"wipe": {"pool_floor": 0.1}})[0].write == "campaign.pool_floor"


@pytest.mark.parametrize(
    ("mapping", "path"),
    [
        ({"wipe": {"chunk_smallest_bytes": 2**20, "chunk_largest_bytes": 2**16}},
         "wipe.chunk_smallest_bytes"),
        ({"health": {"fresh_s": 24}}, "health.fresh_s"),
        ({"health": {"reading_timeout_s": 60}}, "health.reading_timeout_s"),
        ({"campaign": {"lease_ttl_s": 45}}, "campaign.lease_ttl_s"),
        ({"campaign": {"call_timeout_s": 40}}, "campaign.lease_ttl_s"),
        ({"campaign": {"device_timeout_s": 59}}, "campaign.device_timeout_s"),
        ({"wipe": {"deadline_base_s": 3601}}, "campaign.device_timeout_s"),
        ({"store": {"hosts": 2}}, "store.hosts"),
        ({"evidence": {"policy": "replicated"}}, "evidence.archive"),
    ],
)  # fmt: skip
def test_rules_between_fields(mapping: dict[str, Any], path: str) -> None:
    """DESIGN 4: combinations that cannot work are errors, SQLite with more than one host too."""
    assert [problem.path for problem in problems(mapping)] == [path]


@pytest.mark.parametrize(
    "mapping",
    [
        {"wipe": {"chunk_smallest_bytes": 2**20, "chunk_largest_bytes": 2**20}},
        {"health": {"fresh_s": 25}},
        {"health": {"reading_timeout_s": 24.9}},
        {"campaign": {"lease_ttl_s": 45.1}},
        {"campaign": {"device_timeout_s": 60}},
        {"store": {"hosts": 1}},
        {"evidence": {"policy": "local"}},
        {"evidence": {"policy": "replicated", "archive": "s3://bucket-1/a/b=c"}},
    ],
)
def test_the_edges_of_the_rules_are_allowed(mapping: dict[str, Any]) -> None:
    """What just works is not refused."""
    assert isinstance(parse(mapping), Settings)


ROOT = "0" * 64


@pytest.mark.parametrize(
    ("given_there", "path", "words"),
    [
        ({"required": True}, "admission.required", "no list of tag keys is named"),
        ({"tag_keys": "/x"}, "admission.tag_roots", "the ids of its roots"),
        ({"tag_roots": [ROOT]}, "admission.tag_keys", "they need the list"),
    ],
)
def test_tags_are_judged_by_a_list_and_its_roots(
    given_there: dict[str, Any], path: str, words: str
) -> None:
    """C5: what could judge no tag is refused at the start, not at the first claim."""
    (found,) = problems({"admission": given_there})
    assert (found.path, words in found.wrong) == (path, True)


def test_a_rule_waits_until_its_sections_are_valid() -> None:
    """No rule complains about a default that stands in for a mistake."""
    found = problems({"wipe": {"chunk_smallest_bytes": 2**40, "slow_factor": 0}})
    assert [problem.path for problem in found] == ["wipe.slow_factor"]


def test_the_error_crosses_processes() -> None:
    """B60: the list of problems survives pickling."""
    with pytest.raises(errors.SettingsInvalid) as caught:
        parse({"x": 1})
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems  # noqa: S301


def test_the_reference_lists_every_setting() -> None:
    """docs/settings.md leaves nothing out and says the defaults."""
    text = reference()
    for name, kind in SECTIONS.items():
        assert f"## [{name}]" in text
        assert all(f"| `{field}` |" in text for field in kind.model_fields)
    assert '| `profile` | one of "strict", "fast", "lab" | `"strict"` |' in text
    assert "| `unknown_blocks` | true or false | `true` |" in text


@settings(suppress_health_check=(HealthCheck.too_slow,))  # a busy machine is no fault of ours
@given(
    st.dictionaries(
        st.sampled_from([*SECTIONS, "profile", "nonsense"]),
        st.one_of(
            st.integers(),
            st.text(max_size=3),
            st.dictionaries(
                st.sampled_from(["attempts", "fresh_s", "hosts", "x"]),
                st.one_of(st.integers(-5, 100), st.floats(), st.none(), st.text(max_size=3)),
            ),
        ),
    )
)
def test_whatever_is_given_is_settings_or_a_list_of_problems(mapping: dict[str, Any]) -> None:
    """No input ends in anything but valid settings or `SettingsInvalid` with problems."""
    try:
        found: object = Settings.model_validate(parse(mapping).model_dump())
    except errors.SettingsInvalid as error:
        found = error.problems
    assert found


def test_a_text_of_another_form_is_told_what_it_is_for() -> None:
    """E5: a pattern alone tells nobody what to write."""
    (one,) = problems({"evidence": {"archive": "s3:bucket"}})
    assert "s3:bucket" in str(one)
    assert "s3://bucket/prefix" in str(one)
