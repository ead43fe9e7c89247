"""DynamoDB on loopback for the stores' tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from fleet.core.clock import ManualClock
from fleet.stores import aws, dynamodb_creation
from fleet.stores.dynamodb import DynamodbStores, open_dynamodb_stores
from fleet.stores.dynamodb_table import Patience
from tests.cloud.proxy import Proxy
from tests.cloud.server import REGION, CloudServer
from tests.contracts.lease_store_contract import START

_NUMBERS = itertools.count(1)
Opener = Callable[..., DynamodbStores]


@pytest.fixture
def clock() -> ManualClock:
    """Moves when told to."""
    return ManualClock(START)


@pytest.fixture
def table_name() -> str:
    """A table of its own."""
    return f"leases-{next(_NUMBERS)}"


@pytest.fixture
def opened(cloud: CloudServer, clock: ManualClock, table_name: str) -> Opener:
    """Opens the stores as another process would; their pauses move the clock."""

    def opener(endpoint: str = cloud.endpoint, name: str = table_name) -> DynamodbStores:
        patience = Patience(10.0, clock=clock, pause=clock.advance)
        place = aws.Place(REGION, endpoint)
        return open_dynamodb_stores(place, name, clock=clock, patience=patience)

    return opener


@pytest.fixture
def stores(opened: Opener) -> DynamodbStores:
    """Stores with an epoch in a new table."""
    found = opened()
    dynamodb_creation.create(found.runs.table)
    found.leases.begin()
    return found


@pytest.fixture
def proxy(cloud: CloudServer) -> Iterator[Proxy]:
    """A proxy before the service."""
    with Proxy(cloud.port) as found:
        yield found
