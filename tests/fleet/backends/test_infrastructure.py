"""The list of daemons that may stay."""

from __future__ import annotations

import pytest

from fleet.backends.infrastructure import kind
from fleet.model import ProcessKind


@pytest.mark.parametrize("name", ["nvidia-persistenced", "nvidia-persiste", "dcgm-exporter"])
def test_a_listed_daemon_is_infrastructure(name: str) -> None:
    """Also under the name the kernel cuts to 15 characters."""
    assert kind(name) is ProcessKind.INFRASTRUCTURE


@pytest.mark.parametrize("name", ["", "python3", "nvidia", "nvidia-persistenced2", "nvidia-smi"])
def test_anybody_else_is_foreign(name: str) -> None:
    """Only whole names of the list pass: in doubt a process is foreign."""
    assert kind(name) is ProcessKind.FOREIGN
