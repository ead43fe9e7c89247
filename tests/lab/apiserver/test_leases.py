"""Rules of leases that need no server (the rest are rows in tests/contracts)."""

from __future__ import annotations

from tests.lab.apiserver.leases import LeaseRules
from tests.lab.apiserver.rules import Write


def test_only_impossible_numbers_are_refused() -> None:
    """Transitions may be anything from 0 on, in any order; a duration is positive."""
    rules = LeaseRules()

    def judged(**spec: int) -> list[str]:
        write = Write({"spec": spec}, {"spec": {"leaseTransitions": 9}}, "", "now")
        assert rules.prepare(write) == write.new
        return [cause.field for cause in rules.judge(write)]

    assert judged(leaseTransitions=0, leaseDurationSeconds=1) == []
    assert judged(leaseTransitions=-1, leaseDurationSeconds=0) == [
        "spec.leaseDurationSeconds",
        "spec.leaseTransitions",
    ]
