"""Small files are there whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from fleet.core import disk


def test_write_new_never_overwrites(tmp_path: Path) -> None:
    """The second writer of a new file loses and leaves the first one's content."""
    path = tmp_path / "a"
    assert disk.write_new(path, b"one", mode=0o600)
    assert not disk.write_new(path, b"two")
    assert path.read_bytes() == b"one"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_replace_leaves_nothing_behind(tmp_path: Path) -> None:
    """A replaced file has the new content and mode; a failed one leaves no temporary file."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    disk.replace(path, b"two", mode=0o640)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"two", 0o640)
    (tmp_path / "d" / "inner").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        disk.replace(tmp_path / "d", b"three")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "d"]


def test_make_directory_sets_the_mode_of_the_last_one(tmp_path: Path) -> None:
    """Only the directory asked for gets the narrow mode; an existing one is left alone."""
    disk.make_directory(tmp_path / "a" / "b", mode=0o700)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    disk.make_directory(tmp_path / "a" / "b", mode=0o777)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    """Promise 8: a FIFO, a device, a link, a directory or an endless file is refused at once."""
    path = tmp_path / "a"
    path.write_bytes(b"content")
    assert disk.read_regular(path, most_bytes=7, offset=3) == b"tent"
    assert disk.read_regular(path, most_bytes=7, offset=3, length=2) == b"te"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert disk.read_regular(tmp_path / "link", most_bytes=7, follow_links=True) == b"content"
    for name in ("fifo", "link", "zero", ".", "gone", "nul\0"):
        with pytest.raises(OSError, match=r".+"):
            disk.read_regular(tmp_path / name, most_bytes=7)
    for name in ("fifo", "zero"):
        with pytest.raises(OSError, match="not a regular file"):
            disk.read_regular(tmp_path / name, most_bytes=7, follow_links=True)
    with pytest.raises(OSError, match="7 bytes, more than 6"):
        disk.read_regular(path, most_bytes=6)


def test_what_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """E3: on a full disk, where writers try again and again, no try leaves a file of its own."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        for write in (disk.write_new, disk.replace):
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                write(tmp_path / "a", b"more than four")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []
