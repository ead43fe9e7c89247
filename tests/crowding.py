"""A process as one on a busy node is: descriptors beyond what select() takes, or none left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

SELECT_MAX = 1024
"""Descriptors that select() knows."""
ROOM = 256


@contextmanager
def crowded() -> Iterator[None]:
    """Every descriptor that select() knows is in use inside the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, SELECT_MAX + ROOM)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    kept: list[int] = []
    try:
        while not kept or kept[-1] < SELECT_MAX:
            kept.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for one in kept:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def exhausted() -> Iterator[None]:
    """Nothing can be opened inside the block: EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
