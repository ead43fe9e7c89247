"""Which containers may still open a device's nodes, by the device rules of their cgroups (A3).

Only v1 lets these rules be read (``devices.list``). In v2 they are programs in the kernel, so the
answer there is "unknown", said as such. The orphan sweep asks this after a teardown; nothing is
changed here, and safety does not rest on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fleet.core.errors import CgroupsUnreadable
from fleet.devices.base import DeviceNode
from fleet.node.cgroups import CgroupTree

EVERYBODYS = frozenset(
    {("c", 1, 3), ("c", 1, 5), ("c", 1, 7), ("c", 1, 8), ("c", 1, 9), ("c", 5, 0), ("c", 5, 2)}
)
"""null, zero, full, random, urandom, tty, ptmx: runtimes allow them to every container."""


class Permission(StrEnum):
    """What a cgroup's rules say about some device numbers."""

    ALLOWED = "allowed"
    EVERYTHING = "everything"
    """All devices are allowed (a privileged container): no trace of a claim."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One container that may still open a device, or of which that cannot be told."""

    cgroup: str
    numbers: str
    """``c 195:0``, as the rules write it."""
    permission: Permission


def remaining(root: Path, nodes: Sequence[DeviceNode]) -> tuple[Finding, ...]:
    """Containers whose rules still allow one of these nodes, for opening it in any way.

    `root` is where the cgroups are mounted. Numbers that every container has (null and its like)
    are left out: they tell nothing. Never raises; what cannot be read is UNKNOWN.
    """
    asked = sorted({(n.kind, n.major, n.minor) for n in nodes} - EVERYBODYS)
    if not asked:
        return ()
    hierarchies = _hierarchies(root)
    if not hierarchies:
        return tuple(Finding(str(root), _text(number), Permission.UNKNOWN) for number in asked)
    return tuple(finding for one in hierarchies for finding in _in(one, asked))


def _hierarchies(root: Path) -> list[Path]:
    """The mounts of the v1 devices controller; the same one under several names counts once."""
    found = {path.resolve().parent for path in root.glob("*/devices.list")}
    if (root / "devices.list").exists():
        found.add(root.resolve())
    return sorted(found)


def _in(hierarchy: Path, asked: Sequence[tuple[str, int, int]]) -> Iterator[Finding]:
    try:
        containers = sorted(CgroupTree.containers(hierarchy))
    except CgroupsUnreadable:
        yield from (Finding(str(hierarchy), _text(n), Permission.UNKNOWN) for n in asked)
        return
    for container in containers:
        try:
            rules = (container / "devices.list").read_text().splitlines()
        except OSError:
            if container.exists():
                yield from (Finding(str(container), _text(n), Permission.UNKNOWN) for n in asked)
            continue
        for number in asked:
            permission = _permission(rules, number)
            if permission is not None:
                yield Finding(str(container), _text(number), permission)


def _permission(rules: Sequence[str], asked: tuple[str, int, int]) -> Permission | None:
    """What these rules give; making a node (``m``) alone gives no access to the device."""
    kind, major, minor = asked
    for rule in rules:
        what, _, rest = rule.partition(" ")
        numbers, _, access = rest.partition(" ")
        first, _, second = numbers.partition(":")
        if not set(access).intersection("rw"):
            continue
        if what == "a":
            return Permission.EVERYTHING
        if what == kind and first in ("*", str(major)) and second in ("*", str(minor)):
            return Permission.EVERYTHING if first == "*" else Permission.ALLOWED
    return None


def _text(number: tuple[str, int, int]) -> str:
    kind, major, minor = number
    return f"{kind} {major}:{minor}"
