"""The host's cgroups: which of them are a pod's, and whether any process is left in them.

Works on every layout there is (v1 with one mount per controller, v2, both at once; names as the
cgroupfs or the systemd driver makes them) by looking for the pod's UID in directory names. Nothing
is kept between calls: the answer is about now.

Absence proves something only where the pods' cgroups can be seen at all. A tree without any
``kubepods`` directory (a container's own cgroup namespace, a wrong mount) is unknown, not empty.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from fleet.errors import CgroupsUnreadable, InputInvalid

KUBEPODS = "kubepods"
"""Part of the name of the directory below which kubelet puts all pods, with either driver."""
_POD = re.compile(r"(?<![0-9a-z])pod([0-9a-z][0-9a-z_-]*)")
_UID = re.compile(r"[0-9a-z][0-9a-z_-]*")
_USUAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""UIDs as the API server and (for static pods) kubelet make them."""
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


class CgroupTree:
    """All cgroup hierarchies below one directory, as mounted at ``/sys/fs/cgroup``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pods(self, uid: str) -> list[Path]:
        """Every cgroup whose name contains the pod UID as a whole, in all hierarchies.

        Raises `CgroupsUnreadable` when that cannot be told, `InputInvalid` for what is no UID.
        """
        return self.find([uid])[uid]

    def find(self, uids: Collection[str]) -> dict[str, list[Path]]:
        """`pods` for several UIDs in one walk; every UID asked for is in the answer."""
        wanted = {_normal(uid): uid for uid in uids}
        found: dict[str, list[Path]] = {uid: [] for uid in wanted.values()}
        seen = False
        for path, name, pod in _walk(self.root):
            seen = seen or KUBEPODS in name
            if pod in wanted:
                found[wanted[pod]].append(Path(path))
        if not seen:
            raise CgroupsUnreadable(f"no {KUBEPODS} cgroup is visible below {self.root}")
        return {uid: sorted(found[wanted[_normal(uid)]]) for uid in uids}

    def occupied(self, path: Path) -> bool:
        """Whether a process is in this cgroup or one below it; one that has vanished is empty.

        Raises `CgroupsUnreadable` when that cannot be told.
        """
        try:
            return _populated(str(path)) or any(_has_processes(one) for one in _below(str(path)))
        except OSError as error:
            if _vanished(error, str(path)):
                return False
            raise CgroupsUnreadable(f"the cgroup {path} cannot be read: {error}") from error

    @staticmethod
    def containers(hierarchy: Path) -> Iterator[Path]:
        """The cgroups of all containers of all pods in one hierarchy.

        Raises `CgroupsUnreadable` when that cannot be told.
        """
        for path, name, pod in _walk(hierarchy):
            if not pod:
                continue
            if ":" in name:  # a runtime and a kubelet with different drivers name it so
                yield Path(path)
                continue
            try:
                children = _directories(path)
            except OSError as error:
                raise CgroupsUnreadable(f"the cgroup {path} cannot be read: {error}") from error
            yield from (Path(child) for child, _ in children)


def _walk(root: Path) -> Iterator[tuple[str, str, str]]:
    """(path, lower-case name, pod UID or "") of all directories, none from inside a pod."""
    if not root.is_dir():
        raise CgroupsUnreadable(f"there are no cgroups at {root}")
    pending = [str(root)]
    while pending:
        directory = pending.pop()
        try:
            children = _directories(directory)
        except OSError as error:
            raise CgroupsUnreadable(f"the cgroup {directory} cannot be read: {error}") from error
        for path, name in children:
            lower = name.lower()
            matched = _POD.search(lower)
            pod = matched[1].replace("_", "-") if matched else ""
            yield path, lower, pod
            if not _USUAL.fullmatch(pod):
                pending.append(path)


def _normal(uid: str) -> str:
    lower = uid.lower()
    if not _UID.fullmatch(lower):
        raise InputInvalid(f"{uid!r} is not the UID of a pod")
    return lower.replace("_", "-")


def _directories(path: str) -> list[tuple[str, str]]:
    """(path, name) of a directory's directories, links not followed; none when it has vanished."""
    try:
        with os.scandir(path) as entries:
            return [(e.path, e.name) for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError as error:
        if _vanished(error, path):
            return []
        raise


def _below(path: str) -> Iterator[str]:
    """This cgroup and all below it."""
    pending = [path]
    while pending:
        directory = pending.pop()
        yield directory
        pending.extend(child for child, _ in _directories(directory))


def _populated(path: str) -> bool:
    """What the kernel counts for the whole subtree, where it does (v2; v1 pids).

    Only a shortcut, and a second witness: in v1 a reader in another pid namespace finds the lists
    of processes empty, while these counters include everybody.
    """
    events, pids = _read(f"{path}/cgroup.events"), _read(f"{path}/pids.current")
    return "populated 1" in events.splitlines() or pids.strip() not in ("", "0")


def _has_processes(path: str) -> bool:
    """Whether any process is listed in this very cgroup."""
    try:
        listed = _content(f"{path}/cgroup.procs")
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # a threaded cgroup lists threads only
            return bool(_content(f"{path}/cgroup.threads").strip())
        if _vanished(error, path):
            return False
        raise
    return bool(listed.strip())


def _vanished(error: OSError, path: str) -> bool:
    """Whether the cgroup was removed meanwhile; an error of one that exists is none of that."""
    return error.errno in _GONE and not os.path.lexists(path)


def _read(path: str) -> str:
    with suppress(FileNotFoundError, NotADirectoryError):
        return _content(path)
    return ""


def _content(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)
