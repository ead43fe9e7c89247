"""A store that is away keeps nobody from starting, and is found again when it is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.model import Token
from fleet.core.settings import Settings
from fleet.stores.factory import StorePlace
from fleet.stores.late import LateStore
from fleet.stores.sqlite import store_path


def late(state: Path, expected: Callable[[], bool] = lambda: False) -> LateStore:
    """A node's view of the file in a state directory."""
    return LateStore(StorePlace(Settings(), state).opener(SystemClock(), expected=expected))


def test_a_late_store_finds_the_file_that_was_put_back(tmp_path: Path) -> None:
    """A store that failed is opened anew, so that a repaired one is used without a restart."""
    path = store_path(tmp_path)
    store = late(tmp_path)
    first = store.newest()
    path.rename(tmp_path / "kept.db")
    path.mkdir()
    store.close()
    with pytest.raises(errors.StoreUnavailable):
        store.newest()
    path.rmdir()
    (tmp_path / "kept.db").rename(path)
    assert store.newest() == first
    assert list(store.leases()) == []
    store.close()


def test_a_store_that_must_exist_is_never_made_anew(tmp_path: Path) -> None:
    """A file that is not there now is away, not new: a second epoch would strand the node."""
    path = store_path(tmp_path)
    known: list[Token] = []
    store = late(tmp_path, lambda: bool(known))
    known.append(store.newest())
    store.close()
    path.rename(tmp_path / "away")
    for _ in range(3):
        with pytest.raises(errors.StoreUnavailable, match="is not there"):
            store.newest()
        assert not path.exists()
    path.touch()
    with pytest.raises(errors.StoreUnavailable, match="is not there"):
        store.leases()
    (tmp_path / "away").rename(path)
    assert store.newest() == known[0]
    store.close()
