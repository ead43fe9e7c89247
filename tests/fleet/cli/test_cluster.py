"""Which cluster a verb asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.cluster import surroundings
from fleet.core import errors
from fleet.core.settings import MIB, KubernetesSettings, Settings
from fleet.kube import identity
from fleet.kube.base import NAMESPACES
from fleet.wiring.adapters import plan_fleet
from fleet.wiring.plans import record_kubeconfig
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine
from tests.lab.apiserver.server import StandIn


def test_without_one_named_or_served_there_is_none(state: Path) -> None:
    """E7: a fleet that kubelet does not serve has no cluster to ask, and that is no error."""
    around = surroundings(state, address=None, kubeconfig=None)
    assert around.cluster is None
    assert around.holds is None
    assert len(around.plans) == 2


def test_the_one_named_is_asked(state: Path, tmp_path: Path) -> None:
    """E7: --kubeconfig names the cluster."""
    with StandIn() as standin:
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        around = surroundings(state, address=None, kubeconfig=path)
        assert around.cluster is not None
        assert around.holds is not None
        assert around.marks.driver == around.settings.kubernetes.driver


def test_a_kubeconfig_that_is_not_there_is_an_error(state: Path) -> None:
    """E7: who names a cluster is never told about none."""
    with pytest.raises(errors.InputInvalid, match="is no file"):
        surroundings(state, address=None, kubeconfig=state / "nothing")


def test_through_ray_nothing_is_known_of_files_here(tmp_path: Path) -> None:
    """E7: with --address the nodes' files are elsewhere, and no plan is needed."""
    around = surroundings(tmp_path, address="ray://x", kubeconfig=None)
    assert (around.plans, around.cluster) == ((), None)


def test_through_ray_only_an_operator_says_that_there_is_no_cluster(
    state: Path, tmp_path: Path
) -> None:
    """Promise 7: one that may be served and is not asked is told; --no-cluster must be true."""
    assert "not known" in surroundings(state, address="ray://x", kubeconfig=None).unasked
    assert not surroundings(state, address="ray://x", kubeconfig=None, no_cluster=True).unasked
    assert not surroundings(state, address=None, kubeconfig=None, no_cluster=True).unasked
    with StandIn() as standin:
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        assert not surroundings(state, address="ray://x", kubeconfig=path).unasked
        with pytest.raises(errors.InputInvalid, match="serves one"):
            surroundings(state, address="ray://x", kubeconfig=path, no_cluster=True)
    served = served_state(tmp_path / "served", tmp_path / "gone")
    with pytest.raises(errors.InputInvalid, match="serves one"):
        surroundings(served, address=None, kubeconfig=None, no_cluster=True)


def cluster_of(name: str) -> StandIn:
    """An API server of another cluster for each name."""
    engine = Engine(seed=name)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
    MemoryCluster(engine).create(NAMESPACES, body)
    return StandIn(engine)


def served_state(state: Path, kubeconfig: Path) -> Path:
    """The state directory of a plugin that serves the cluster of `kubeconfig`."""
    settings = Settings(
        kubernetes=KubernetesSettings(
            cdi_directory=str(state / "cdi"),
            kubelet_root=str(state / "kubelet"),
            cgroup_root=str(state / "cgroup"),
        )
    )
    plan_fleet(state, simulate="1x2", memory_bytes=2 * MIB, settings=settings, serve="n1")
    record_kubeconfig(state, str(kubeconfig))
    return state


def test_the_plugins_own_cluster_is_asked_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 7: without --kubeconfig it is the plugin's cluster, whatever the user's context
    is; another cluster is refused, since everything of ours would look gone there."""
    with cluster_of("ours") as ours, cluster_of("theirs") as theirs:
        right = ours.kubeconfig(tmp_path / "right")
        wrong = theirs.kubeconfig(tmp_path / "wrong")
        monkeypatch.setenv("KUBECONFIG", str(wrong))
        state = served_state(tmp_path / "state", right)
        around = surroundings(state, address=None, kubeconfig=None)
        assert around.cluster is not None
        identity.meet(state, around.cluster, ["n1"])
        assert surroundings(state, address=None, kubeconfig=right).cluster is not None
        assert surroundings(state, address=None, kubeconfig=None).cluster is not None
        with pytest.raises(errors.ClusterForeign, match="another cluster"):
            surroundings(state, address=None, kubeconfig=wrong)
        record_kubeconfig(state, str(wrong))
        with pytest.raises(errors.ClusterForeign):
            surroundings(state, address=None, kubeconfig=None)


def test_a_cluster_that_is_served_and_cannot_be_asked_is_told(tmp_path: Path) -> None:
    """E7: nothing is asked of another one in its place."""
    around = surroundings(
        served_state(tmp_path / "state", tmp_path / "gone"), address=None, kubeconfig=None
    )
    assert around.cluster is None
    assert "gone" in around.unasked
    assert around.has_waiting
    assert around.state == tmp_path / "state"
