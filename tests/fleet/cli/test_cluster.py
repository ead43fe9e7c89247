"""Which cluster a verb asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet import errors
from fleet.cli.cluster import surroundings
from tests.standin.server import StandIn


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
    assert surroundings(tmp_path, address="ray://x", kubeconfig=None).plans == ()
