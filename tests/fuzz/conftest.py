"""What the fuzz tests share: one directory for each test, which its examples clear themselves."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with a short path, for sockets, on whatever is fastest."""
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - made by mkdtemp
    found = Path(tempfile.mkdtemp(prefix="fuzz-", dir=fast))
    yield found
    shutil.rmtree(found)
