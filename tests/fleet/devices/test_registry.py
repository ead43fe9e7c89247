"""From kind and settings to a back end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import InputInvalid
from fleet.devices import registry
from tests.fleet.devices.wipe.orders import node


def test_a_worker_rebuilds_what_the_node_has(tmp_path: Path) -> None:
    """Kind and settings are enough to reach the same devices from another process."""
    backend = node(tmp_path)
    again = registry.build(backend.kind, backend.settings())
    assert again.inventory() == backend.inventory()


def test_an_unknown_kind_names_those_there_are() -> None:
    """Promise 10: no kind falls back on another, least of all on the simulated one."""
    with pytest.raises(InputInvalid, match="the kinds are: simulated"):
        registry.build("simulatd", {"root": "/x"})


def test_settings_of_another_kind_are_refused() -> None:
    """A back end is never built from half of what it needs."""
    with pytest.raises(InputInvalid, match="root"):
        registry.build("simulated", {"path": "/x"})
