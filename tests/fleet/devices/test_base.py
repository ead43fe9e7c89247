"""The protocol's own arithmetic, and that the shipped back end speaks the protocol."""

from __future__ import annotations

from pathlib import Path

from fleet.devices.base import Backend, CanReset, Coverage
from tests.fleet.devices.wipe.orders import node


def test_residual_is_what_was_neither_reserved_nor_covered() -> None:
    """B06: total, reserved, covered and residual always add up, in 64 bits."""
    coverage = Coverage(total=80 << 30, reserved=700 << 20, covered=79 << 30)
    assert coverage.residual == (1 << 30) - (700 << 20)


def test_the_simulated_back_end_speaks_the_protocol(tmp_path: Path) -> None:
    """Abilities are asked for by isinstance; the simulated back end can reset."""
    backend = node(tmp_path)
    assert isinstance(backend, Backend)
    assert isinstance(backend, CanReset)
