"""Isolation tags: one spelling, one signature, and every reason for which one is not good."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import InputInvalid
from fleet.evidence import dsse
from fleet.plugin import tags
from fleet.plugin.configuration import TAG_MAX, Deallocation
from fleet.plugin.tags import ANY, PREFIX, WHOLE, Revoked, TagInvalid, TagKeys, Use
from tests.fleet.admission.rights import (
    DAY_S,
    ISSUER,
    KEYS,
    NOW,
    SPACE,
    STRANGER,
    issued,
    signing_key,
    tag,
)

USE = Use(SPACE, float(NOW), Deallocation.ZERO_FILL)


def wrongs(text: str, *, keys: TagKeys = KEYS, use: Use = USE) -> list[str]:
    return [wrong for wrong, _ in tags.judge(tags.read(text), keys, use)]


def forged(payload: dict[str, Any]) -> str:
    """A tag of any payload, spelled canonically and signed by the issuer."""
    raw = dsse.canonical(payload)
    signature = ISSUER.sign(dsse.pre_authentication(tags.PAYLOAD_TYPE, raw))
    parts = (base64.urlsafe_b64encode(one).decode().rstrip("=") for one in (raw, signature))
    return ".".join((PREFIX, *parts))


def test_a_tag_says_what_it_was_issued_for() -> None:
    """C5: read back, a tag is the right that was signed, and it is good for its use."""
    wanted = tag(profiles=("1g.10gb", WHOLE), namespaces=("a", SPACE))
    text = tags.issue(wanted, ISSUER)
    assert tags.read(text).tag == wanted
    assert wrongs(text, use=replace(USE, profile=WHOLE)) == []
    assert len(text) <= TAG_MAX
    assert text.isascii()


@pytest.mark.parametrize(
    ("fields", "use", "words"),
    [
        ({}, {"namespace": "tenant-b"}, "is for namespace tenant-a, not for tenant-b"),
        ({}, {"created_at": float(NOW + 2 * DAY_S)}, "expired at 2027-01-16T08:00:00Z"),
        ({}, {"created_at": float(NOW - 2 * DAY_S)}, "good for claims created from"),
        ({"minimum": Deallocation.WIPE}, {}, "demands deallocation WipeOnDeallocate"),
        ({"profiles": ("1g.10gb",)}, {"profile": WHOLE}, "given was one of profile whole"),
        ({"profiles": (WHOLE,)}, {"profile": "1g.10gb"}, "given was one of profile 1g.10gb"),
    ],
)
def test_a_tag_is_good_for_nothing_but_its_right(
    fields: dict[str, Any], use: dict[str, Any], words: str
) -> None:
    """C5: another namespace, time, policy or profile than signed is refused and named."""
    (wrong,) = wrongs(issued(**fields), use=replace(USE, **use))
    assert words in wrong


def test_a_claim_is_judged_by_its_creation_to_the_second() -> None:
    """C5: the last second counts, and a fraction of it: API times are whole seconds."""
    ends = float(NOW + DAY_S)
    assert wrongs(issued(), use=replace(USE, created_at=ends + 0.9)) == []
    assert wrongs(issued(), use=replace(USE, created_at=ends + 1)) != []
    assert wrongs(issued(), use=replace(USE, created_at=float(NOW - DAY_S))) == []


def test_before_a_device_is_given_its_profile_is_not_judged() -> None:
    """C5: at admission nobody knows which device a selector will find."""
    assert wrongs(issued(profiles=("1g.10gb",))) == []
    assert wrongs(issued(profiles=(ANY,)), use=replace(USE, profile="7g.80gb")) == []


def test_only_listed_keys_sign() -> None:
    """C5: a key that the list does not name, and a name without the key, sign nothing."""
    (wrong,) = wrongs(issued(STRANGER))
    assert "lacks" in wrong
    stolen_name = tags.read(issued()).payload
    signature = STRANGER.sign(dsse.pre_authentication(tags.PAYLOAD_TYPE, stolen_name))
    parts = (base64.urlsafe_b64encode(one).decode().rstrip("=") for one in (stolen_name, signature))
    (wrong,) = wrongs(".".join((PREFIX, *parts)))
    assert "its signature is not that of key" in wrong


def test_a_signature_for_evidence_is_none_for_a_tag() -> None:
    """C5: keys sign under a payload type; the same bytes signed as evidence count for nothing."""
    payload = tags.read(issued()).payload
    signature = ISSUER.sign(dsse.pre_authentication(dsse.PAYLOAD_TYPE, payload))
    parts = (base64.urlsafe_b64encode(one).decode().rstrip("=") for one in (payload, signature))
    (wrong,) = wrongs(".".join((PREFIX, *parts)))
    assert "signature" in wrong


def test_a_revoked_key_voids_all_its_tags_and_a_replaced_one_none() -> None:
    """C5: who has a stolen key writes any date; a rotation alone takes nothing away."""
    known = KEYS.keys[ISSUER.key_id]
    ended = TagKeys(2, NOW, {ISSUER.key_id: replace(known, until=NOW - DAY_S // 2)})
    assert wrongs(issued(), keys=ended) == []
    (wrong,) = wrongs(issued(issued_at=NOW), keys=ended)
    assert "was replaced" in wrong
    gone = TagKeys(3, NOW, {ISSUER.key_id: replace(known, revoked_at=NOW, reason="stolen")})
    (wrong,) = wrongs(issued(), keys=gone)
    assert "was revoked at 2027-01-15T08:00:00Z (stolen)" in wrong


def test_a_revoked_tag_is_void_for_claims_of_before_too() -> None:
    """C5: taking a right back does not wait for claims to be made anew."""
    taken = TagKeys(2, NOW, KEYS.keys, {tag().id: Revoked(tag().id, NOW, "team left")})
    (wrong,) = wrongs(issued(), keys=taken, use=replace(USE, created_at=float(NOW - 10)))
    assert "team left" in wrong


def test_every_reason_is_told_at_once() -> None:
    """C5: who asks for a new tag asks once."""
    use = Use("b", float(NOW + 2 * DAY_S), Deallocation.ZERO_FILL, "1g.10gb")
    assert len(wrongs(issued(profiles=(WHOLE,), minimum=Deallocation.WIPE), use=use)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"namespaces": []},
        {"namespaces": ["b", "a"]},
        {"namespaces": ["a", "a"]},
        {"namespaces": ["*"]},
        {"namespaces": "tenant-a"},
        {"namespaces": [f"n{number:02}" for number in range(17)]},
        {"profiles": []},
        {"profiles": ["1g.10gb", "any"]},
        {"profiles": ["a b"]},
        {"minimum": "Retain"},
        {"minimum": ["WipeOnDeallocate"]},
        {"not_after": "2027-01-14T07:00:00Z"},
        {"not_after": "2027-01-16T08:00:00.5Z"},
        {"not_after": "2027-01-16T08:00:00+00:00"},
        {"not_after": 1},
        {"id": "short"},
        {"id": 3},
        {"key_id": "x"},
        {"extra": 1},
    ],
)
def test_a_right_that_no_tag_can_say_is_none(change: dict[str, Any]) -> None:
    """C5: whatever the signature, only well-formed rights are read: closed, sorted, no wildcard."""
    with pytest.raises(TagInvalid):
        tags.read(forged({**tag().as_json(), **change}))


def test_a_wrong_right_is_refused_when_it_is_issued() -> None:
    """C5: nobody is handed a tag that no node would read."""
    for wrong in ({"namespaces": ("Tenant",)}, {"not_after": NOW - 2 * DAY_S}, {"profiles": ()}):
        with pytest.raises(InputInvalid, match="no tag can say that"):
            issued(**wrong)
    with pytest.raises(InputInvalid, match="not the one that signs"):
        tags.issue(tag(), STRANGER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fst1",
        "fst2.e30.e30",
        "fst1.e30.e30",
        "fst1.e31.e30",
        "fst1.ä.e30",
        "fst1.\ud800.e30",
        "fst1.e30=.e30",
        "fst1..",
        "fst1." + "W1s" * 1300 + ".e30",
        issued() + " ",
        issued().replace(".", "..", 1),
        "x" * (TAG_MAX + 1),
    ],
)
def test_what_is_no_tag_is_refused_readably(text: str) -> None:
    """C5: a tenant's text ends in a refusal that can be an event, whatever it is."""
    with pytest.raises(TagInvalid) as caught:
        tags.read(text)
    assert str(caught.value).encode()


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, len(issued()) - 1), letter=st.sampled_from("AZaz09-_.="))
def test_no_changed_letter_goes_unnoticed(place: int, letter: str) -> None:
    """C5: a tag with another letter anywhere is not read, or not good."""
    good = issued()
    changed = good[:place] + letter + good[place + 1 :]
    if changed == good:
        return
    try:
        assert wrongs(changed) != []
    except TagInvalid:
        return


def test_the_canonical_form_is_what_the_documentation_shows() -> None:
    """docs/isolation-tags.md: keys sorted, no spaces, whole seconds."""
    payload = tags.read(issued(signing_key(2))).payload
    assert json.loads(payload) == tag().as_json()
    assert payload == json.dumps(tag().as_json(), sort_keys=True, separators=(",", ":")).encode()
    assert b'"not_after":"2027-01-16T08:00:00Z"' in payload


@pytest.mark.parametrize("seconds", [-(10**15), 10**15, -60_000_000_000])
def test_a_time_that_cannot_be_written_is_refused(seconds: int) -> None:
    """Times outside four-digit years have no spelling everybody reads."""
    with pytest.raises(InputInvalid):
        tags.moment(seconds)
