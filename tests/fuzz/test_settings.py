"""Settings files and lists of tag keys: understood whole, or refused with the place named."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.settings import Settings
from fleet.core.settings_file import load
from fleet.evidence.keys import SigningKey
from fleet.plugin import tags_list
from fleet.plugin.tags import TagKeys, TagKeysUnreadable
from fleet.plugin.tags_file import TagKeyFile
from tests.fuzz.mutations import DEPTH, HOSTILE, damaged, documents, texts
from tests.fuzz.running import bounded, fuzzed, told

VALID: dict[str, Any] = json.loads(Settings().model_dump_json())
VALID["evidence"]["archive"] = "s3://bucket/prefix"
VALID["admission"] |= {"tag_keys": "/etc/fleet/keys.json", "tag_roots": ["ab" * 32]}
TOML_ODD = (
    b"9" * 5000,
    b"0x" + b"f" * 5000,
    b"-1e999",
    b"nan",
    b"[" * DEPTH,
    b"{a=" * DEPTH,
    b"2026-13-45",
    b"1979-05-27T07:32:00Z",
    b"'''",
    b'"\\ud800"',
    b'"\\U0010FFFF\\u0000"',
    b"{a = {b = {c = [1, {d = 2}]}}}",
    b"0b" + b"1" * 20000,
)


def toml(document: dict[str, Any]) -> bytes:
    """The document as TOML, as far as TOML can say it."""
    lines, tables = [], []
    for name, value in document.items():
        if isinstance(value, dict):
            rows = [f"{json.dumps(key)} = {json.dumps(one)}" for key, one in value.items()]
            tables.append("\n".join([f"[{json.dumps(name)}]", *rows]))
        else:
            lines.append(f"{json.dumps(name)} = {json.dumps(value)}")
    return "\n".join([*lines, *tables, ""]).encode()


@st.composite
def toml_files(draw: st.DrawFn) -> bytes:
    """TOML that was valid: changed by structure, by an odd value at one place, or as bytes."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        found = draw(documents(VALID))
        return toml(found) if isinstance(found, dict) else b"x"
    if kind == 1:
        lines = toml(VALID).splitlines(keepends=True)
        at = draw(st.integers(0, len(lines) - 1))
        key = lines[at].partition(b"=")[0]
        lines[at] = key + b"= " + draw(st.sampled_from(TOML_ODD)) + b"\n"
        return b"".join(lines)
    if kind == 2:
        return draw(st.sampled_from(HOSTILE)) + toml(VALID)
    return draw(damaged(toml(VALID)))


def _complete(error: errors.FleetError) -> None:
    """Every problem says where, what and what to write, in text that can be printed."""
    str(error).encode()
    assert error.problems
    assert all(part.strip() for one in error.problems for part in one)


def judged(path: Path, content: bytes) -> None:
    """The file is settings, which say the same when they are written and read again, or refused."""
    path.write_bytes(content)
    try:
        with bounded():
            found = load(path)
    except errors.SettingsInvalid as error:
        _complete(told(error, str(path)))
    else:
        again = path.with_name("again.json")
        again.write_text(found.model_dump_json(exclude_unset=True))
        assert load(again) == found
    assert path.read_bytes() == content


@fuzzed(60)
@given(content=texts(VALID))
def test_json_settings_are_understood_or_refused(place: Path, content: bytes) -> None:
    """B20: whatever is in a settings file, it is settings, or an error with each place named."""
    judged(place / "fleet.json", content)


@fuzzed(60)
@given(content=toml_files())
def test_toml_settings_are_understood_or_refused(place: Path, content: bytes) -> None:
    """B20: the same for TOML: numbers of any length, depth, dates and broken bytes."""
    judged(place / "fleet.toml", content)


def test_a_place_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """B20: a pipe nobody writes to, a directory, a loop: an error, and never a wait."""
    pipe, loop = tmp_path / "pipe.toml", tmp_path / "loop.toml"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    (tmp_path / "folder.toml").mkdir()
    for path in (pipe, loop, tmp_path / "folder.toml", Path("/dev/zero"), tmp_path / "none.toml"):
        try:
            load(path)
        except errors.SettingsInvalid as error:
            told(error, str(path))
        else:
            raise AssertionError(path)


class _Listed:
    """A signed list of tag keys, made once."""

    def __init__(self, directory: Path) -> None:
        self.root = SigningKey.load_or_create(directory / "root.key")
        keys = TagKeys()
        for number in range(3):
            key = SigningKey.load_or_create(directory / f"{number}.key")
            keys = tags_list.with_key(keys, key.public(), now=1_800_000_000 + number)
        first = next(iter(keys.keys))
        keys = tags_list.without_key(keys, first, reason="lost", now=1_800_000_100)
        keys = tags_list.without_tag(keys, "a" * 32, reason="left", now=1_800_000_200)
        self.content = tags_list.sign(keys, self.root, self.root.public())
        self.keys = tags_list.read(self.content, [self.root.key_id])


@fuzzed(80)
@given(change=st.data())
def test_a_changed_list_of_tag_keys_is_refused(place: Path, change: st.DataObject) -> None:
    """C5: a list is what its root signed, to the byte, or no tag can be judged by it."""
    listed = _listed(place)
    document = json.loads(listed.content)
    content = change.draw(st.one_of(texts(document), damaged(listed.content)))
    path = place / "tag-keys.json"
    path.write_bytes(content)
    reader = TagKeyFile(path, [listed.root.key_id])
    try:
        with bounded():
            found = reader.keys()
    except TagKeysUnreadable as error:
        told(error)
    else:
        assert content.strip() == listed.content
        assert found == listed.keys


@cache
def _listed(place: Path) -> _Listed:
    return _Listed(place)
