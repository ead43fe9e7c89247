"""The signed list of keys: whose each is, and until when what it signed counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.evidence import dsse, key_list, layout
from fleet.evidence.export import export
from fleet.evidence.key_list import Kept, KeyList, Listed, Named
from fleet.evidence.keys import KeyRing, SigningKey
from fleet.evidence.segments import Damage, Place
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from tests.fleet.evidence.samples import START, Site

OLD, NEW, OTHER = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """node-1 with four certificates, issued at START + 13, 23, 33 and 43."""
    site = Site(tmp_path / "state")
    site.certify("node-1")
    site.countersign()
    return site


def sign(site: Site, *keys: Listed, at: float = START + 90, key: SigningKey | None = None) -> None:
    """Put a list in place."""
    rows = {one.key_id: one for one in keys}
    signer = key or site.coordinator
    content = key_list.sign(rows, number=1, previous=None, key=signer, now=at)
    layout.key_list(site.state).write_bytes(content)


def found(site: Site) -> list[tuple[str, int | None]]:
    """What verification says: kind and entry."""
    return [(one.code, one.place.entry) for one in verify(collect(site.state)).defects]


def test_what_was_signed_before_the_revocation_stays_valid(site: Site, tmp_path: Path) -> None:
    """E3: certificates signed at or after it are invalid, each of them, here and in a copy."""
    key = site.key("node-1").key_id
    sign(site, Listed(key, "node-1", START, revoked_at=START + 33, reason="stolen"))
    assert found(site) == [("revoked-key", 3), ("revoked-key", 4)]
    export(collect(site.state), tmp_path / "copy")
    codes = [one.code for one in verify(collect(tmp_path / "copy")).defects]
    assert codes == ["revoked-key", "revoked-key"]


def test_a_time_before_the_revocation_is_proven_by_a_countersignature_only(site: Site) -> None:
    """E3: whoever has a stolen key can write an earlier time: what only says so is named."""
    site.certify("node-1", rounds=1)
    sign(site, Listed(site.key("node-1").key_id, "node-1", START, revoked_at=START + 90))
    report = verify(collect(site.state))
    assert report.ok
    assert any("entries 5 to 6 say themselves" in note for note in report.notes)
    site.countersign()
    assert not any("themselves" in note for note in verify(collect(site.state)).notes)


@pytest.mark.parametrize("later", [False, True], ids=["uncovered", "countersigned-afterwards"])
def test_f48_a_countersignature_later_than_it_says_it_is_contradicts_it(
    site: Site, tmp_path: Path, *, later: bool
) -> None:
    """F48: what a revoked key signed, backdated before a countersignature that lacks it, is false.

    That a countersignature made after the revocation holds it proves nothing.
    """
    site.at = START
    site.certify("node-1", rounds=1)
    site.at = START + 99
    if later:
        site.countersign()
    sign(site, Listed(site.key("node-1").key_id, "node-1", START, revoked_at=START + 90))
    assert found(site) == [("backdated", 5), ("backdated", 6)]
    export(collect(site.state), tmp_path / "copy")
    assert [one.code for one in verify(collect(tmp_path / "copy")).defects] == ["backdated"] * 2


def test_a_replaced_key_signs_nothing_more(site: Site) -> None:
    """A key counts until another took its place."""
    sign(site, Listed(site.key("node-1").key_id, "node-1", START, until=START + 33))
    assert found(site) == [("replaced-key", 4)]


def test_a_key_that_is_not_listed_is_named(site: Site) -> None:
    """Unknown keys are named: the node's other keys are listed, this one is not."""
    sign(site, Listed(OTHER, "node-1", START))
    report = verify(collect(site.state))
    assert {one.code for one in report.defects} == {"unlisted-key"}
    assert site.key("node-1").key_id[:16] in report.defects[0].detail
    sign(site, Listed(site.key("node-1").key_id, "node-2", START))
    assert {code for code, _ in found(site)} == {"foreign-key"}


def test_a_list_convicts_only_what_it_can_know() -> None:
    """A node or key younger than the list is in the next one."""
    listed = KeyList(1, None, {OLD: Listed(OLD, "n", 0.0)}, issued_at=100.0)
    assert listed.against(OLD, "n", 50.0) is None
    assert listed.against(NEW, "n", 150.0) is None
    assert listed.against(NEW, "m", 50.0) is None
    assert listed.against(NEW, "n", 50.0) is not None
    against = listed.against(OLD, "m", 50.0)
    assert against is not None
    assert against[0] == "foreign-key"


@pytest.mark.parametrize(
    ("kept", "code"), [(b'"sig":"AAAA', "forged"), (b"", "unreadable-key-list")]
)
def test_a_list_that_was_changed_judges_nobody(site: Site, kept: bytes, code: str) -> None:
    """What nobody signed is a defect by itself and convicts no certificate."""
    sign(site, Listed(site.key("node-1").key_id, "node-1", START, revoked_at=START))
    path = layout.key_list(site.state)
    path.write_bytes(path.read_bytes().replace(b'"sig":"', kept))
    assert found(site) == [(code, None)]


def test_only_the_coordinator_lists_keys(site: Site) -> None:
    """A node cannot bring its own revoked key back with a list of its own."""
    sign(site, key=site.key("node-1"))
    assert found(site) == [("unknown-key", None)]
    content = layout.key_list(site.state).read_bytes()
    damages: list[Damage] = []
    stranger = KeyRing([site.coordinator.public()])
    assert key_list.checked(content, stranger, Place("x"), damages) is None
    assert damages[0].code == "unknown-key"


def test_a_list_is_renewed_from_the_keys_there_are(tmp_path: Path) -> None:
    """A key that is no longer its owner's present one ended when it was seen so, once."""
    path = tmp_path / "node.key"
    first = SigningKey.load_or_create(path).public()
    listed = key_list.renewed(KeyList(), {"n": KeyRing.owned(tmp_path, "node")}, now=10.0)
    assert listed == {first.key_id: Listed(first.key_id, "n", 10.0)}
    path.unlink()
    second = SigningKey.load_or_create(path).public()
    rings = {"n": KeyRing.owned(tmp_path, "node")}
    listed = key_list.renewed(KeyList(1, None, listed), rings, now=20.0)
    assert listed[first.key_id].until == 20.0
    assert listed[second.key_id] == Listed(second.key_id, "n", 20.0)
    assert key_list.renewed(KeyList(2, None, listed), rings, now=30.0) == listed


def test_a_revocation_is_never_put_off() -> None:
    """The earlier of two revocations stays."""
    one = Listed(OLD, "n", 0.0)
    listed = key_list.revoked({OLD: one}, one, at=50.0, reason="stolen")
    assert listed[OLD] == replace(one, revoked_at=50.0, reason="stolen")
    assert key_list.revoked(listed, listed[OLD], at=60.0, reason="later") == listed
    assert key_list.revoked(listed, listed[OLD], at=40.0, reason="sooner")[OLD].revoked_at == 40.0


def test_a_key_told_by_an_operator_convicts_no_other(site: Site) -> None:
    """E3: revoked where its node is unknown, the list says nothing of that node's other keys."""
    told = Listed(OTHER, "node-1", START, revoked_at=START, told=True)
    sign(site, told)
    assert found(site) == []
    known = key_list.renewed(
        KeyList(1, None, {OTHER: told}),
        {"node-1": KeyRing.owned(layout.node_keys_directory(site.state, "node-1"), "node")},
        now=START,
    )
    assert not known[site.key("node-1").key_id].told
    assert known[OTHER].told


def lists(site: Site) -> list[bytes]:
    """Three that follow each other."""
    made: list[bytes] = []
    for number in (1, 2, 3):
        previous = dsse.digest_of(made[-1]) if made else None
        made.append(
            key_list.sign({}, number=number, previous=previous, key=site.coordinator, now=START)
        )
    return made


def chosen(site: Site, *kept: tuple[bytes, int]) -> tuple[int, list[str]]:
    """Number of the list that counts, and what is wrong."""
    damages: list[Damage] = []
    ring = KeyRing([site.coordinator.public()])
    told = [Kept(content, Place(f"lists/{number}"), number) for content, number in kept]
    one = key_list.newest(told, ring, damages)
    return one.listed.number if one else 0, [damage.code for damage in damages]


def test_the_highest_signed_number_counts_whatever_names_say(site: Site) -> None:
    """E3: an old genuine list kept under a higher number hides no revocation, and is told."""
    first, second, third = lists(site)
    assert chosen(site, (first, 1), (second, 2), (third, 3)) == (3, [])
    assert chosen(site, (first, 1), (third, 3)) == (3, []), "one that was never copied"
    assert chosen(site, (third, 3), (first, 999)) == (3, ["misnamed-key-list"])
    assert chosen(site, (b"", 1)) == (0, ["unreadable-key-list"])
    other = key_list.sign({}, number=2, previous=None, key=site.coordinator, now=START)
    assert chosen(site, (first, 1), (other, 2)) == (2, ["forked-key-list"])
    assert "forked-key-list" in chosen(site, (second, 2), (other, 2))[1]


def test_a_list_stands_or_falls_with_the_countersignature(site: Site) -> None:
    """E3: older, other, gone and not following are told apart; newer is not yet countersigned."""
    ring, damages = KeyRing([site.coordinator.public()]), list[Damage]()
    made = [key_list.newest([Kept(one, Place("x"))], ring, damages) for one in lists(site)]
    names = [one.name for one in made if one is not None]
    assert key_list.behind(made[1], names[1]) == key_list.behind(made[1], None) == ""
    assert key_list.behind(made[2], names[1]) == key_list.behind(made[2], names[0]) == ""
    assert "list 3 was countersigned already" in key_list.behind(made[1], names[2])
    assert "is not here" in key_list.behind(None, names[0])
    stranger = Named(2, names[0].digest)
    assert "another list of keys 2" in key_list.behind(made[1], stranger)
    assert "does not follow" in key_list.behind(made[2], stranger)


def test_a_list_says_what_was_signed(tmp_path: Path) -> None:
    """Round trip; a key is found by the first characters of its id."""
    key = SigningKey.load_or_create(tmp_path / "c.key")
    keys = {one: Listed(one, "n", 1.0, 2.0, 3.0, "why") for one in (OLD, NEW)}
    content = key_list.sign(keys, number=4, previous="sha256:x", key=key, now=5.0)
    read = key_list.read(content)
    assert read == KeyList(4, "sha256:x", keys, 5.0)
    assert read.found("aaa").key_id == OLD
    with pytest.raises(errors.InputInvalid, match="2 keys begin"):
        KeyList(1, None, {"ab": keys[OLD], "ac": keys[NEW]}).found("a")
    with pytest.raises(errors.EvidenceInvalid):
        key_list.read(dsse.canonical({}))
