"""The ports stay small enough to implement and to fake."""

from __future__ import annotations

import pytest

from fleet.control.campaign import run
from fleet.control.campaign.ports import CampaignCoordinator, Nodes


@pytest.mark.parametrize("port", [Nodes, CampaignCoordinator])
def test_a_port_has_at_most_eight_methods(port: type) -> None:
    """Small protocols: each method is documented, none is there for convenience."""
    methods = [name for name in vars(port) if not name.startswith("_")]
    assert 0 < len(methods) <= 8
    assert all(getattr(port, name).__doc__ for name in methods)


def test_adapters_find_the_ports_beside_the_campaign() -> None:
    """Whoever drives a campaign imports everything from `fleet.control.campaign.run`."""
    assert run.Nodes is Nodes
    assert run.CampaignCoordinator is CampaignCoordinator
