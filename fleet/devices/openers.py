"""Who has device nodes open, asked of the kernel: all descriptors and mappings below ``proc``.

Drivers list only clients they serve; monitoring agents that hold a bare descriptor, and processes
in other containers, are found here. That needs the view of the host's first PID namespace and the
right to look into every process: without either, an empty answer would not mean idle, and the call
fails instead of giving one.

Decisions:

1. A node is recognised by its device numbers, whatever path a container sees it under; by its path
   only where the numbers cannot be asked.
2. A process that ends while it is looked at holds nothing.
3. Mapped-only holders (descriptor closed, mapping kept) are recognised below ``/dev`` only.
4. Files of network file systems are not asked for their numbers: they hold no nodes of devices, and
   a server that is gone would make the question last for ever.
5. Every thread is looked at that has a table of descriptors of its own, and of a process whose
   first thread has ended those that live.

Not seen are descriptors that no process has: in flight on a socket, or registered with io_uring and
closed. Whoever needs those too asks the device's driver what is in use.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core.errors import BackendFailed
from fleet.devices import threads
from fleet.devices.sysfs import read_text

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel gives its first PID namespace this number on every machine."""
REMOTE = ("nfs", "cifs", "smb", "ceph", "9p", "lustre", "gluster", "afs", "beegfs", "gpfs", "fuse")
"""How types of file systems begin whose files may be far away."""
VFIO_DEVICE = "anon_inode:[vfio-device]"
VFIO_NODES = "/dev/vfio/"
UNSEEN_REMEDY = (
    "run the node service in the host's PID namespace (hostPID) as root or with CAP_SYS_PTRACE"
)

Numbers = tuple[int, int]
"""Major and minor number of a character device."""
Wanted = Mapping[str, Numbers | None]
"""Device nodes by their path on the host, with their numbers where these are known."""


@dataclass(frozen=True, slots=True)
class Opener:
    """One process with some of the nodes asked for."""

    pid: int
    """As the host counts."""
    name: str
    """As the kernel shows it: at most 15 characters, chosen by the process itself."""
    paths: frozenset[str]
    """Which of the nodes asked for, by their paths on the host."""


def sees_all(root: Path) -> bool:
    """Whether ``<root>/proc`` shows every process of the machine.

    It does when its process 1 lives in the kernel's first PID namespace; a container's own does
    not, and neither does one whose namespace we may not read.
    """
    try:
        return str((root / "proc/1/ns/pid").readlink()) == FIRST_PID_NAMESPACE
    except OSError:
        return False


def openers(root: Path, wanted: Wanted) -> tuple[Opener, ...]:
    """Every process, ourselves included, with one of the nodes open or mapped, by pid.

    Raises `BackendFailed` where not every process can be looked into: unknown is not idle.
    """
    if not sees_all(root):
        raise BackendFailed(
            f"{root / 'proc'} does not show all processes of the host: who has"
            f" {', '.join(sorted(wanted)) or 'the device'} open is unknown",
            remedy=UNSEEN_REMEDY,
        )
    if not wanted:
        return ()
    look = _Look(wanted, comparable=threads.are_ours(root / "proc"))
    found = []
    for process in _processes(root):
        if paths := look.at(process):
            name = _readable(read_text(process / "comm") or "unknown")
            found.append(Opener(int(process.name), name, paths))
    return tuple(sorted(found, key=lambda opener: opener.pid))


def _processes(root: Path) -> Iterator[Path]:
    try:
        names = os.listdir(root / "proc")  # noqa: PTH208 - names alone
    except OSError as error:
        raise BackendFailed(f"{root / 'proc'} cannot be listed: {error.strerror}") from error
    yield from (root / "proc" / name for name in names if name.isdecimal())


class _Look:
    """What is looked for, in the forms the kernel shows it."""

    def __init__(self, wanted: Wanted, *, comparable: bool) -> None:
        self._wanted = wanted
        self._by_numbers = {
            numbers: path for path, numbers in wanted.items() if numbers is not None
        }
        self._vfio = frozenset(path for path in wanted if path.startswith(VFIO_NODES))
        self._types: dict[str, str] = {}
        self._comparable = comparable

    def at(self, process: Path) -> frozenset[str]:
        """The nodes one process has. Raises `BackendFailed` where it may not be looked into."""
        found: set[str] = set()
        try:
            views = threads.views(process)
            for view in threads.tables(views, comparable=self._comparable):
                with suppress(FileNotFoundError, ProcessLookupError):
                    found.update(self._descriptors(view))
            found.update(self._mappings(*threads.living(views, "maps")))
        except PermissionError as error:
            raise BackendFailed(
                f"the open files of process {process.name} cannot be read: whether it holds the"
                " device is unknown",
                remedy=UNSEEN_REMEDY,
            ) from error
        except OSError as error:
            raise BackendFailed(f"process {process.name} cannot be looked into: {error}") from error
        return frozenset(found)

    def _descriptors(self, view: Path) -> list[str]:
        found, targets = [], []
        for number in os.listdir(view / "fd"):  # noqa: PTH208 - runs for every process of a node
            descriptor = f"{view}/fd/{number}"
            try:
                target = os.readlink(descriptor)  # noqa: PTH115 - and for each descriptor
            except FileNotFoundError:
                continue  # closed meanwhile
            targets.append(target)
            if not target.startswith("/"):
                continue
            if not target.startswith("/dev/") and self._is_remote(view, number):
                continue
            if path := self._match(descriptor, target):
                found.append(path)
        orphan = VFIO_DEVICE in targets and not any(t.startswith(VFIO_NODES) for t in targets)
        # A device opened through VFIO stays open when the group's descriptor is closed, and does
        # not tell which device it is.
        return [*found, *self._vfio] if orphan else found

    def _is_remote(self, view: Path, descriptor: str) -> bool:
        """Whether a descriptor is of a network file system; mounts have one number everywhere."""
        for line in (read_text(view / "fdinfo" / descriptor) or "").splitlines():
            name, _, mount = line.partition(":")
            if name == "mnt_id":
                if mount.strip() not in self._types:
                    self._types.update(_mounts(view))
                return self._types.get(mount.strip(), "").startswith(REMOTE)
        return False

    def _match(self, link: str, target: str) -> str:
        """The node a link of the kernel leads to, or ""."""
        try:
            status = os.stat(link)  # noqa: PTH116 - runs for each descriptor
        except OSError:
            plain = target.removesuffix(" (deleted)")
            return plain if plain in self._wanted else ""
        if not stat.S_ISCHR(status.st_mode):
            return target if target in self._wanted and self._wanted[target] is None else ""
        numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
        if numbers in self._by_numbers:
            return self._by_numbers[numbers]
        return target if target in self._wanted and self._wanted[target] is None else ""

    def _mappings(self, process: Path, maps: bytes) -> list[str]:
        if b" /dev/" not in maps:
            return []
        found = []
        for line in os.fsdecode(maps).splitlines():
            area, *_, target = line.split(maxsplit=5)
            if target.startswith("/dev/") and (
                path := self._match(f"{process}/map_files/{area}", target)
            ):
                found.append(path)
        return found


def _mounts(process: Path) -> Iterator[tuple[str, str]]:
    """(number, type) of every mount a process sees."""
    for line in (read_text(process / "mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if before and after:
            yield before.split()[0], after.split()[0]


def _readable(name: str) -> str:
    """A process's name for the record: it may hold any control character."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)
