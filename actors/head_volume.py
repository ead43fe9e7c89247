"""Whether Ray's head can work with its volume: asked before Ray starts, which would only crash.

    python -m actors.head_volume STATE [STORE [SECONDS]]

STATE is the coordinator's state directory, STORE that of Ray's own state where it is kept on the
volume, SECONDS how long another head may have it still. A storage class that leaves fsGroup out (a
directory of the host, NFS) gives directories of root; a file system without modes or owners cannot
keep a private key. A head that was deleted may still hold the store while its successor starts on
the same node: it is waited for.

Exit code 0: it can; 2: it cannot, with what to do on standard error.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fleet.core import errors, logs
from fleet.evidence import layout

WAIT_S = 120.0
"""Time, s, an earlier head has to let Ray's state go: its grace period and more."""
LOOK_S = 0.5
LOCK = "LOCK"
"""What RocksDB locks in each of its directories, as long as it has them open."""
PRIVATE = 0o600
LOG = logging.getLogger("actors.head_volume")


def check(state: Path, store: Path | None = None) -> None:
    """Raises `InputInvalid` where the directories, or the key there, are of no use to us."""
    for directory in [state, *([store] if store else []), *_kept(state)]:
        _check_directory(directory)
    key = layout.coordinator_key(state)
    if not key.exists():
        return
    found = key.stat()
    if not os.access(key, os.R_OK):
        raise _refused(key, f"cannot be read: it {_owned(found)}")
    if found.st_mode & 0o077 and found.st_uid != os.geteuid():
        raise _refused(key, f"can be read by others, and it {_owned(found)}")


def await_free(store: Path, *, wait_s: float = WAIT_S) -> None:
    """Return once no other head has Ray's state open. Raises `NotOwner` after `wait_s` seconds."""
    until, said = time.monotonic() + wait_s, False
    while held := next(_held(store), None):
        if time.monotonic() >= until:
            raise errors.NotOwner(
                f"another head still has Ray's state ({held} is locked) after {wait_s:g} s",
                remedy="see with `kubectl get pods` whether an earlier head is still ending; where"
                " its node is lost, delete that pod with --force",
            )
        if not said:
            LOG.warning("another head still has %s: waiting up to %g s for it", held, wait_s)
            said = True
        time.sleep(LOOK_S)


def _kept(state: Path) -> Iterator[Path]:
    """The directories of an earlier coordinator."""
    places = (
        layout.coordinator_directory(state),
        layout.coordinator_keys_directory(state),
        layout.heads_directory(state),
    )
    return (place for place in places if place.exists())


def _check_directory(directory: Path) -> None:
    try:
        found = directory.stat()
        descriptor, name = tempfile.mkstemp(prefix=".written-", dir=directory)
    except OSError as error:
        if not directory.exists():
            raise _refused(directory, f"cannot be used: {error.strerror}") from error
        raise _refused(
            directory, f"cannot be written: {error.strerror}; it {_owned(found)}"
        ) from error
    try:
        made = os.fstat(descriptor)
    finally:
        os.close(descriptor)
        Path(name).unlink()
    if made.st_uid != os.geteuid():
        raise _refused(directory, f"gives what we make there to user {made.st_uid}")
    if stat.S_IMODE(made.st_mode) != PRIVATE:
        mode = stat.S_IMODE(made.st_mode)
        raise _refused(directory, f"keeps no modes: a private file became {mode:04o}")


def _held(store: Path) -> Iterator[Path]:
    """Locks of RocksDB that another process has."""
    for path in sorted(store.glob(f"*/{LOCK}")):
        with path.open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                yield path


def _owned(found: os.stat_result) -> str:
    mode = stat.S_IMODE(found.st_mode)
    return f"belongs to user {found.st_uid}, group {found.st_gid}, mode {mode:04o}"


def _refused(path: Path, why: str) -> errors.InputInvalid:
    us = f"{os.geteuid()}:{os.getegid()}"
    return errors.InputInvalid(
        f"the volume of Ray's head is of no use: {path} {why}; we are user {us}",
        remedy="choose a StorageClass whose driver honours fsGroup and keeps owners and modes"
        " (controller.persistence.storageClassName), or, where it keeps them, once on the volume"
        f" itself: chown -R {us} and chmod -R u=rwX,go=",
    )


def _asked(arguments: Sequence[str]) -> tuple[Path, Path | None, float]:
    state, *rest = arguments
    store = Path(rest[0]) if rest else None
    return Path(state), store, float(rest[1]) if rest[1:] else WAIT_S


def main(arguments: Sequence[str]) -> int:
    """Check and wait; the exit code."""
    logs.begin("head-volume")
    state, store, wait_s = _asked(arguments)
    try:
        check(state, store)
        if store is not None:
            await_free(store, wait_s=wait_s)
    except errors.FleetError as error:
        sys.stderr.write(f"error: {error.detail}\ndo: {error.remedy}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
