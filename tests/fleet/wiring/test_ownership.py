"""One journal speaks for the devices of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.model import Uuid
from fleet.wiring import adapters

ONE, OTHER = Uuid("GPU-1"), Uuid("GPU-2")


def test_gpus_8_39_two_services_never_have_one_device(tmp_path: Path) -> None:
    """gpus-8.39, B4: the second is refused and told who has it; the locks end with their owner."""
    first = adapters.own(tmp_path / "run", tmp_path / "state", [ONE, OTHER])
    with pytest.raises(errors.NotOwner, match="serves uuid-GPU-2"):
        adapters.own(tmp_path / "run", tmp_path / "state", [OTHER])
    first.close()
    adapters.own(tmp_path / "run", tmp_path / "state", [OTHER]).close()


def test_promise_6_another_state_directory_forgets_no_decision(tmp_path: Path) -> None:
    """Promise 6: a quarantine kept in one state directory is not passed by with another --state,
    also when no service runs; an operator who wants that says so."""
    adapters.own(tmp_path / "run", tmp_path / "state", [ONE]).close()
    with pytest.raises(errors.InputInvalid, match="speaks for the devices") as refused:
        adapters.own(tmp_path / "run", tmp_path / "second", [ONE])
    (tmp_path / "run" / adapters.SPEAKS).unlink()
    adapters.own(tmp_path / "run", tmp_path / "second", [ONE]).close()
    assert str(tmp_path / "run" / adapters.SPEAKS) in refused.value.remedy


def test_a_directory_that_cannot_be_used_gives_no_device(tmp_path: Path) -> None:
    """Doubt: without the place where locks are kept nobody speaks for a device."""
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(errors.BackendFailed, match="cannot be opened"):
        adapters.own(tmp_path / "run", tmp_path / "state", [ONE])
