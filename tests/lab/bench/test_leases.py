"""The lease benchmark measures real, durable leases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.core.clock import ManualClock
from fleet.core.errors import LeaseHeld
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.stores.base import Event
from fleet.stores.sqlite import open_stores
from tests.lab.bench import leases


def test_every_round_is_a_grant_and_a_release(tmp_path: Path) -> None:
    """Issue 2 (bench): the figures count leases the store really issued and took back."""
    found = leases.measure(tmp_path, runs=1, rounds=10)
    stores = open_stores(tmp_path / "store.db", clock=ManualClock(0.0))
    events = [entry.event for entry in stores.leases.history(10**6)]
    stores.close()
    rounds = 10 + leases.NODE + leases.BATCH
    assert events.count(Event.GRANTED) == events.count(Event.RELEASED) == rounds
    assert found.direct.batched_per_s > found.direct.single_per_s > 0
    assert found.direct.node_per_s > 0


def test_a_refused_lease_stops_the_benchmark(tmp_path: Path) -> None:
    """Issue 2 (bench): nothing is counted that was not granted."""
    stores = open_stores(tmp_path / "store.db", clock=ManualClock(0.0))
    stores.leases.init()
    holder = Holder(HolderKind.CLAIM, "a")
    stores.leases.acquire([AcquireRequest(frozenset({UnitId("gpu-0/0")}), holder)])
    with pytest.raises(LeaseHeld):
        leases.rate(leases.StoreLeasing(stores.leases), runs=1, rounds=1)
    stores.close()


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Issue 2 (bench): one JSON document, and nothing is left in the folder."""
    command = ["--folder", str(tmp_path), "--runs", "1", "--rounds", "5", "--json"]
    assert leases.main(command) == 0
    assert json.loads(capsys.readouterr().out)["direct"]["batch"] == leases.BATCH
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_when_it_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 2: exit code 2 and the reason on stderr."""
    assert leases.main(["--folder", str(tmp_path / "absent")]) == 2
    assert "cannot run" in capsys.readouterr().err
