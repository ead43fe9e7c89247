"""Bringing a fleet's actors together; the rest is in the Ray tests of the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.muster import check_same
from fleet import bootstrap, errors


def test_an_actor_of_another_state_directory_is_not_taken_over(tmp_path: Path) -> None:
    """B54: an actor that has the name but serves other files is not the one that was asked for."""
    plan = bootstrap.plan_fleet(tmp_path, simulate="2x1", memory_bytes=8 << 20)
    ours = {node.node: str(tmp_path) for node in plan.nodes}
    check_same(plan, ours)
    with pytest.raises(errors.InputInvalid, match="/elsewhere"):
        check_same(plan, {**ours, "node-02": "/elsewhere"})
