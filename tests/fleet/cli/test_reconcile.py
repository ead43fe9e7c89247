"""`fleet reconcile` over a real state directory and an API server on loopback."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from fleet import bootstrap
from fleet.cli.main import main
from fleet.clock import SystemClock
from fleet.kube.base import NODES
from fleet.kube.memory.cluster import MemoryCluster
from fleet.leases import AcquireRequest
from fleet.model import Holder, HolderKind, Lease, UnitId
from fleet.stores.sqlite import open_stores, store_path
from tests.standin.server import StandIn

GONE = "11111111-2222-3333-4444-555555555555"


def leave_behind(state: Path) -> None:
    """A lease and a spec of a claim that exists nowhere else."""
    plan = bootstrap.plan_fleet(state)
    with closing(bootstrap.open_node(plan.nodes[0])) as node:
        node.adopt(operator="me")
        unit = node.view().devices[0].units[0]
    with closing(open_stores(store_path(state), clock=SystemClock())) as stores:
        request = AcquireRequest(frozenset({UnitId(unit)}), Holder(HolderKind.CLAIM, GONE))
        (lease,) = stores.leases.acquire([request])
        assert isinstance(lease, Lease)


def test_what_is_left_behind_is_explained_then_taken_away_then_gone(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: dry run 1, run 0, run again 0 with nothing found; each says why and what to do."""
    leave_behind(state)
    with StandIn() as standin:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}}
        MemoryCluster(standin.engine).create(NODES, node)
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        line = ["reconcile", "--kubeconfig", str(path), "--state", str(state)]
        assert main([*line, "--dry-run"]) == 1
        told = capsys.readouterr().out
        assert f"lease of claim:{GONE}" in told
        assert "why: the claim is gone from the API, and node-01 has no record of it" in told
        assert main([*line, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert [one["done"] for one in document["outcomes"]] == [True]
        assert main(line) == 0
        assert "nothing was left behind" in capsys.readouterr().out


def test_without_a_cluster_a_claims_lease_is_told_and_left(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 7: nobody can say that the claim is gone, so nothing is done: exit 1, and why."""
    leave_behind(state)
    assert main(["reconcile", "--state", str(state), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert "no cluster" in document["notes"][0]
    (outcome,) = document["outcomes"]
    assert not outcome["done"]
    assert "no cluster to ask" in outcome["detail"]
