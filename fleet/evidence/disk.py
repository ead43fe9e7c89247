"""Writing small files so that they survive a power cut, or are not there at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path, *, mode: int = 0o755) -> None:
    """Create `directory` and its parents durably; an existing one is left as it is."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=mode if path == directory else 0o755, exist_ok=True)
        sync_directory(path.parent)


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte; a short write goes on where it stopped."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _write_temporary(path: Path, content: bytes, mode: int) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.fchmod(descriptor, mode)
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return temporary


def write_new(path: Path, content: bytes, *, mode: int = 0o644) -> bool:
    """Create `path` complete and durable. False: it exists already and was left alone.

    A hard link is what makes this safe between processes: exactly one of them creates the name, and
    whoever sees the name sees the whole file.
    """
    temporary = _write_temporary(path, content, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_directory(path.parent)
    return True


def replace(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put `content` at `path`; readers see the old file or the new one, nothing between."""
    temporary = _write_temporary(path, content, mode)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
