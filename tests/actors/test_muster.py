"""Bringing a fleet's actors together; the rest is in the Ray tests of the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.identity import plan_digest
from actors.muster import check_same, tell_others
from fleet.core import errors
from fleet.wiring import adapters


def test_an_actor_of_another_state_directory_is_not_taken_over(tmp_path: Path) -> None:
    """B54: an actor that has the name but serves other files is not the one that was asked for."""
    plan = adapters.plan_fleet(tmp_path, simulate="2x1", memory_bytes=8 << 20)
    ours = {node.node: str(tmp_path) for node in plan.nodes}
    check_same(plan, ours)
    with pytest.raises(errors.InputInvalid, match="/elsewhere"):
        check_same(plan, {**ours, "node-02": "/elsewhere"})


def test_b63_an_actor_of_other_settings_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B63: a node's actor that runs with another plan than the one asked for goes on with its own,
    and whoever asked is told."""
    plan = adapters.plan_fleet(tmp_path, simulate="2x1", memory_bytes=8 << 20)
    ours = {node.node: plan_digest(node.model_dump_json()) for node in plan.nodes}
    tell_others(plan, ours)
    assert not caplog.records
    tell_others(plan, {**ours, "node-02": "another"})
    assert [record.getMessage() for record in caplog.records if "node-02" in record.getMessage()]
