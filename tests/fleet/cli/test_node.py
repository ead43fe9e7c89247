"""`fleet node`."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, UnitId
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.kube.base import NODES, Name
from fleet.wiring import adapters
from tests.fleet.cli.fleets import certify, occupy
from tests.fleet.evidence.samples import Site
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn


def test_adoption_is_recorded_and_leads_to_dirty(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ProvenFree (c): an operator's word makes HELD devices DIRTY, never CLEAN."""
    assert main(["node", "adopt", "--operator", "me", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["operator"] == "me"
    assert {device["state"] for device in document["devices"]} == {"DIRTY"}
    assert len(document["devices"]) == 4


def test_adoption_of_an_unknown_node_names_the_known_ones(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that does not exist is an error that names those that do."""
    assert main(["node", "adopt", "--node", "node-9", "--state", str(state)]) == 2
    assert "node-01, node-02" in capsys.readouterr().err


def test_a_drained_node_gives_nobody_a_device(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: every device goes out of service with the operator's words; a second drain adds none."""
    line = ["node", "drain", "node-01", "--reason", "fans", "--operator", "me", "--state"]
    assert main([*line, str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["taken"] == ["gpu-0", "gpu-1"]
    assert main([*line, str(state)]) == 0
    assert "0 devices taken out" in capsys.readouterr().out
    assert main(["quarantine", "list", "--state", str(state)]) == 0
    told = capsys.readouterr().out
    assert "drained: fans" in told
    assert "node-02" not in told
    assert main(["node", "drain", "node-9", "--reason", "x", "--state", str(state)]) == 2


def test_proof_that_is_on_the_node_only_holds_it(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B62: a campaign had a policy with an archive; verbs without it do not let the node go."""
    line = ["node", "drain", "node-01", "--reason", "fans", "--operator", "me", "--state"]
    assert main([*line, str(state)]) == 0, "it has no proof yet"
    Site(state).certify("node-01", rounds=1)
    LedgerFeed(state, "node-01", place="s3://gone/fleet").save()
    capsys.readouterr()
    assert main([*line, str(state)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "2 certificates are on it only, not in the archive yet: these settings name no" in told
    main(["status", "--state", str(state)])
    assert "evidence: 2 not in the archive s3://gone/fleet" in capsys.readouterr().out
    assert main(["uninstall", "--plan", "--state", str(state)]) == 1
    assert "2 certificates are on node-01 only" in capsys.readouterr().out
    LedgerFeed(state, "node-01", place="s3://gone/fleet", required=False).save()
    assert main([*line, str(state)]) == 0, "that policy gave them up"


def test_a_forgotten_node_comes_back_held(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DESIGN 4: what a lost node knew is worth nothing when it is back, certificates included."""
    certify(state)
    line = ["node", "forget", "node-01", "--operator", "me", "--state", str(state)]
    assert main([*line, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["operator"], document["cluster"]) == ("me", False)
    assert main(["devices", "--state", str(state), "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    states = {(one["node"], one["state"]) for one in devices}
    assert states == {("node-01", "HELD"), ("node-02", "CLEAN")}


def test_a_node_that_answers_is_not_forgotten(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: refused while its owner answers; only the exact confirmation overrules that."""
    line = ["node", "forget", "node-01", "--operator", "me", "--state", str(state)]
    plan = adapters.plan_fleet(state).nodes[0]
    with closing(adapters.open_node(plan)):
        assert main(line) == 2
        assert "answers for it on this host" in capsys.readouterr().err
        assert main([*line, "--force", "yes"]) == 2
        assert main([*line, "--force", "node-01 is lost"]) == 0


def test_a_node_whose_object_is_ready_is_not_forgotten(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: a Ready Node object speaks against it; one that is not Ready, or gone, does not."""
    with StandIn() as standin:
        cluster = MemoryCluster(standin.engine)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-01"}}
        found = cluster.create(NODES, node)
        found["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        cluster.replace(NODES, found, subresource="status")
        path = standin.kubeconfig(tmp_path / "kubeconfig")
        line = ["node", "forget", "node-01", "--kubeconfig", str(path), "--state", str(state)]
        assert main(line) == 2
        assert "Ready" in capsys.readouterr().err
        found = cluster.get(NODES, Name("node-01"))
        found["status"]["conditions"][0]["status"] = "Unknown"
        cluster.replace(NODES, found, subresource="status")
        assert main(line) == 0
        cluster.delete(NODES, Name("node-01"))
        assert main(line) == 2
        assert "is it the right one?" in capsys.readouterr().err


def test_who_is_still_on_a_drained_node_is_shown(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: a claim there finishes; until then exit 1 and its name."""
    occupy(state, "claim-1")
    line = ["node", "drain", "node-01", "--reason", "fans", "--wait", "0.1", "--state", str(state)]
    assert main(line) == 1
    assert "claim-1" in capsys.readouterr().out


def test_a_node_whose_plugin_was_killed_is_waited_for_not_forced(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: its publisher lease ends by itself; until then nobody is told to overrule anything."""
    plan = adapters.plan_fleet(state)
    coordinator = adapters.open_coordinator(plan.coordinator)
    holder = Holder(HolderKind.PUBLISHER, "node-01/gpu.fleetscrub.dev")
    units = frozenset({UnitId("publisher/x")})
    coordinator.acquire([AcquireRequest(units, holder, ttl_s=55.0)])
    line = ["node", "forget", "node-01", "--operator", "me", "--state", str(state)]
    assert main(line) == 2
    told = capsys.readouterr().err
    assert "publisher lease ends" in told
    assert "--force" not in told
    assert main([*line[:2], "node-02", *line[3:]]) == 0


def test_draining_looks_until_the_claims_have_gone(state: Path) -> None:
    """E7: `fleet node drain --wait` looks again and again as long as it says, not once: a claim
    that ends meanwhile lets it end well."""
    occupy(state, "uid-1")
    plan = adapters.plan_fleet(state).nodes[0]
    with closing(adapters.open_node(plan)) as service:
        stop = threading.Event()

        def end() -> None:
            while not stop.wait(0.05):
                if any(one.reasons for one in service.view().devices):
                    stop.wait(2.5)  # more than two of its looks
                    service.unprepare("uid-1")
                    return

        ending = threading.Thread(target=end)
        ending.start()
        line = ["node", "drain", plan.node, "--reason", "x", "--wait", "60", "--state", str(state)]
        try:
            assert main(line) == 0
        finally:
            stop.set()
            ending.join()
