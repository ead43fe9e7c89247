"""Directories of tests that measure no disk, and would wear one out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def scratch() -> Path | None:
    """Where memory files and copies belong: in memory, where there is some."""
    shared = Path("/dev/shm")  # noqa: S108 - a tmpfs; what is made there is private
    return shared if os.access(shared, os.W_OK) else None


@contextmanager
def directory(prefix: str) -> Iterator[Path]:
    """A directory of its own there, with a short path, gone at the end."""
    found = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch()))
    try:
        yield found
    finally:
        shutil.rmtree(found)
