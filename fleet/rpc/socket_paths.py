"""Where a node's door is. Unix socket paths end at 107 bytes, state directories need not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DOOR = "door.sock"


@contextmanager
def closed_to_others() -> Iterator[None]:
    """What is made inside is its owner's alone, whatever umask we were started under (B47).

    A socket has its mode from the moment it is bound: one that is narrowed afterwards was open for
    that moment. The umask is the process's, so that other threads' files may be closed too.
    """
    before = os.umask(0o077)
    os.umask(before | 0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def short(path: Path) -> Iterator[str]:
    """A name for `path` of any length that fits a socket address, valid inside the block."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connect(path: Path, *, timeout_s: float) -> socket.socket:
    """A connection to the door at `path`. Raises OSError when nobody answers."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.settimeout(timeout_s)
        with short(path) as name:
            made.connect(name)
    except BaseException:
        made.close()
        raise
    return made


def listen(path: Path, *, backlog: int) -> socket.socket:
    """A listening socket at `path`, mode 0600, in place of what was there. Raises OSError.

    Only the owner of the node's journal may call this: whatever is at the path is a dead owner's.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        with short(path) as name, closed_to_others():
            made.bind(name)
        path.chmod(0o600)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made
