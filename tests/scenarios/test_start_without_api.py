"""The node plugin starts while the API server is away: what needs no API goes on (A3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet import errors, plugging
from fleet.bootstrap import NodePlan
from fleet.kube.base import NODES, SLICES, Name
from tests.standin.server import StandIn

PLAN = NodePlan(node="n1", state="/nowhere")


def test_a_server_that_is_away_keeps_no_plugin_from_starting(tmp_path: Path) -> None:
    """A3: API server down at the start; its answers are used as soon as it is back."""
    with StandIn() as standin:
        port, token = standin.port, standin.token
        path = standin.kubeconfig(tmp_path / "kubeconfig")
    cluster = plugging.open_cluster(PLAN, str(path))
    with pytest.raises(errors.ApiUnavailable):
        cluster.get(NODES, Name("n1"))
    with StandIn(port=port, token=token):
        assert cluster.list(SLICES).items == ()


def test_a_server_without_our_api_is_refused_at_the_start(tmp_path: Path) -> None:
    """B19: what will never work is said at once, with the version to use."""
    with StandIn() as standin:
        standin.hidden.add(SLICES)
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        with pytest.raises(errors.ApiNotFound, match="resourceslices is missing"):
            plugging.open_cluster(PLAN, str(path))
