"""`fleet evidence losses`: what nodes signed about claims that ended badly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.cli.evidence import app
from fleet.core.errors import InputInvalid
from fleet.core.model import ClaimUid
from fleet.evidence import layout
from fleet.evidence.keys import SigningKey
from fleet.evidence.losses import Look, LossLog
from tests.fleet.evidence.test_losses import DEVICE, LOSS, NOW


@pytest.fixture(name="state")
def state_fixture(tmp_path: Path) -> Path:
    """A node with two records, the second of a simulated device."""
    log = LossLog(layout.losses_directory(tmp_path, "node-1"))
    key = SigningKey.load_or_create(layout.node_key(tmp_path, "node-1"))
    for loss in (LOSS, replace(LOSS, claim=ClaimUid("claim-b"), simulated=True)):
        log.append(loss, key=key, now=NOW, version="1.0")
    return tmp_path


def run(*words: str) -> None:
    """Run the verb."""
    app(["losses", *words], standalone_mode=False)


def test_records_are_listed_with_claim_device_and_reason(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D3: an operator sees which claim left what; a simulated device says so."""
    run("--state", str(state))
    told = capsys.readouterr().out
    assert [told.count(word) for word in ("team/train", "GPU-1", "verify-failed")] == [2, 2, 2]
    assert told.count("SIMULATED") == 1
    run("--state", str(state), "--claim", "claim-b", "--node", "node-1", "--json")
    (found,) = json.loads(capsys.readouterr().out)["losses"]
    assert (found["claim"]["uid"], found["number"], found["simulated"]) == ("claim-b", 2, True)


def test_nothing_and_nobody_are_told_apart(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No record is an answer; a node that is not there is an error that names those that are."""
    run("--state", str(tmp_path / "empty"))
    assert capsys.readouterr().out == "no data-loss records\n"
    with pytest.raises(InputInvalid) as caught:
        run("--state", str(state), "--node", "node-9")
    assert "node-1" in caught.value.remedy


def test_f60_who_looked_into_devices_is_listed(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F60: claims let into devices with adminAccess have a list of their own, and are no losses."""
    look = Look(
        node=LOSS.node,
        claim=ClaimUid("claim-c"),
        namespace="ops",
        name="look",
        pods=("pod-1",),
        devices={DEVICE.uuid: DEVICE.units},
        read_only=False,
        simulated=False,
    )
    log = LossLog(layout.losses_directory(state, "node-1"))
    key = SigningKey.load_or_create(layout.node_key(state, "node-1"))
    assert log.append(look, key=key, now=NOW, version="1.0") == log.append(
        look, key=key, now=NOW + 9, version="1.0"
    )
    app(["admin-access", "--state", str(state)], standalone_mode=False)
    told = capsys.readouterr().out
    assert [told.count(word) for word in ("ops/look", "GPU-1", "writing")] == [1, 1, 1]
    run("--state", str(state))
    assert "ops/look" not in capsys.readouterr().out
