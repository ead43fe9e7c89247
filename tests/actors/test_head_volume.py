"""What is asked of the volume of Ray's head before Ray starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from actors import head_volume
from fleet.core import errors
from fleet.evidence import layout
from fleet.evidence.keys import SigningKey

NOBODY = 65532
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
input()
"""
AS_NOBODY = """
import os, sys
from actors import head_volume
os.setgroups([])
os.setgid(65532)
os.setuid(65532)
sys.exit(head_volume.main(sys.argv[1:]))
"""
"""Loaded first: an environment below root's home is not for others."""


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The check as the head's pod runs it: as an ordinary user."""
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def volume(directory: Path, *, owner: int, mode: int = 0o700) -> Path:
    """A directory as a volume's driver gives it."""
    directory.mkdir()
    os.chown(directory, owner, owner)
    directory.chmod(mode)
    return directory


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """Where everybody may go; pytest's own directories are their user's alone."""
    if os.geteuid() != 0:
        pytest.skip("only root gives directories to other users")
    for place in (tmp_path, *tmp_path.parents):
        if place.owner() == "root" and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o011)
    return tmp_path


def test_f74_a_volume_without_our_group_is_named(ground: Path) -> None:
    """F74: a volume that ignores fsGroup is refused before Ray starts, with owner, mode and what
    to do about it; once it is ours, Ray may start."""
    state = volume(ground / "state", owner=0, mode=0o755)
    ended = asked(str(state))
    assert ended.returncode == 2
    said, remedy = ended.stderr.splitlines()
    assert f"{state} cannot be written: Permission denied; it belongs to user 0, group 0" in said
    assert "mode 0755; we are user 65532:65532" in said
    assert "honours fsGroup" in remedy
    assert "chown -R 65532:65532" in remedy
    os.chown(state, NOBODY, NOBODY)
    assert asked(str(state)).returncode == 0
    store = volume(state / "gcs", owner=0, mode=0o750)
    ended = asked(str(state), str(store))
    assert f"{store} cannot be" in ended.stderr


def test_f74_a_group_of_ours_is_enough(ground: Path) -> None:
    """F74: what fsGroup makes of a volume, root's with our group and its set-group-id, is good."""
    state = ground / "state"
    state.mkdir()
    os.chown(state, 0, NOBODY)
    state.chmod(0o2770)
    assert asked(str(state)).returncode == 0


def test_f74_a_key_of_somebody_else_is_named(ground: Path) -> None:
    """F74: the coordinator's key, unreadable or open to others and not ours, is named at once."""
    state = volume(ground / "state", owner=NOBODY)
    key = layout.coordinator_key(state)
    SigningKey.load_or_create(key)
    for place in (key.parent, key.parent.parent):
        os.chown(place, NOBODY, NOBODY)
    ended = asked(str(state))
    assert f"{key} cannot be read: it belongs to user 0" in ended.stderr
    key.chmod(0o644)
    assert f"{key} can be read by others" in asked(str(state)).stderr
    os.chown(key, NOBODY, NOBODY)  # ours: the coordinator closes it by itself
    assert asked(str(state)).returncode == 0


def test_f77_a_head_that_still_ends_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F77: a deleted head's successor waits until RocksDB's lock is free, says so once, and gives
    up after its time with what to look at."""
    lock = tmp_path / "tables" / "LOCK"
    lock.parent.mkdir()
    lock.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(errors.NotOwner, match="another head still has Ray's state"):
            head_volume.await_free(tmp_path, wait_s=0.0)
        threading.Timer(1.0, holder.kill).start()
        head_volume.await_free(tmp_path, wait_s=30.0)
    finally:
        holder.kill()
        holder.communicate()
    said = [one for one in caplog.messages if "waiting up to 30 s" in one]
    assert len(said) == 1


def test_a_store_that_is_new_is_free(tmp_path: Path) -> None:
    """F77: at the first start there is nothing to wait for."""
    head_volume.check(tmp_path, tmp_path)
    head_volume.await_free(tmp_path, wait_s=0.0)
    assert list(tmp_path.iterdir()) == []
