"""What the tests of the gRPC side share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path: those of pytest leave too little of a socket's 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="np") as found:
        yield Path(found)
