"""Unix sockets that several instances of one driver may meet on: named, published, taken back.

gRPC replaces whatever socket is at the path it binds, and unlinks that path when it stops, whoever
owns it by then (case B46). So a server never binds the path kubelet knows. It binds a private,
hidden name in the same directory (kubelet's watcher skips names with a leading dot), and only when
it serves is the socket linked to its public name: it appears whole, with its mode set, and never in
the place of another. What gRPC unlinks at its end is the private name, which is gone by then.

A public name is freed for a newcomer only when nobody listens behind it, judged under a lock file,
so that two newcomers cannot both find it dead. At exit a name is removed only while it still is the
socket that was published there.

The lock guards names, not claims. A lock across instances around each claim call, as kubelet's own
Go library has it (``serialize.lock``), is not needed here: the instances forward to the one owner
of the node's journal, which serialises for each claim and keeps all state on disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.disk import own_directory

PATH_BYTES_MAX = 107
"""Longest path of a unix socket on Linux (108 bytes with the closing zero)."""
DIRECTORY_MODE = 0o700
"""Kubelet is root, and nobody else has a call to make."""
SOCKET_MODE = 0o600
LOCK_NAME = "sockets.lock"
LOCK_WAIT_S = 10.0
"""Time, s, to wait for another instance that is publishing or removing; it takes milliseconds."""
LOCK_PAUSE_S = 0.02
CONNECT_WAIT_S = 1.0
"""Time, s, a listener has to let us connect; one whose queue is full is alive too."""

ABANDONED_AFTER_S = 60.0
"""Age, s, from which a private name is a leftover: a live instance publishes within seconds, and
between its binding and its listening it looks as dead as one that crashed."""

_INSTANCE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_UID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""How instances are named by whoever runs several: another driver's name does not end like it."""
_PRIVATE_PREFIX = ".fs"
_PRIVATE = re.compile(r"\.fs[0-9a-f]{5}")
"""Eight characters, as many as the shortest public name: the limit on paths holds for both."""


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """Where one instance serves. Absolute, and the same on the host as in the container."""

    registration: Path
    """Found and dialled by kubelet's plugin watcher."""
    dra: Path
    """Told to kubelet as the endpoint."""

    @property
    def lock(self) -> Path:
        """Lock file of all instances of the driver."""
        return self.dra.parent / LOCK_NAME


@dataclass(frozen=True, slots=True)
class Published:
    """A socket under its public name, recognised again by its inode."""

    path: Path
    device: int
    inode: int


def socket_paths(*, kubelet_root: Path, driver: str, instance: str = "") -> SocketPaths:
    """Paths of an instance; `instance` (a pod UID) lets several run at once during an update.

    Raises `SettingsInvalid` for a relative root, an instance that is no plain name, or a path
    longer than the kernel allows.
    """
    if not kubelet_root.is_absolute():
        raise errors.SettingsInvalid(
            f"kubelet's root {str(kubelet_root)!r} is not an absolute path",
            remedy="set kubernetes.kubelet_root to the --root-dir of kubelet",
        )
    if instance and not _INSTANCE.fullmatch(instance):
        raise errors.SettingsInvalid(
            f"the instance name {instance!r} is not made of letters, digits, dots and dashes",
            remedy="use the UID of the plugin's pod, or nothing",
        )
    part = f"-{instance}" if instance else ""
    found = SocketPaths(
        registration=kubelet_root / "plugins_registry" / f"{driver}{part}-reg.sock",
        dra=kubelet_root / "plugins" / driver / f"dra{part}.sock",
    )
    for path in (found.registration, found.dra):
        length = len(os.fsencode(path))
        if length > PATH_BYTES_MAX:
            raise errors.SettingsInvalid(
                f"the socket path {path} has {length} bytes, {PATH_BYTES_MAX} are possible",
                remedy="shorten the driver's name or the instance's, or kubelet's root directory",
            )
    return found


def make_directory(path: Path) -> None:
    """Make a directory for sockets, closed to others. One that exists is left as it is: kubelet's
    registry is every driver's."""
    if path.exists() and not path.is_dir():
        raise errors.SocketTaken(
            f"{path} is {_described(path.lstat().st_mode)} where a directory of sockets is due",
            remedy="move it away, or set another kubernetes.kubelet_root",
        )
    if not path.exists():
        own_directory(path, allowed=DIRECTORY_MODE)


def close_directory(path: Path) -> None:
    """Make the driver's own directory, or close one that is there to others (B47).

    Raises `SocketTaken` also where another user keeps it open: who may write there could serve in
    our place.
    """
    make_directory(path)
    try:
        own_directory(path, allowed=DIRECTORY_MODE)
    except PermissionError as error:
        raise errors.SocketTaken(
            f"the directory of sockets {path} cannot be closed to others: {error}",
            remedy="give it to the user of the plugin, with mode 0700",
        ) from error


def private_path(directory: Path) -> Path:
    """A new hidden name in `directory` for a server to bind."""
    return directory / f"{_PRIVATE_PREFIX}{secrets.token_hex(3)[:5]}"


@contextmanager
def locked(path: Path, *, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock of all instances. Blocks up to `wait_s`, then raises `SocketTaken`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise errors.SocketTaken(
                        f"another instance kept {path} locked for {wait_s:g} s",
                        remedy="look for a stopped process that has the file open",
                    ) from None
                time.sleep(LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def remove_dead(kubelet_root: Path, driver: str, *, lock: Path) -> tuple[Path, ...]:
    """Remove sockets of instances of the driver on which nobody listens any more (F75).

    A plugin that was killed leaves both; kubelet goes on dialling the one in its registry. Those of
    other drivers are not touched, nor what is no socket. What was removed; raises OSError.
    """
    plain = re.escape(driver)
    registration = re.compile(rf"{plain}(-{_UID})?-reg\.sock")
    dra = re.compile(rf"dra(-{_UID})?\.sock")
    removed = []
    with locked(lock):
        for directory, ours in (
            (kubelet_root / "plugins_registry", registration),
            (kubelet_root / "plugins" / driver, dra),
        ):
            found = list(directory.iterdir()) if directory.is_dir() else []
            for path in found:
                with suppress(FileNotFoundError):
                    if (
                        ours.fullmatch(path.name)
                        and stat.S_ISSOCK(path.lstat().st_mode)
                        and not _is_listening(path)
                    ):
                        path.unlink()
                        removed.append(path)
    return tuple(removed)


def publish(private: Path, public: Path, *, lock: Path) -> Published:
    """Give the socket bound at `private` its public name; blocking, in milliseconds.

    Raises `SocketTaken` when somebody serves at `public`, or something else than a socket is there;
    then nothing was changed.
    """
    private.chmod(SOCKET_MODE)
    with locked(lock):
        _sweep(public.parent, keep=private)
        _free(public)
        found = private.lstat()
        try:
            # A link refuses an existing target, a rename would replace it.
            os.link(private, public, follow_symlinks=False)
        except FileExistsError:
            raise errors.SocketTaken(f"{public} was made by another program just now") from None
        private.unlink()
    return Published(public, found.st_dev, found.st_ino)


def withdraw(published: Published, *, lock: Path) -> bool:
    """Remove a published name if it still is ours; whether it was. Call it while the server still
    listens: a closed socket's inode number may belong to a newcomer's."""
    with locked(lock):
        try:
            found = published.path.lstat()
        except FileNotFoundError:
            return False
        if (found.st_dev, found.st_ino) != (published.device, published.inode):
            return False
        published.path.unlink()
        return True


def is_ours(published: Published) -> bool:
    """Whether the public name still is the socket that was published."""
    try:
        found = published.path.lstat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (published.device, published.inode)


def _free(public: Path) -> None:
    """Remove a dead socket at `public`. Raises `SocketTaken` for anything else that is there."""
    try:
        mode = public.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise errors.SocketTaken(
            f"{public} is {_described(mode)}, not a socket; it was left as it is",
            remedy="move it away and start again",
        )
    if _is_listening(public):
        raise errors.SocketTaken(f"another instance serves at {public}; it was left as it is")
    with suppress(FileNotFoundError):
        public.unlink()


def _sweep(directory: Path, *, keep: Path) -> None:
    """Remove private sockets of instances that died before they published."""
    for path in directory.iterdir():
        if path == keep or not _PRIVATE.fullmatch(path.name):
            continue
        with suppress(FileNotFoundError):
            found = path.lstat()
            if (
                stat.S_ISSOCK(found.st_mode)
                and time.time() - found.st_mtime > ABANDONED_AFTER_S
                and not _is_listening(path)
            ):
                path.unlink()


def _is_listening(path: Path) -> bool:
    """Whether a process listens at `path`. Only a refused connection proves that none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(CONNECT_WAIT_S)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def _described(mode: int) -> str:
    kinds = (
        (stat.S_ISREG, "a plain file"),
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for check, name in kinds if check(mode)), "a special file")
