"""The host's cgroups: which of them are a pod's, and whether any process is left in them.

Works on every layout there is (v1 with one mount per controller, v2, both at once; names as the
cgroupfs or the systemd driver makes them) by looking for the pod's UID in directory names. Nothing
is kept between calls: the answer is about now.

Absence proves something only where the pods' cgroups can be seen at all. A tree without any
``kubepods`` directory (a container's own cgroup namespace, a wrong mount) is unknown, not empty.
A kubelet may itself run in a pod, and its pods' cgroups are inside of that pod's: who is found
nowhere else is looked for in there (F10).

Parts of the tree belong to users (systemd delegates ``user@1000.service``), who name, nest and fill
directories as they like. Pods are made by root, so the search enters only what is root's: a user
can neither pass for a pod nor hinder the search. Inside a pod everything counts, whoever made it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fleet.core.errors import CgroupsUnreadable, InputInvalid

KUBEPODS = "kubepods"
"""Part of the name of the directory below which kubelet puts all pods, with either driver."""
_POD = re.compile(r"(?<![0-9a-z])pod([0-9a-z][0-9a-z_-]*)")
_UID = re.compile(r"[0-9a-z][0-9a-z_-]*")
_USUAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""UIDs as the API server and (for static pods) kubelet make them."""
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
_USERS = "user.slice"
"""Where systemd keeps the sessions and services of users, at the top of each hierarchy."""
DEEPEST = 64
"""Levels below a pod that are looked through; systemd in a container makes about five."""
MOST = 4096
"""Cgroups of one pod that are looked through: a fraction of a second's work."""


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
        seen, houses = False, []
        for path, name, pod in _walk(self.root, wanted):
            seen = seen or KUBEPODS in name
            if pod in wanted:
                found[wanted[pod]].append(Path(path))
            if pod:
                houses.append(path)
        if not seen:
            raise CgroupsUnreadable(f"no {KUBEPODS} cgroup is visible below {self.root}")
        missing = {pod for pod, uid in wanted.items() if not found[uid]}
        for house in houses if missing else ():
            for path, pod in _inside(house):
                if pod in missing:
                    found[wanted[pod]].append(Path(path))
        return {uid: sorted(found[wanted[_normal(uid)]]) for uid in uids}

    def occupied(self, path: Path) -> bool:
        """Whether a process is in this cgroup or one below it; one that has vanished is empty.

        Raises `CgroupsUnreadable` when that cannot be told, also of a tree beyond all measure
        (`DEEPEST`, `MOST`): that is a matter of this pod alone.
        """
        try:
            with _opened(str(path)) as top:
                return _populated(top) or _inhabited(top, 0, iter(range(MOST)))
        except OSError as error:
            if error.errno in _GONE and not os.path.lexists(path):
                return False
            raise CgroupsUnreadable(f"the cgroup {path} cannot be read: {error}") from error

    @staticmethod
    def containers(hierarchy: Path) -> Iterator[Path]:
        """The cgroups of all containers of all pods in one hierarchy.

        Raises `CgroupsUnreadable` when that cannot be told.
        """
        for path, name, pod in _walk(hierarchy, ()):
            if not pod:
                continue
            yield from _of_pod(path, name)
            for inner, _ in _inside(path):
                yield from _of_pod(inner, Path(inner).name)


def _of_pod(path: str, name: str) -> Iterator[Path]:
    """The cgroups of a pod's containers."""
    if ":" in name:  # a runtime and a kubelet with different drivers name it so
        yield Path(path)
        return
    try:
        children = _directories(path)
    except OSError as error:
        raise CgroupsUnreadable(f"the cgroup {path} cannot be read: {error}") from error
    yield from (Path(child.path) for child in children)


def _inside(pod: str) -> Iterator[tuple[str, str]]:
    """(path, pod UID) of cgroups inside a pod's that are named as a pod's of a kubelet in there.

    Whoever may make cgroups in a pod can make such a name, too: a pod may so seem to run that is
    gone, and none to be gone that runs. A pod that shows a kubelet's directory and is beyond all
    measure (`DEEPEST`, `MOST`) raises `CgroupsUnreadable`; any other one hinders nobody's search.
    """
    pending, allowance = [(pod, 0)], iter(range(MOST))
    beyond, kubelet = "", False
    while pending:
        directory, depth = pending.pop()
        if depth > DEEPEST or next(allowance, None) is None:
            beyond = f"more than {DEEPEST} levels or {MOST} cgroups are in it"
            continue
        try:
            entries = _directories(directory)
        except OSError as error:
            beyond = str(error)
            continue
        for entry in entries:
            lower = entry.name.lower()
            kubelet = kubelet or KUBEPODS in lower
            if matched := _POD.search(lower):
                yield entry.path, matched[1].replace("_", "-")
            pending.append((entry.path, depth + 1))
    if beyond and kubelet:
        raise CgroupsUnreadable(f"pods of the kubelet inside {pod} cannot be told: {beyond}")


def _walk(root: Path, pods: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """(path, lower-case name, pod UID or "") of directories that only root can have made.

    None from inside a pod: one of `pods`, or one named as usual.
    """
    if not root.is_dir():
        raise CgroupsUnreadable(f"there are no cgroups at {root}")
    alone = os.access(root / "cgroup.procs", os.F_OK)
    pending = [str(root)]
    while pending:
        directory = pending.pop()
        try:
            for entry in _directories(directory):
                lower = entry.name.lower()
                matched = _POD.search(lower)
                pod = matched[1].replace("_", "-") if matched else ""
                if _of_users(entry, root, alone=alone):
                    continue
                if pod in pods or _USUAL.fullmatch(pod):
                    yield entry.path, lower, pod
                    continue
                trusted = _trusted(entry)
                if not trusted and KUBEPODS in lower and not pod:
                    raise CgroupsUnreadable(f"{entry.path} belongs neither to root nor to us")
                yield entry.path, lower, pod
                if trusted:
                    pending.append(entry.path)
        except OSError as error:
            raise CgroupsUnreadable(f"the cgroup {directory} cannot be read: {error}") from error


def _of_users(entry: os.DirEntry[str], root: Path, *, alone: bool) -> bool:
    """Whether this is ``user.slice`` at the top of a hierarchy.

    The only one is `root` itself if `alone`; else each of its directories is one as well.
    """
    if entry.name != _USERS:
        return False
    above = Path(entry.path).parent
    return above == root or (not alone and above.parent == root)


def _trusted(entry: os.DirEntry[str]) -> bool:
    """Whether only root, or who runs us, can make directories in this one; False when gone."""
    try:
        return entry.stat(follow_symlinks=False).st_uid in (0, os.geteuid())
    except OSError as error:
        if _vanished(error, entry.path):
            return False
        raise


def _normal(uid: str) -> str:
    lower = uid.lower()
    if not _UID.fullmatch(lower):
        raise InputInvalid(f"{uid!r} is not the UID of a pod")
    return lower.replace("_", "-")


def _directories(path: str) -> list[os.DirEntry[str]]:
    """A directory's directories, links not followed; none when it has vanished."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if _vanished(error, path):
            return []
        raise


@contextmanager
def _opened(name: str, within: int | None = None) -> Iterator[int]:
    """A directory's descriptor: below it no path is ever too long to be named."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _inhabited(cgroup: int, depth: int, allowance: Iterator[int]) -> bool:
    """Whether a process is listed in this cgroup or below; each one looked at takes one step."""
    if depth > DEEPEST or next(allowance, None) is None:
        raise OSError(errno.E2BIG, f"more than {DEEPEST} levels or {MOST} cgroups are in it")
    if _has_processes(cgroup):
        return True
    with os.scandir(cgroup) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return any(_child_inhabited(cgroup, name, depth + 1, allowance) for name in names)


def _child_inhabited(cgroup: int, name: str, depth: int, allowance: Iterator[int]) -> bool:
    try:
        with _opened(name, cgroup) as child:
            return _inhabited(child, depth, allowance)
    except OSError as error:
        # Its parent is asked: the descriptor of a cgroup outlives the cgroup.
        if error.errno in _GONE and not _exists(cgroup, name):
            return False
        raise


def _exists(cgroup: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=cgroup, follow_symlinks=False)
    except OSError as error:
        return error.errno not in _GONE
    return True


def _populated(cgroup: int) -> bool:
    """What the kernel counts for the whole subtree, where it does (v2; v1 pids).

    Only a shortcut, and a second witness: in v1 a reader in another pid namespace finds the lists
    of processes empty, while these counters include everybody.
    """
    events, pids = _read(cgroup, "cgroup.events"), _read(cgroup, "pids.current")
    return "populated 1" in events.splitlines() or pids.strip() not in ("", "0")


def _has_processes(cgroup: int) -> bool:
    """Whether any process is listed in this very cgroup."""
    try:
        return bool(_content(cgroup, "cgroup.procs").strip())
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # a threaded cgroup lists threads only
            return bool(_content(cgroup, "cgroup.threads").strip())
        raise


def _vanished(error: OSError, path: str) -> bool:
    """Whether the cgroup was removed meanwhile; an error of one that exists is none of that."""
    return error.errno in _GONE and not os.path.lexists(path)


def _read(cgroup: int, name: str) -> str:
    with suppress(FileNotFoundError, NotADirectoryError):
        return _content(cgroup, name)
    return ""


def _content(cgroup: int, name: str) -> str:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=cgroup)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)
