"""Where a node's door is. Unix socket paths end at 107 bytes, state directories need not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DOOR = "door.sock"


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
        with short(path) as name:
            made.bind(name)
        path.chmod(0o600)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made
