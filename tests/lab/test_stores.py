"""The stores in memory keep the contracts."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from tests.contracts.lease_store_contract import START, LeaseStoreContract
from tests.contracts.reinstating_contract import ReinstatingContract
from tests.contracts.run_store_contract import RunStoreContract
from tests.lab.stores import MemoryLeaseStore, MemoryRunStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(clock: ManualClock) -> MemoryLeaseStore:
    leases = MemoryLeaseStore(clock)
    leases.init()
    return leases


@pytest.fixture
def runs(clock: ManualClock) -> MemoryRunStore:
    return MemoryRunStore(clock)


class TestMemoryLeaseStore(LeaseStoreContract, ReinstatingContract):
    """The lease contract over memory."""


class TestMemoryRunStore(RunStoreContract):
    """The run contract over memory."""


def test_an_uninitialised_store_does_nothing(clock: ManualClock) -> None:
    """DESIGN 4: without an epoch there are no tokens."""
    leases = MemoryLeaseStore(clock)
    for act in (leases.newest, leases.leases, lambda: leases.acquire([])):
        with pytest.raises(errors.SettingsInvalid):
            act()
