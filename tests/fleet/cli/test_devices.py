"""`fleet devices`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.core.settings import HardwareSettings, Settings
from fleet.wiring import adapters, plans
from tests.drivers.pci_tree import TPU_V5E, PciTree


def test_devices_are_listed_with_their_state(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fleet devices` shows every device of every node; a new one is never CLEAN (promise 5)."""
    assert main(["devices", "--state", str(state)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith("SIMULATED")
    for place in ("node-01", "node-02", "gpu-0", "gpu-1"):
        assert place in text
    assert "CLEAN" not in text


def test_a_retired_device_stays_retired_until_a_person_says_otherwise(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: retired for good, on the record; adoption by name undoes it."""
    line = [
        "devices",
        "retire",
        "gpu-1",
        "--node",
        "node-02",
        "--reason",
        "fan",
        "--operator",
        "me",
    ]
    assert main([*line, "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["node"], document["operator"]) == ("node-02", "me")
    assert main(["status", "--state", str(state), "--json"]) == 1
    nodes = {one["node"]: one for one in json.loads(capsys.readouterr().out)["nodes"]}
    assert nodes["node-02"]["retired"] == [document["uuid"]]
    adopt = ["node", "adopt", "--node", "node-02", "--device", "gpu-1", "--state", str(state)]
    assert main(adopt) == 0
    capsys.readouterr()
    assert main(["status", "--state", str(state), "--json"]) == 1
    nodes = {one["node"]: one for one in json.loads(capsys.readouterr().out)["nodes"]}
    assert nodes["node-02"]["retired"] == []


def test_a_device_of_nobody_is_unknown(state: Path) -> None:
    """E7: without a node that could have had it nothing is retired."""
    retire = ["devices", "retire", "gpu-9", "--reason", "x", "--state", str(state)]
    assert main(retire) == 2
    assert main([*retire, "--node", "node-01"]) == 2


def test_a_device_is_retired_at_the_door_of_its_nodes_owner(state: Path) -> None:
    """E7: the decision reaches the node whoever owns it."""
    plan = adapters.plan_fleet(state).nodes[0]
    with closing(adapters.open_node(plan)) as node:
        node.adopt(operator="me")
        retire = ["devices", "retire", "gpu-0", "--node", "node-01", "--reason", "x"]
        assert main([*retire, "--state", str(state)]) == 0
        assert len(node.view().retired) == 1


def test_a_retired_device_is_shown_as_retired(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: in every list, and when its quarantine is cleared, with what takes it back."""
    where = ["--node", "node-02", "--reason", "fan", "--state", str(state)]
    assert main(["node", "adopt", "--state", str(state)]) == 0
    assert main(["devices", "retire", "gpu-1", *where]) == 0
    capsys.readouterr()
    back = "fleet node adopt --node node-02 --device gpu-1"
    assert main(["devices", "--state", str(state)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "retired, operator" in told
    assert back in told
    assert main(["devices", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["retired"] for one in document["devices"]] == [False, False, False, True]
    assert main(["status", "--state", str(state)]) == 1
    assert back in " ".join(capsys.readouterr().out.split())
    assert main(["quarantine", "clear", "gpu-1", *where]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "stays retired" in told
    assert back in told


def test_partitioning_reaches_the_node_and_its_refusal_the_operator(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """gpus-8.26: what has no partitions is told so, exit code 2; on or off must be said."""
    plan = adapters.plan_fleet(state).nodes[0]
    line = ["devices", "partitioning", "gpu-0", "--node", "node-01", "--state", str(state)]
    with closing(adapters.open_node(plan)):
        assert main([*line, "--on", "--operator", "ada"]) == 2
    assert "no partitioning to switch" in capsys.readouterr().err
    assert main(line) == 2


def test_a_card_that_died_says_so_to_whoever_lists_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """gpus-8.25, B24: nobody serves and no sweep has run, and still a dead card is not listed as if
    it were as it was."""
    tree = PciTree(tmp_path / "host")
    slot = "0000:3b:00.0"
    tree.add(slot, TPU_V5E)
    settings = HardwareSettings(root=str(tree.root), run_directory=str(tmp_path / "run"))
    plans.discover_fleet(tmp_path / "state", Settings(hardware=settings))
    line = ["devices", "--state", str(tmp_path / "state"), "--json"]
    assert main(line) == 0
    (before,) = json.loads(capsys.readouterr().out)["devices"]
    tree.die(slot)
    assert main(line) == 0
    (after,) = json.loads(capsys.readouterr().out)["devices"]
    codes = [{reason["code"] for reason in one["reasons"]} for one in (before, after)]
    assert "device-lost" not in codes[0]
    assert "device-lost" in codes[1]
