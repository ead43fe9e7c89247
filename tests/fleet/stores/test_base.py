"""Run records cross process borders as JSON."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleet.stores.base import RunRecord
from tests.contracts.run_store_contract import record, result


def test_a_run_record_survives_json() -> None:
    """DESIGN 5 (Ray): models cross as validated JSON and come out the same."""
    full = record().model_copy(update={"results": {"gpu-0": result("gpu-0")}})
    assert RunRecord.model_validate_json(full.model_dump_json()) == full


def test_a_run_record_refuses_what_it_does_not_know() -> None:
    """DESIGN 5 (Ray): a message of another version is an error, not a guess."""
    text = record().model_dump_json().replace('"simulated"', '"simulation"')
    with pytest.raises(ValidationError):
        RunRecord.model_validate_json(text)
