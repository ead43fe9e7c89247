"""Fixtures of the kubelet side's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fleet.plugin.benches import Bench, bench


@pytest.fixture
def site() -> Iterator[Bench]:
    """A node whose devices are proven free, profile `fast`."""
    with bench() as made:
        yield made
