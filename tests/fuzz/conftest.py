"""What the fuzz tests share: one directory for each test, which its examples clear themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scratch import directory


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with a short path, for sockets, on whatever is fastest."""
    with directory("fuzz-") as found:
        yield found
