"""Runs on DynamoDB keep the contract, however large they are and whatever is lost on the way."""

from __future__ import annotations

import random

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.model import RunId
from fleet.stores.base import RunState, Target
from fleet.stores.dynamodb import DynamodbStores
from fleet.stores.dynamodb_runs import DEVICES_AT_ONCE, DynamodbRunStore
from tests.contracts.run_store_contract import RUN, RunStoreContract, record, result


class TestDynamodbRunStore(RunStoreContract):
    """The run contract over a table of moto's server."""

    kept = 3

    @pytest.fixture
    def runs(self, stores: DynamodbStores, clock: ManualClock) -> DynamodbRunStore:
        return DynamodbRunStore(stores.runs.table, clock, kept=self.kept)


def test_a_run_larger_than_an_item_comes_back_whole(stores: DynamodbStores) -> None:
    """E2: ten thousand devices are several items, written before the head that names them; results
    of more devices than one transaction takes are stored all the same."""
    chance = random.Random(1)
    targets = tuple(
        Target(node=f"node-{n % 97}", uuid=f"gpu-{chance.getrandbits(256):064x}", name=str(n))
        for n in range(10_000)
    )
    large = record().model_copy(update={"targets": targets})
    assert stores.runs.create(large) == large
    table = stores.runs.table
    parts = list(table.query(f"run {RUN}", table.attempts(), prefix="body"))
    assert len(parts) > 1
    results = [result(f"gpu-{n}") for n in range(2 * DEVICES_AT_ONCE + 1)]
    assert stores.runs.append(RUN, results) == len(results)
    found = stores.runs.get(RUN)
    assert found.targets == targets
    assert len(found.results) == len(results)


def test_a_body_that_lost_a_part_is_not_a_run(stores: DynamodbStores) -> None:
    """B62: a run is resumed from all it was created from, or not at all."""
    stores.runs.create(record())
    table = stores.runs.table
    (body,) = table.query(f"run {RUN}", table.attempts(), prefix="body")
    table.delete([{"pk": body["pk"], "sk": body["sk"]}], table.attempts())
    with pytest.raises(errors.SettingsInvalid, match="cannot be understood"):
        stores.runs.get(RunId(RUN))
    assert stores.runs.state(RUN) is RunState.RUNNING
