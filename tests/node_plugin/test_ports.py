"""Rules of the ports behind the gRPC side."""

from __future__ import annotations

from node_plugin.ports import Claims, Standing
from tests.node_plugin.standins import ActedClaims


def test_what_is_not_known_of_the_node_is_not_said() -> None:
    """B83: a standing made of nothing names no owner, no reachability and no time of publishing."""
    assert Standing() == Standing(owner="", owner_reachable=False, published_at=None)


def test_the_stand_in_of_these_tests_is_a_claims_port() -> None:
    """What the tests put behind the server has the shape of the real thing."""
    behind: Claims = ActedClaims()
    assert dict(behind.prepare([])) == {}
