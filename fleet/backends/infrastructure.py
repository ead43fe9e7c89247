"""Which processes are known infrastructure: a list kept as data, the same for every back end."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

from fleet.model import ProcessKind

COMM_LENGTH = 15
"""Characters of a process name the kernel keeps."""


@functools.cache
def daemons() -> frozenset[str]:
    """Names of listed daemons, whole and as the kernel cuts them."""
    text = resources.files(__package__).joinpath("infrastructure.toml").read_text()
    names = {row["name"] for row in tomllib.loads(text)["daemon"]}
    return frozenset(names | {name[:COMM_LENGTH] for name in names})


def kind(name: str) -> ProcessKind:
    """What a process of this name is to us, unless it is ours."""
    return ProcessKind.INFRASTRUCTURE if name in daemons() else ProcessKind.FOREIGN
