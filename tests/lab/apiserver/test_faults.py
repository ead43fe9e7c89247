"""Rules of faults on request."""

from __future__ import annotations

import pytest

from fleet.core.errors import ApiConflict, ApiUnavailable
from tests.lab.apiserver.faults import Faults


def test_a_failure_meets_its_verb_so_many_times() -> None:
    """Other verbs and later calls are not touched."""
    faults = Faults()
    faults.fail_next("apply", ApiConflict("injected", reason="Conflict"), times=2)
    faults.before("get")
    for _ in range(2):
        with pytest.raises(ApiConflict):
            faults.before("apply")
    faults.before("apply")


def test_a_lost_answer_comes_after_the_deed() -> None:
    """Nothing is raised before the call."""
    faults = Faults()
    faults.lose_answer_next("patch")
    faults.before("patch")
    with pytest.raises(ApiUnavailable):
        faults.after("patch")
    faults.after("patch")


def test_offline_lasts_until_it_is_set_back() -> None:
    """Every verb is refused."""
    faults = Faults()
    faults.offline = True
    with pytest.raises(ApiUnavailable):
        faults.before("get")
    faults.clear()
    faults.before("get")


def test_somebody_else_may_be_faster() -> None:
    """The action runs once, right before the call."""
    faults, seen = Faults(), []
    faults.before_next("replace", lambda: seen.append(1))
    faults.before("replace")
    faults.before("replace")
    assert seen == [1]


def test_an_unknown_verb_is_a_mistake() -> None:
    """A fault that could never strike is refused."""
    with pytest.raises(ValueError, match="is no verb of the port"):
        Faults().fail_next("aply", ApiUnavailable("x"))
