"""`fleet reconcile` over a real state directory and an API server on loopback."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from fleet.cli.main import main
from fleet.cli.reconcile import _render
from fleet.control.repair.leftovers import Kind, Orphan
from fleet.control.repair.repair import BEGUN, Outcome
from fleet.core.clock import SystemClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.kube.base import CLAIMS, NODES, PODS, SLICES
from fleet.stores.sqlite import open_stores, store_path
from fleet.wiring import adapters
from jobs.reconcile import Reconciliation
from tests.fleet.cli.test_cluster import served_state
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn

GONE = "11111111-2222-3333-4444-555555555555"


def leave_behind(state: Path) -> None:
    """A lease and a spec of a claim that exists nowhere else."""
    plan = adapters.plan_fleet(state)
    with closing(adapters.open_node(plan.nodes[0])) as node:
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


@pytest.mark.parametrize("line", [["reconcile", "--dry-run"], ["uninstall", "--plan"], ["audit"]])
def test_what_could_not_be_looked_at_is_never_called_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str]
) -> None:
    """Promise 7: an API server that does not answer, or cannot be asked, is exit 1, and said."""
    state = served_state(tmp_path / "state", tmp_path / "gone")
    assert main([*line, "--state", str(state)]) == 1
    told = capsys.readouterr().out
    assert "nothing was left behind" not in told
    assert "cannot be used" in told
    with StandIn() as standin:
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        standin.hidden |= {CLAIMS, SLICES, PODS}
        assert main([*line, "--kubeconfig", str(path), "--state", str(state)]) in (1, 2)
        told = "".join(capsys.readouterr())
    assert "nothing was left behind" not in told
    assert "resourceclaims" in told


def test_a_teardown_that_has_only_begun_is_not_called_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """E7: "gone" is what is gone: a record ends once its tenant is proven gone."""
    one = Orphan(
        kind=Kind.RECORD,
        node="n1",
        subject=GONE,
        what="record",
        why="the claim is gone",
        fix="f",
        command="c",
        proven=True,
    )
    outcomes = (Outcome(orphan=one, done=False, detail=BEGUN, begun=True),)
    report = Reconciliation(at=0.0, dry_run=False, simulated=False, outcomes=outcomes)
    assert report.exit_code == 1
    _render(report, Console())
    told = capsys.readouterr().out
    assert "teardown begun: n1: record" in told
    assert "0 taken away, 1 teardowns begun" in told
    assert "gone:" not in told
