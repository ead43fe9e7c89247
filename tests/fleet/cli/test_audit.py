"""`fleet audit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main
from tests.fleet.cli.fleets import certify
from tests.fleet.cli.test_reconcile import leave_behind
from tests.lab.apiserver.server import StandIn


def test_an_audit_of_a_new_fleet_finds_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Store, nodes and ledgers of a new fleet agree: exit 0."""
    assert main(["audit", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["nodes"], document["devices"], document["findings"]) == (2, 4, [])


def test_an_audit_without_a_cluster_says_what_it_left_out(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B8: the Kubernetes part is skipped and said so; evidence of a scrubbed fleet is whole."""
    certify(state)
    assert main(["audit", "--state", str(state)]) == 0
    told = capsys.readouterr().out
    assert "no cluster was asked" in told
    assert "4 certificates: all agree" in told


def test_a_forged_certificate_is_found(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B8: chains are verified, not only counted."""
    certify(state)
    (segment,) = (state / "nodes" / "node-01" / "ledger").glob("*.jsonl")
    text = segment.read_text().splitlines()
    segment.write_text("\n".join([text[0], *text[2:]]) + "\n")
    assert main(["audit", "--state", str(state), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "evidence-broken" in {one["trouble"] for one in found}


def test_an_audit_compares_claims_with_a_cluster(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B8: a lease whose claim the API does not have is found from the cluster's side."""
    leave_behind(state)
    with StandIn() as standin:
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        line = ["audit", "--kubeconfig", str(path), "--state", str(state), "--json"]
        assert main(line) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["skipped"] == []
    assert "lease-of-gone-claim" in {one["trouble"] for one in document["findings"]}
