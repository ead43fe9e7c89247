"""The list of tag keys: signed by a root we were told, strict, and grown by decisions only."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from fleet.core.errors import InputInvalid
from fleet.evidence import dsse
from fleet.plugin import tags_list
from fleet.plugin.tags import TagKeysUnreadable
from tests.fleet.admission.rights import ISSUER, KEYS, LIST, NOW, ROOT, STRANGER, tag

ROOTS = [ROOT.key_id]


def signed(change: dict[str, Any]) -> bytes:
    """A list with changed fields, signed by the root."""
    said = {**tags_list.as_json(KEYS), **change}
    raw = ROOT.sign(dsse.pre_authentication(tags_list.PAYLOAD_TYPE, dsse.canonical(said)))
    public = base64.b64encode(ROOT.public().raw).decode()
    signature = base64.b64encode(raw).decode()
    return dsse.canonical({"list": said, "public": public, "signature": signature})


def test_a_list_is_read_as_it_was_signed() -> None:
    """C5: keys, revocations and times come back; a newline of an editor changes nothing."""
    full = tags_list.without_tag(
        tags_list.without_key(KEYS, ISSUER.key_id, reason="stolen", now=NOW),
        tag().id,
        reason="team left",
        now=NOW,
    )
    found = tags_list.read(tags_list.sign(full, ROOT, ROOT.public()) + b"\n", ROOTS)
    assert tags_list.as_json(found) == tags_list.as_json(full)
    assert found.keys[ISSUER.key_id].verifier == ISSUER.public()
    assert (found.number, found.issued_at) == (3, NOW)


def test_only_a_root_we_were_told_makes_a_list() -> None:
    """C5: whoever can change the file cannot name keys: another's list is refused, and ours when
    a letter of it changed."""
    other = tags_list.sign(KEYS, STRANGER, STRANGER.public())
    with pytest.raises(TagKeysUnreadable, match="no root that we were told"):
        tags_list.read(other, ROOTS)
    with pytest.raises(TagKeysUnreadable, match="no root"):
        tags_list.read(LIST, [])
    with pytest.raises(TagKeysUnreadable, match="not signed by the key it names"):
        tags_list.read(LIST.replace(b'"reason":""', b'"reason":"x"'), ROOTS)
    posed = json.loads(other)
    posed["public"] = base64.b64encode(ROOT.public().raw).decode()
    with pytest.raises(TagKeysUnreadable, match="not signed by the key it names"):
        tags_list.read(dsse.canonical(posed), ROOTS)


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"number": True},
        {"number": "1"},
        {"issued_at": "yesterday"},
        {"keys": {}},
        {"keys": [{}]},
        {"keys": [{**tags_list.as_json(KEYS)["keys"][0], "id": "0" * 64}]},
        {"keys": [{**tags_list.as_json(KEYS)["keys"][0], "public": "AAAA"}]},
        {"keys": [{**tags_list.as_json(KEYS)["keys"][0], "public": 3}]},
        {"revoked_tags": [{"id": "x"}]},
        {"more": 1},
    ],
)
def test_a_list_that_is_not_well_formed_is_no_list(change: dict[str, Any]) -> None:
    """C5: fail closed, also on what the root itself signed by mistake."""
    with pytest.raises(TagKeysUnreadable):
        tags_list.read(signed(change), ROOTS)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[1]", b'{"list":1}', LIST[:-2]])
def test_what_is_no_list_is_refused(content: bytes) -> None:
    """C5: a file half-written or of another kind names no keys."""
    with pytest.raises(TagKeysUnreadable):
        tags_list.read(content, ROOTS)


def test_a_new_key_ends_the_one_before_it() -> None:
    """C5: rotation; of two keys one signs. A revoked key keeps its date."""
    after = tags_list.with_key(KEYS, STRANGER.public(), now=NOW)
    assert after.number == KEYS.number + 1
    assert after.keys[ISSUER.key_id].until == NOW
    assert after.keys[STRANGER.key_id].until is None
    gone = tags_list.without_key(after, STRANGER.key_id, reason="x", now=NOW + 1)
    again = tags_list.with_key(gone, ROOT.public(), now=NOW + 2)
    assert again.keys[STRANGER.key_id].until is None
    assert again.keys[ISSUER.key_id].until == NOW


def test_an_earlier_revocation_stays() -> None:
    """C5: revoking twice changes neither date nor reason, and signs no new list."""
    once = tags_list.without_key(KEYS, ISSUER.key_id, reason="first", now=NOW)
    assert tags_list.without_key(once, ISSUER.key_id, reason="second", now=NOW + 1) is once
    taken = tags_list.without_tag(KEYS, "t", reason="first", now=NOW)
    assert tags_list.without_tag(taken, "t", reason="second", now=NOW + 1) is taken


def test_a_key_is_chosen_by_its_first_characters() -> None:
    """One key, or none is taken."""
    both = tags_list.with_key(KEYS, STRANGER.public(), now=NOW)
    assert tags_list.chosen(both, ISSUER.key_id[:8]).key_id == ISSUER.key_id
    for text in ("", "zz"):
        with pytest.raises(InputInvalid, match="keys begin with"):
            tags_list.chosen(both, text)
