"""Writing small files so that they survive a power cut; reading them whatever lies there."""

from __future__ import annotations

import errno
import os
import secrets
import stat
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


def own_directory(directory: Path, *, allowed: int = 0o700) -> None:
    """Make `directory` and missing parents for their owner alone, whatever the umask (B47).

    One that exists loses the rights beyond `allowed`. Raises PermissionError where it is another
    user's: who may write to it could put anything in the place of what we keep there. OSError.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not mode & ~allowed & 0o777:
        return
    try:
        directory.chmod(mode & ~0o777 | mode & allowed)
    except PermissionError as error:
        raise PermissionError(
            errno.EPERM,
            f"has mode {mode:04o} and belongs to user {found.st_uid}: others can replace what is"
            f" kept there (chmod {allowed:04o})",
            str(directory),
        ) from error


def read_regular(
    path: Path,
    *,
    most_bytes: int,
    offset: int = 0,
    length: int | None = None,
    follow_links: bool = False,
) -> bytes:
    """Content of `path` from `offset` on. Raises OSError, also unless it is a file of that size.

    Whoever can put a FIFO, a device or an endless file in a place we read must not make us wait or
    run out of memory.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), repr(path)) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if found.st_size > most_bytes:
            text = f"has {found.st_size} bytes, more than {most_bytes}"
            raise OSError(errno.EFBIG, text, str(path))
        return _read_all(descriptor, offset, most_bytes if length is None else length)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, offset: int, room: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    parts = []
    while room > 0 and (part := os.read(descriptor, min(room, 1 << 20))):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)


def shown(path: Path) -> str:
    """`path` as text that can be printed whatever bytes its name is made of."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether both are of one inode: a file moved or removed and made anew is another one."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


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
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk every retry would leave one
        raise
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
