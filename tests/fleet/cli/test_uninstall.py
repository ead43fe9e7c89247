"""`fleet uninstall` over a real state directory and an API server on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.control.binding.liveness import Heartbeat
from fleet.control.binding.loop import BindingView
from fleet.kube.base import NODES, SLICES, Selection
from fleet.wiring import adapters
from tests.fleet.cli.fleets import occupy
from tests.fleet.cli.test_reconcile import leave_behind
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn


def publish(standin: StandIn, driver: str) -> MemoryCluster:
    """A slice of our driver and one of another's."""
    cluster = MemoryCluster(standin.engine)
    cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}})
    for name, one in (("ours", driver), ("theirs", "other.example.com")):
        pool = {"name": "node-01", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": one, "nodeName": "node-01", "pool": pool, "devices": [{"name": "gpu-0"}]}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                "metadata": {"name": name}, "spec": spec}  # fmt: skip
        cluster.create(SLICES, body)
    return cluster


def test_the_plan_lists_and_the_application_leaves_nothing(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: plan 1 (something is there), apply 0, plan 0; others' slices and evidence stay."""
    leave_behind(state)
    driver = adapters.plan_fleet(state).nodes[0].settings.kubernetes.driver
    with StandIn() as standin:
        cluster = publish(standin, driver)
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        line = ["uninstall", "--kubeconfig", str(path), "--state", str(state)]
        assert main([*line, "--plan"]) == 1
        told = capsys.readouterr().out
        assert "ResourceSlice ours" in told
        assert "lease of claim:" in told
        assert main([*line, "--apply", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["applied"]
        assert document["state"] == str(state)
        left = cluster.list(SLICES, Selection()).items
        assert [one["metadata"]["name"] for one in left] == ["theirs"]
        assert main([*line, "--plan"]) == 0
        assert "0 of 0 things are there" in capsys.readouterr().out


def test_a_device_in_use_keeps_everything(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E7: while somebody uses a device nothing is changed, and it is said who and what to do."""
    occupy(state, "claim-1")
    assert main(["uninstall", "--apply", "--state", str(state)]) == 1
    told = capsys.readouterr().out
    assert "in the way: node-01: claim" in told
    assert "claim-1" in told
    assert "nothing was changed" in told


def test_it_wants_to_be_told_what_to_do(state: Path) -> None:
    """E7: neither listing nor removing is a default."""
    assert main(["uninstall", "--state", str(state)]) == 2
    assert main(["uninstall", "--plan", "--apply", "--state", str(state)]) == 2


def test_a_coordinator_that_runs_is_in_the_way(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: it would take leases and mark claims again, wherever it runs; what to do about it is
    said, and one that ended in good order is in nobody's way."""
    adapters.open_coordinator(adapters.plan_fleet(state).coordinator)
    with StandIn() as standin:
        asked = ["--state", str(state), "--kubeconfig", str(standin.kubeconfig(tmp_path / "k"))]
        heart = Heartbeat(
            BindingView,
            state=tmp_path,
            cluster=MemoryCluster(standin.engine),
            namespace="fleetscrub",
        )
        heart.beat()
        for line in ("--plan", "--apply"):
            assert main(["uninstall", line, *asked]) == 1
            told = capsys.readouterr().out
            assert "in the way: a coordinator runs (pid" in told
            assert "fleet coordinate" in told
        heart.end()
        assert main(["uninstall", "--apply", *asked]) == 0
