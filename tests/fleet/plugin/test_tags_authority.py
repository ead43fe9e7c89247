"""The tag authority's directory: made once, rotated, revoked, and never one of evidence."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.evidence import layout
from fleet.node.journal.lock import OwnerLock
from fleet.plugin import tags
from fleet.plugin.configuration import Deallocation
from fleet.plugin.tags import Use
from fleet.plugin.tags_authority import Authority, Right
from tests.fleet.admission.rights import DAY_S, NOW

RIGHT = Right(["b", "a", "a"], ["whole", "1g.10gb"], Deallocation.WIPE, NOW, NOW + DAY_S)
USE = Use("a", NOW, Deallocation.WIPE, "whole")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A new one."""
    found = Authority(tmp_path / "tags")
    found.create(now=NOW)
    return found


def wrongs(authority: Authority, text: str) -> list[str]:
    return [wrong for wrong, _ in tags.judge(tags.read(text), authority.keys(), USE)]


def test_an_authority_issues_tags_that_its_list_makes_good(authority: Authority) -> None:
    """C5: what is issued verifies by the list that was written, sorted and once each."""
    text = authority.issue(RIGHT, tag_id="0" * 32, now=NOW)
    assert tags.read(text).tag.namespaces == ("a", "b")
    assert wrongs(authority, text) == []
    assert authority.keys().number == 1
    assert authority.root != authority.issuer


def test_private_keys_are_private(authority: Authority) -> None:
    """Keys are readable by their owner alone; the list is for everybody."""
    for name in ("root.key", "issuer.key"):
        assert stat.S_IMODE((authority.directory / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(authority.list_path.stat().st_mode) == 0o644


def test_an_authority_is_made_once(authority: Authority) -> None:
    """C5: making it again would void every tag there is."""
    with pytest.raises(errors.InputInvalid, match="holds a tag authority already"):
        authority.create(now=NOW)


def test_keys_of_evidence_and_of_tags_are_kept_apart(tmp_path: Path) -> None:
    """C5, E3: no tag authority in a state directory, where certificates are signed."""
    layout.coordinator_directory(tmp_path).mkdir(parents=True)
    with pytest.raises(errors.InputInvalid, match="is a state directory"):
        Authority(tmp_path).create(now=NOW)


def test_a_rotation_keeps_old_tags_and_destroys_the_old_key(authority: Authority) -> None:
    """C5: tags of the old key stay good; nobody can sign with it any more."""
    old, text = authority.issuer, authority.issue(RIGHT, tag_id="0" * 32, now=NOW)
    kept = (authority.directory / "issuer.key").read_bytes()
    authority.rotate(now=NOW + 1)
    assert authority.issuer != old
    assert wrongs(authority, text) == []
    assert authority.keys().keys[old].until == NOW + 1
    assert all(path.read_bytes() != kept for path in authority.directory.iterdir())
    assert wrongs(authority, authority.issue(RIGHT, tag_id="1" * 32, now=NOW + 1)) == []


def test_revocations_are_in_the_list(authority: Authority) -> None:
    """C5: one tag, or a key with all of its tags."""
    text = authority.issue(RIGHT, tag_id="0" * 32, now=NOW)
    other = authority.issue(RIGHT, tag_id="1" * 32, now=NOW)
    authority.revoke_tag("0" * 32, reason="team left", now=NOW)
    assert (len(wrongs(authority, text)), wrongs(authority, other)) == (1, [])
    authority.revoke_key(authority.issuer[:6], reason="stolen", now=NOW)
    assert "stolen" in wrongs(authority, other)[0]
    with pytest.raises(errors.InputInvalid, match="not good for signing"):
        authority.issue(RIGHT, tag_id="2" * 32, now=NOW)
    authority.rotate(now=NOW + 1)
    assert wrongs(authority, authority.issue(RIGHT, tag_id="2" * 32, now=NOW + 1)) == []


def test_tags_are_issued_without_the_root_key(authority: Authority) -> None:
    """C5: the key that makes keys good can be kept elsewhere; without it nothing is decided, and
    no key is lost by trying."""
    (authority.directory / "root.key").unlink()
    issuer = authority.issuer
    assert wrongs(authority, authority.issue(RIGHT, tag_id="0" * 32, now=NOW)) == []
    with pytest.raises(errors.InputInvalid, match=r"no root\.key"):
        authority.rotate(now=NOW)
    with pytest.raises(errors.InputInvalid, match=r"no root\.key"):
        authority.revoke_tag("0" * 32, reason="x", now=NOW)
    assert authority.issuer == issuer


def test_a_directory_without_an_authority_says_how_to_make_one(tmp_path: Path) -> None:
    """No key is ever made by looking for one."""
    for act in (Authority.keys, lambda one: one.issue(RIGHT, tag_id="0" * 32, now=NOW)):
        with pytest.raises(errors.InputInvalid) as caught:
            act(Authority(tmp_path))
        assert "fleet tag key new" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_do_not_write_over_each_other(authority: Authority) -> None:
    """A decision is refused while another is written, so that no revocation is lost."""
    lock = OwnerLock(authority.directory / "lock")
    lock.acquire(owner="another")
    try:
        with pytest.raises(errors.NotOwner):
            authority.revoke_tag("0" * 32, reason="x", now=NOW)
    finally:
        lock.release()
    assert authority.keys().number == 1
