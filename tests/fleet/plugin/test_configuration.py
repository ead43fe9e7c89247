"""Opaque configuration: precedence, strictness, and that a claim can only ask for more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.settings import ResetPolicy, WipePolicy
from fleet.core.settings_parse import Problem
from fleet.plugin.configuration import (
    API_VERSION,
    KIND,
    NOTHING_ASKED,
    TAG_MAX,
    Deallocation,
    Demand,
    Entry,
    Origin,
    Statement,
    demand,
    parsed,
    statement,
)

VALID = {"apiVersion": API_VERSION, "kind": KIND}


def entry(origin: str = "claim", *requests: str, **fields: Any) -> Entry:
    return Entry(
        path=f"{origin}.parameters",
        origin=Origin.CLASS if origin == "class" else Origin.CLAIM,
        requests=requests,
        parameters={**VALID, **fields},
    )


def problems(*entries: Entry, policy: WipePolicy | None = None) -> list[Problem]:
    with pytest.raises(errors.ClaimConfigInvalid) as caught:
        demand(entries, ["gpu"], policy=policy)
    found: list[Problem] = caught.value.problems
    assert all(problem.path in str(caught.value) for problem in found)
    return found


def effective(*entries: Entry, policy: WipePolicy) -> WipePolicy:
    return policy.tightened_by(demand(entries, ["gpu"], policy=policy).wipe)


def test_nothing_named_demands_nothing() -> None:
    """No entry, or one that names no field, leaves the node's policy as it is."""
    assert demand([], ["gpu"]) == Demand()
    assert demand([entry()], ["gpu"]) == Demand()
    assert demand([entry(profile=None, coverageFloor=None, reset=None)], ["gpu"]) == Demand()


@given(
    floor=st.floats(0.01, 1.0),
    deadline=st.floats(1.0, 1e6),
    rate=st.floats(1.0, 1e12),
    slow=st.floats(1.5, 1e6),
    reset=st.sampled_from(ResetPolicy),
)
def test_a_wish_tightens_only_what_it_names(
    floor: float, deadline: float, rate: float, slow: float, reset: ResetPolicy
) -> None:
    """A demand for a reset leaves deadlines, rates and floor of every node's policy alone."""
    policy = WipePolicy(
        coverage_floor=floor,
        deadline_base_s=deadline,
        deadline_s_per_gib=deadline,
        expected_bytes_per_s=rate,
        slow_factor=slow,
        reset=reset,
    )
    assert policy.tightened_by(NOTHING_ASKED) == policy
    found = effective(entry(reset="always"), policy=policy)
    assert found == policy.model_copy(update={"reset": ResetPolicy.ALWAYS})


def test_a_claim_may_ask_for_more() -> None:
    """Floor, reset and a fresh wipe rise by the claim's word."""
    found = demand(
        [entry(coverageFloor=1, reset="always", profile="strict")], ["gpu"], policy=WipePolicy()
    )
    assert found.fresh
    assert found.wipe is not None
    assert (found.wipe.coverage_floor, found.wipe.reset) == (1.0, ResetPolicy.ALWAYS)


def test_a_claim_cannot_ask_for_less_than_the_node() -> None:
    """Less than the node's policy is refused with the field, what is allowed, and a remedy."""
    policy = WipePolicy(coverage_floor=0.9, reset=ResetPolicy.ON_FAULT)
    found = problems(entry(coverageFloor=0.5, reset="never"), policy=policy)
    assert found == [
        Problem(
            "claim.parameters.coverageFloor",
            "0.5 is less than class and node demand",
            "a number at least 0.9 and at most 1, or leave it out",
        ),
        Problem(
            "claim.parameters.reset",
            '"never" is less than class and node demand',
            '"on-fault" or "always", or leave it out',
        ),
    ]


def test_a_claim_cannot_ask_for_less_than_its_class() -> None:
    """Less than the class is refused, also where the node's policy is not known."""
    floor = entry("class", coverageFloor=0.99, reset="always")
    found = problems(floor, entry(coverageFloor=0.98, reset="on-fault"))
    assert [problem.path for problem in found] == [
        "claim.parameters.coverageFloor",
        "claim.parameters.reset",
    ]
    assert demand([floor, entry(coverageFloor=0.99)], ["gpu"]) == demand([floor], ["gpu"])


def test_the_order_of_class_and_claim_does_not_matter() -> None:
    """Invariant 13: the class comes before the claim wherever it stands in the list."""
    asked, given_by_class = entry(coverageFloor=0.999), entry("class", coverageFloor=0.99)
    assert demand([asked, given_by_class], ["gpu"]) == demand([given_by_class, asked], ["gpu"])


def test_later_entries_replace_earlier_ones_field_by_field() -> None:
    """Invariant 13: of two entries of one origin the later counts, for the fields it names."""
    policy = WipePolicy(coverage_floor=0.5, reset=ResetPolicy.NEVER)
    found = effective(
        entry("class", coverageFloor=0.99, reset="always"),
        entry("class", coverageFloor=0.9),
        policy=policy,
    )
    assert (found.coverage_floor, found.reset) == (0.9, ResetPolicy.ALWAYS)
    twice = effective(entry(coverageFloor=0.99), entry(coverageFloor=0.95), policy=policy)
    assert twice.coverage_floor == 0.95


def test_a_class_below_the_node_changes_nothing() -> None:
    """A class serves many pools; what it asks less than a node's policy is no error and no gain."""
    policy = WipePolicy()
    found = effective(entry("class", coverageFloor=0.1, reset="never"), policy=policy)
    assert found == policy


def test_a_fresh_wipe_cannot_be_taken_back() -> None:
    """The class asked for a wipe under the claim's own token: no later entry drops it."""
    assert demand([entry("class", profile="strict"), entry(reset="always")], ["gpu"]).fresh


@pytest.mark.parametrize(
    ("named", "request_name", "covered"),
    [
        ((), "gpu", True),
        (("gpu",), "gpu", True),
        (("gpu",), "gpu/big", True),
        (("gpu/big",), "gpu/big", True),
        (("gpu/small",), "gpu/big", False),
        (("gpu/big",), "gpu", False),
        (("nic", "gpu"), "gpu", True),
        (("gp",), "gpu", False),
    ],
)
def test_entries_cover_the_requests_they_name(
    named: tuple[str, ...], request_name: str, covered: bool
) -> None:
    """Invariant 13: exactly the request, or its base name; no names cover all."""
    found = demand([entry("claim", *named, profile="strict")], [request_name])
    assert found.fresh is covered


def test_several_requests_join_to_the_strictest() -> None:
    """One claim is wiped in one way: each result's strictest wish counts."""
    found = demand(
        [
            entry("claim", "a", coverageFloor=0.9, reset="always"),
            entry("claim", "b", coverageFloor=0.99, profile="strict"),
        ],
        ["a", "b"],
    )
    assert found.fresh
    assert found.wipe is not None
    assert (found.wipe.coverage_floor, found.wipe.reset) == (0.99, ResetPolicy.ALWAYS)


def test_all_problems_come_at_once() -> None:
    """Unknown fields, wrong versions and wrong values of all entries are one error."""
    found = problems(
        entry("class", apiVersion="fleetscrub.dev/v9", wipes=3),
        entry(kind="Other", profile="lab", coverageFloor="0.99", reset="sometimes"),
        Entry("bare", Origin.CLAIM, (), {}),
        Entry("text", Origin.CLAIM, ("other",), "strict"),
    )
    assert {problem.path for problem in found} == {
        "class.parameters.apiVersion",
        "class.parameters.wipes",
        "claim.parameters.kind",
        "claim.parameters.profile",
        "claim.parameters.coverageFloor",
        "claim.parameters.reset",
        "bare.apiVersion",
        "bare.kind",
        "text",
    }
    assert all(problem.write for problem in found)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), True, 10**400, "1"])
def test_a_floor_is_a_fraction(value: Any) -> None:
    """Nothing but a number between 0 and 1 is a coverage floor."""
    (found,) = problems(entry(coverageFloor=value))
    assert found.write == "a number at least 0 and at most 1"


def test_wrong_values_are_shown_short() -> None:
    """The message becomes an event of a pod: a large value is cut."""
    (found,) = problems(entry(profile="x" * 10_000))
    assert len(found.wrong) < 100


# --- deallocation and isolation ---------------------------------------------


@pytest.mark.parametrize(
    "value", ["Retain", "retain", "Delete", "", "wipeOnDeallocate", 1, True, ["WipeOnDeallocate"]]
)
def test_there_is_no_way_to_keep_memory(value: Any) -> None:
    """C2, D2, F: `Retain`, unknown and misspelt policies are refused with what to write."""
    (found,) = problems(entry(deallocation=value))
    assert found.path == "claim.parameters.deallocation"
    assert "ZeroFillMemoryOnRelease" in found.write
    assert "WipeOnDeallocate" in found.write
    assert "never kept" in found.write


def test_zero_fill_is_never_less_than_the_node() -> None:
    """C2: the weaker policy asks for nothing beyond the node's own wipe, which it gets whole."""
    for policy in (WipePolicy(), WipePolicy(reset=ResetPolicy.NEVER, coverage_floor=0.5)):
        asked = entry(deallocation="ZeroFillMemoryOnRelease")
        assert demand([asked], ["gpu"], policy=policy) == Demand()
        assert effective(asked, policy=policy) == policy


def test_wipe_on_deallocate_asks_for_a_reset_where_the_node_would_never() -> None:
    """C2: all else it stands for is done in every wipe; a node that resets by itself is asked for
    nothing more, so that no wipe is repeated for it."""
    asked = entry(deallocation="WipeOnDeallocate")
    never = WipePolicy(reset=ResetPolicy.NEVER)
    assert effective(asked, policy=never).reset is ResetPolicy.ON_FAULT
    assert effective(
        entry(deallocation="WipeOnDeallocate", reset="always"), policy=never
    ).reset is (ResetPolicy.ALWAYS)
    for reset in (ResetPolicy.ON_FAULT, ResetPolicy.ALWAYS):
        policy = WipePolicy(reset=reset)
        assert demand([asked], ["gpu"], policy=policy) == Demand()
    one, other = entry("claim", "a", deallocation="WipeOnDeallocate"), entry("claim", "b")
    assert demand([one, other], ["a", "b"], policy=never).wipe is not None


def test_a_claim_cannot_state_less_than_its_class() -> None:
    """C2: the class says WipeOnDeallocate, the claim must not say less."""
    strict = entry("class", deallocation="WipeOnDeallocate")
    (found,) = problems(strict, entry(deallocation="ZeroFillMemoryOnRelease"))
    assert found.wrong == '"ZeroFillMemoryOnRelease" is less than the class demands'
    assert found.write == '"WipeOnDeallocate"'
    lax = entry("class", deallocation="ZeroFillMemoryOnRelease")
    demand([lax, entry(deallocation="WipeOnDeallocate")], ["gpu"])


def test_a_tag_is_a_text_of_a_claim() -> None:
    """C5: strict in type and length, and never shown by a class for the claims that name it."""
    demand([entry(isolationTag="x" * TAG_MAX)], ["gpu"])
    for wrong in ("", "x" * (TAG_MAX + 1), 3, ["x"]):
        (found,) = problems(entry(isolationTag=wrong))
        assert "fleet tag issue" in found.write
    (found,) = problems(entry("class", isolationTag="x"))
    assert "a class cannot show a tag" in found.wrong


def test_statements_are_by_request_and_the_claim_is_last() -> None:
    """C2, C5: what counts for one request: its own entries, the class's first, the last named."""
    wrong: list[Problem] = []
    valid = parsed(
        [
            entry("claim", "a", isolationTag="one"),
            entry("claim", "a/x", isolationTag="two"),
            entry("class", "a", deallocation="WipeOnDeallocate"),
            entry("claim", "b", nonsense=1),
        ],
        wrong,
    )
    assert [problem.path for problem in wrong] == ["claim.parameters.nonsense"]
    strict = Deallocation.WIPE
    assert statement(valid, "a") == Statement(strict, "one", "claim.parameters")
    assert statement(valid, "a/x") == Statement(strict, "two", "claim.parameters")
    assert statement(valid, "b", default_path="here") == Statement(None, "", "here")


TEXTS = st.text(st.characters(codec=None) | st.sampled_from("\ud800\udfff\0\x1b"), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
FIELD_NAMES = ["apiVersion", "kind", "profile", "coverageFloor", "reset", "deallocation"]
NAMES = st.sampled_from([*FIELD_NAMES, "isolationTag"]) | TEXTS
FIELDS = st.dictionaries(NAMES, DOCUMENTS, max_size=4)


def judged(parameters: Any) -> None:
    """Whatever it is: either it is understood, or the error can be written down anywhere."""
    given = Entry("claim.parameters", Origin.CLAIM, (), parameters)
    text = "understood"
    try:
        demand([given], ["gpu"])
    except errors.ClaimConfigInvalid as error:
        text = str(error)
    assert text.encode()


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS | FIELDS | FIELDS.map(lambda fields: {**VALID, **fields}))
def test_no_document_does_anything_but_be_refused(parameters: Any) -> None:
    """Promise 2: a tenant's JSON, surrogates included, ends in a refusal it can read."""
    judged(parameters)


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb", "\x1b[2J", "", "x" * 10_000])
def test_a_key_that_is_no_text_is_named_readably(key: str) -> None:
    """A lone surrogate as a key is one problem, and its message can be an event of a pod."""
    named: dict[str, Any] = {key: 1}
    (found,) = problems(entry("claim", **named))
    assert found.wrong == "there is no such field"
    assert found.path.isprintable()
    assert len(found.path) < 100


def test_values_that_cannot_be_shown_are_refused() -> None:
    """Nesting or digits beyond what Python writes out are a wrong value like any other."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 10**5000):
        (found,) = problems(entry(profile=value))
        assert found.wrong == f"a value of type {type(value).__name__} is not allowed"
    assert [found.wrong for found in problems(entry(reset=deep))] == ["nested too deep"]
    while deep:
        deep = deep.pop()
