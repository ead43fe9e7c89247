"""The door's socket: at any depth, for its owner's eyes only, in place of a dead one's."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from fleet.rpc import socket_paths

ADDRESS_MAX = 107


def deep(root: Path) -> Path:
    """A door in a directory whose path is longer than a socket address may be."""
    found = root / ("d" * 100) / ("e" * 100)
    found.mkdir(parents=True)
    return found / socket_paths.DOOR


def talk(path: Path) -> bytes:
    """What a listener at the path is told by a caller."""
    listening = socket_paths.listen(path, backlog=1)
    with listening, socket_paths.connect(path, timeout_s=5.0) as caller:
        caller.sendall(b"hello")
        taken, _ = listening.accept()
        with taken:
            return taken.recv(16)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_state_directory_may_be_deeper_than_a_socket_address(tmp_path: Path) -> None:
    """Unix socket paths end at 107 bytes; state directories of kubelet's kind do not."""
    path = deep(tmp_path)
    assert len(str(path)) > ADDRESS_MAX
    before = descriptors()
    assert talk(path) == b"hello"
    assert descriptors() <= before
    assert stat.S_ISSOCK(path.stat().st_mode)


def test_only_its_owner_may_come_in(tmp_path: Path) -> None:
    """Mode 0600 whatever the umask: whoever can connect can tear claims down."""
    path = tmp_path / socket_paths.DOOR
    before = os.umask(0)
    try:
        with socket_paths.listen(path, backlog=1):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_dead_owners_socket_is_replaced(tmp_path: Path) -> None:
    """After kill -9 the file is still there; the next owner answers at the same place."""
    path = tmp_path / socket_paths.DOOR
    socket_paths.listen(path, backlog=1).close()
    with pytest.raises(ConnectionRefusedError):
        socket_paths.connect(path, timeout_s=1.0)
    assert talk(path) == b"hello"


def test_nobody_there_is_an_error_and_leaks_nothing(tmp_path: Path) -> None:
    """A plugin asks for weeks while the node is down."""
    before = descriptors()
    for _ in range(20):
        with pytest.raises(FileNotFoundError):
            socket_paths.connect(tmp_path / socket_paths.DOOR, timeout_s=1.0)
        with pytest.raises(FileNotFoundError):
            socket_paths.connect(tmp_path / "absent" / socket_paths.DOOR, timeout_s=1.0)
        with pytest.raises(OSError, match="directory"):
            socket_paths.listen(tmp_path / "absent" / socket_paths.DOOR, backlog=1)
    assert descriptors() <= before


def test_no_child_inherits_the_door(tmp_path: Path) -> None:
    """A worker that outlives its owner must not keep callers waiting at a dead owner's door."""
    path = tmp_path / socket_paths.DOOR
    with (
        socket_paths.listen(path, backlog=1) as listening,
        socket_paths.connect(path, timeout_s=1.0) as caller,
    ):
        made: tuple[socket.socket, ...] = (listening, caller)
        assert not any(os.get_inheritable(one.fileno()) for one in made)
