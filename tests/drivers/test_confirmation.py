"""What an operator's yes covers, on two stand-in GPUs: the devices that were listed, no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.stage import ROOT, Stage
from tests.lab.kubelet.narration import Telling


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Two real-looking GPUs that nobody has decided about; the environment is given back."""
    before = dict(os.environ)
    stage = Stage(tmp_path, Telling(lambda _: None))
    stage.devices("--policy", str(stage.policy))
    yield stage
    os.environ.clear()
    os.environ.update(before)


def fleet(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    """A verb with nobody at the terminal."""
    return subprocess.run(
        [sys.executable, "-m", "fleet.cli.main", *words, "--state", str(stage.state)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def states(stage: Stage) -> dict[str, str]:
    """State of each device, by UUID."""
    return {one["uuid"]: one["state"] for one in stage.devices().values()}


@pytest.mark.ray
def test_f40_a_scrub_adopts_only_what_it_selects_and_lists(stage: Stage) -> None:
    """F40: an operator's word covers exactly the devices that were listed: with --select and --yes
    one GPU is adopted and scrubbed, every other stays HELD and is not on the list."""
    chosen = f"uuid={stage.whole.uuid}"
    done = fleet(
        stage,
        "scrub",
        "--policy",
        str(stage.policy),
        "--select",
        chosen,
        "--yes",
        "--operator",
        "me",
    )
    assert done.returncode == 0, done.stderr
    assert stage.whole.uuid in done.stderr
    assert stage.divided.uuid not in done.stderr
    assert "1 of them are HELD: going on is your word" in done.stderr
    found = states(stage)
    assert found.pop(stage.whole.uuid) == "CLEAN"
    assert set(found.values()) == {"HELD"}


def test_f40_adoption_names_its_devices(stage: Stage) -> None:
    """F40: an operator's word covers exactly the devices that were listed: `fleet node adopt` asks
    before it takes all that are HELD, and with --device adopts that one."""
    done = fleet(stage, "node", "adopt")
    assert done.returncode == 2
    assert stage.whole.uuid in done.stderr
    assert "say --yes" in done.stderr
    assert set(states(stage).values()) == {"HELD"}
    done = fleet(stage, "node", "adopt", "--device", stage.whole.uuid, "--json")
    assert [one["uuid"] for one in json.loads(done.stdout)["devices"]] == [stage.whole.uuid]
    found = states(stage)
    assert found.pop(stage.whole.uuid) != "HELD"
    assert set(found.values()) == {"HELD"}
    done = fleet(stage, "node", "adopt", "--yes")
    assert (done.returncode, "HELD" in states(stage).values()) == (0, False)
