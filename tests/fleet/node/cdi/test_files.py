"""Files complete or not at all, whichever call fails; links and pipes are never followed."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fleet.node.cdi import files
from fleet.node.cdi.parser import SIZE_MAX_BYTES

TEXT = b"x" * 100_000


def failing(number: int) -> Any:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a.json", tmp_path / ".a.json.tmp"


def put(place: tuple[Path, Path], calls: files.Calls, text: bytes = TEXT) -> None:
    files.put(place[0], text, place[1], calls)


def test_a_write_is_synced_before_it_is_visible_and_stays_in_its_directory(
    place: tuple[Path, Path],
) -> None:
    """A1, B56: same directory, unscanned name, mode, all bytes, fsync, rename: in this order."""
    seen: list[str] = []

    def opened(path: Path, flags: int, mode: int) -> int:
        seen.append(f"open {path.name} {path.parent == place[0].parent}")
        assert flags & os.O_EXCL
        assert flags & os.O_NOFOLLOW
        return os.open(path, flags, mode)

    def written(fd: int, text: bytes) -> int:
        seen.append("write")
        return os.write(fd, text[: len(TEXT) // 2])

    def synced(fd: int) -> None:
        seen.append(f"sync {os.fstat(fd).st_size} {stat.S_IMODE(os.fstat(fd).st_mode):o}")
        os.fsync(fd)

    def replaced(source: Path, target: Path) -> None:
        seen.append(f"rename {source.name} {target.name}")
        source.replace(target)

    umask = os.umask(0o077)
    try:
        put(place, files.Calls(opened, written, synced, replaced))
    finally:
        os.umask(umask)
    assert seen == [
        "open .a.json.tmp True", "write", "write", f"sync {len(TEXT)} 644",
        "rename .a.json.tmp a.json",
    ]  # fmt: skip
    assert place[0].read_bytes() == TEXT
    assert files.written(place[0], TEXT)


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_whatever_fails_nothing_is_left_and_the_old_file_stays(
    place: tuple[Path, Path], call: str, number: int
) -> None:
    """B67: an error of any step leaves the old content and no temporary file."""
    put(place, files.Calls(), b"old")
    with pytest.raises(OSError, match=os.strerror(number)):
        put(place, replace(files.Calls(), **{call: failing(number)}))
    assert [path.name for path in place[0].parent.iterdir()] == ["a.json"]
    assert place[0].read_bytes() == b"old"


@pytest.mark.parametrize("which", [0, 1])
def test_a_link_is_replaced_and_its_target_untouched(
    place: tuple[Path, Path], tmp_path: Path, which: int
) -> None:
    """B56: a link at the name, or at the temporary name, leads nobody's file to be written."""
    target = tmp_path / "target"
    target.write_bytes(TEXT)
    place[which].symlink_to(target)
    put(place, files.Calls(), b"new")
    assert target.read_bytes() == TEXT
    assert not place[0].is_symlink()
    assert place[0].read_bytes() == b"new"
    assert not place[1].is_symlink()


def test_only_a_plain_file_of_the_same_content_and_mode_counts_as_written(
    place: tuple[Path, Path], tmp_path: Path
) -> None:
    """A4, B56: a link, a pipe, other bytes or an unreadable mode are renewed, not trusted."""
    path = place[0]
    assert not files.written(path, TEXT)
    put(place, files.Calls())
    assert files.written(path, TEXT)
    assert not files.written(path, TEXT + b"y")
    assert not files.written(path, b"y" * len(TEXT))
    path.chmod(0o600)
    assert not files.written(path, TEXT)
    path.chmod(0o644)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert not files.written(link, TEXT)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    assert not files.written(pipe, b"")
    assert not files.written(tmp_path, b"")


def test_reading_what_a_runtime_reads_never_hangs(tmp_path: Path) -> None:
    """B68: links are followed, pipes and directories are refused, and a large file is cut."""
    plain, link, pipe = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    plain.write_bytes(b"x")
    link.symlink_to(plain)
    os.mkfifo(pipe)
    assert files.content(link) == b"x"
    with pytest.raises(files.NotAFile):
        files.content(pipe)
    with pytest.raises(IsADirectoryError):
        files.content(tmp_path)
    with plain.open("wb") as file:
        file.truncate(SIZE_MAX_BYTES * 2)
    assert len(files.content(plain)) == SIZE_MAX_BYTES + 1


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_directory_is_made_for_runtimes_to_read(tmp_path: Path, umask: int) -> None:
    """A1: 0755 whatever the umask, durable; one that was there keeps its maker's mode."""
    synced: list[str] = []
    calls = replace(
        files.Calls(), fsync=lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
    )
    made = tmp_path / "cdi"
    before = os.umask(umask)
    try:
        files.make(made, calls)
        assert stat.S_IMODE(made.stat().st_mode) == 0o755
        made.chmod(0o750)
        files.make(made, calls)
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.stat().st_mode) == 0o750
    assert synced == [str(tmp_path)]
    files.sync(made, calls)
    assert synced[1:] == [str(made)]
