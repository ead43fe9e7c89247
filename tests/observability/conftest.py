"""Prometheus and promtool, where they can be had."""

from __future__ import annotations

import pytest

from tests import debian


def _program(name: str) -> debian.Program:
    try:
        return debian.find(name, "prometheus")
    except debian.Unavailable as error:
        pytest.skip(f"SKIPPED: {name} cannot be had: {error}")


@pytest.fixture(scope="session")
def promtool() -> debian.Program:
    """The tool that checks rules."""
    return _program("promtool")


@pytest.fixture(scope="session")
def prometheus_program() -> debian.Program:
    """The server."""
    return _program("prometheus")
