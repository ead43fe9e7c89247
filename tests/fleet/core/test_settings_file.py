"""Settings from a file: TOML or JSON, mistakes told with file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.settings_file import load


def written(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("fleet.toml", 'profile = "lab"\n[campaign]\nattempts = 1\n'),
        ("fleet.json", '{"profile": "lab", "campaign": {"attempts": 1}}'),
    ],
)
def test_both_formats_say_the_same(tmp_path: Path, name: str, content: str) -> None:
    """The suffix decides how the file is read."""
    found = load(written(tmp_path, name, content))
    assert (found.profile, found.campaign.attempts) == ("lab", 1)


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.toml", "[wipe]\nattempts = \n", "a.toml:2"),
        ("a.toml", '[wipe]\nattempts = 1\nreset = "on', "a.toml:3"),
        ("a.toml", b"[wipe]\n\xff = 1\n", "a.toml:2"),
        ("a.json", '{\n"wipe": {,}\n}', "a.json:2"),
        ("a.json", "[1]", "a.json:1"),
        ("a.json", '{"wipe": {}, "wipe": {}}', "'wipe' is given twice"),
        ("a.yaml", "wipe: {}", "'.yaml'"),
    ],
)
def test_a_file_that_cannot_be_understood(
    tmp_path: Path, name: str, content: str | bytes, place: str
) -> None:
    """Syntax errors, wrong encodings and repeated keys name the file and, where known, the line."""
    with pytest.raises(errors.SettingsInvalid) as caught:
        load(written(tmp_path, name, content))
    assert place in caught.value.detail
    assert len(caught.value.problems) == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """An unreadable file is an error that names it, not the defaults."""
    with pytest.raises(errors.SettingsInvalid, match=r"none\.toml cannot be read: No such file"):
        load(tmp_path / "none.toml")


def test_wrong_values_name_the_file(tmp_path: Path) -> None:
    """The problems of the content are all there, and the file is named once."""
    path = written(tmp_path, "a.toml", "[campaign]\nattempts = 7\nx = 1\n")
    with pytest.raises(errors.SettingsInvalid, match=r"a\.toml: 2 wrong") as caught:
        load(path)
    assert [problem.path for problem in caught.value.problems] == [
        "campaign.x",
        "campaign.attempts",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.toml", "x = " + "[" * 3000, "nests too deep"),
        ("a.toml", "x = " + "9" * 5000, "cannot be read"),
        ("a.json", '{"a":' * 3000, "nests too deep"),
        ("a.json", '{"x": ' + "9" * 5000 + "}", "cannot be read"),
        ("a.toml", "[wipe]\nx = 0x" + "f" * 5000, "wipe.x: there is no such setting"),
        ("a.toml", "[wipe]\nchunk_largest_bytes = 0x" + "f" * 5000, "is too large"),
        ("a.toml", "[store]\ntimeout_s = 1e300", "longer than anything is waited for"),
        ("a.toml", '"" = 1', "'': there is no such setting"),
        ("a.json", '{"\\ud800": 1}', "ud800"),
        ("a.json", '{"evidence": {"key_file": "\\ud800"}}', "evidence.key_file"),
        ("a.json", '{"evidence": {"key_file": "\\u0000"}}', "evidence.key_file"),
    ],
    ids=lambda value: value[:20],
)
def test_b20_what_readers_stumble_over_is_told(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    """B20: depth, numbers and keys beyond what is read, printed or waited for name the file."""
    with pytest.raises(errors.SettingsInvalid) as caught:
        load(written(tmp_path, name, content))
    assert name in caught.value.detail
    assert said in caught.value.detail
    assert len(str(caught.value).encode()) < 2000


def test_b20_a_pipe_in_place_of_the_file_is_refused_at_once(tmp_path: Path) -> None:
    """B20: nobody waits for what nobody writes, nor reads what never ends."""
    os.mkfifo(tmp_path / "a.toml")
    (tmp_path / "b.toml").symlink_to("/dev/zero")
    for name in ("a.toml", "b.toml"):
        with pytest.raises(errors.SettingsInvalid, match="is not a regular file"):
            load(tmp_path / name)
