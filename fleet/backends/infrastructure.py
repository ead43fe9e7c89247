"""Which processes are known infrastructure: a list kept as data, the same for every back end."""

from __future__ import annotations

import functools
import os
import tomllib
from contextlib import suppress
from importlib import resources
from pathlib import Path

from fleet.model import ProcessKind

COMM_LENGTH = 15
"""Characters of a process name the kernel keeps."""


@functools.cache
def daemons() -> frozenset[str]:
    """Names of listed daemons, whole and as the kernel cuts them."""
    text = resources.files(__package__).joinpath("infrastructure.toml").read_text()
    names = {row["name"] for row in tomllib.loads(text)["daemon"]}
    return frozenset(names | {name[:COMM_LENGTH] for name in names})


def kind(name: str, pid: int) -> ProcessKind:
    """What a process is to us, unless it is ours.

    A name is the process's own choice: a listed one counts only for a process of the host's or our
    own mount namespace that runs as root or as we do, which a tenant's container is not.
    """
    listed = name in daemons() and is_of_the_host(pid)
    return ProcessKind.INFRASTRUCTURE if listed else ProcessKind.FOREIGN


def is_of_the_host(pid: int) -> bool:
    """Whether a process of the host's or our own mount namespace runs as root or as we do."""
    process = Path("/proc") / str(pid)
    try:
        if process.stat().st_uid not in (0, os.geteuid()):
            return False
        namespace = (process / "ns" / "mnt").stat().st_ino
    except OSError:
        return False
    return namespace in _namespaces()


def _namespaces() -> set[int]:
    found: set[int] = set()
    for host in ("self", "1"):
        with suppress(OSError):
            found.add((Path("/proc") / host / "ns" / "mnt").stat().st_ino)
    return found
