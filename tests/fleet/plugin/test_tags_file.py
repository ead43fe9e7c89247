"""The list of keys on disk: read again when it changed, never an older one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.plugin import tags_list
from fleet.plugin.tags import TagKeysUnreadable
from fleet.plugin.tags_file import TagKeyFile
from tests.fleet.admission.rights import ISSUER, KEYS, LIST, NOW, ROOT, STRANGER


def test_a_new_list_counts_at_once(tmp_path: Path) -> None:
    """C5: a revocation holds as soon as the file says so, without a restart."""
    path = tmp_path / "list"
    path.write_bytes(LIST)
    file = TagKeyFile(path, [ROOT.key_id])
    first = file.keys()
    assert file.keys() is first
    newer = tags_list.without_key(KEYS, ISSUER.key_id, reason="stolen", now=NOW)
    path.write_bytes(tags_list.sign(newer, ROOT, ROOT.public()))
    assert file.keys().keys[ISSUER.key_id].revoked_at == NOW


def test_an_older_list_is_refused(tmp_path: Path) -> None:
    """C5: a list from before may lack a revocation; the newest seen is not forgotten for it."""
    path = tmp_path / "list"
    newer = tags_list.with_key(KEYS, STRANGER.public(), now=NOW)
    path.write_bytes(tags_list.sign(newer, ROOT, ROOT.public()))
    file = TagKeyFile(path, [ROOT.key_id])
    assert file.keys().number == 2
    path.write_bytes(LIST)
    for _ in range(2):
        with pytest.raises(TagKeysUnreadable, match="number 2 was seen before"):
            file.keys()
    path.write_bytes(tags_list.sign(newer, ROOT, ROOT.public()))
    assert file.keys().number == 2


def test_a_list_that_is_away_or_foreign_judges_nothing(tmp_path: Path) -> None:
    """C5: without a list no tag is good: fail closed, retryable, with the place named."""
    path = tmp_path / "list"
    file = TagKeyFile(path, [ROOT.key_id])
    with pytest.raises(TagKeysUnreadable, match="list, cannot be read"):
        file.keys()
    path.mkdir()
    with pytest.raises(TagKeysUnreadable, match="cannot be read"):
        file.keys()
    path.rmdir()
    path.write_bytes(tags_list.sign(KEYS, STRANGER, STRANGER.public()))
    with pytest.raises(TagKeysUnreadable, match="no root"):
        file.keys()


def test_a_mounted_map_of_configuration_is_followed(tmp_path: Path) -> None:
    """A ConfigMap's files are links, swapped as one."""
    (tmp_path / "one").write_bytes(LIST)
    path = tmp_path / "list"
    path.symlink_to("one")
    assert TagKeyFile(path, [ROOT.key_id]).keys().number == 1


def test_c5_an_empty_list_is_unreadable_from_the_start(tmp_path: Path) -> None:
    """C5: an empty file is no list without keys: tags cannot be judged, and that is said."""
    path = tmp_path / "empty.json"
    path.write_bytes(b"")
    with pytest.raises(TagKeysUnreadable):
        TagKeyFile(path, ["0" * 64]).keys()
