"""The campaign as a job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from actors import handles
from actors.cluster import Cluster
from fleet.cli.main import main
from jobs.scrub import new_run_id, stoppable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_the_campaign_to_stop(number: signal.Signals) -> None:
    """E2: SIGINT and SIGTERM stop in order, a second one at once, and handlers are given back."""
    earlier = signal.getsignal(number)
    with stoppable() as stopped:
        assert not stopped.is_set()
        os.kill(os.getpid(), number)
        assert stopped.wait(5.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is earlier


def test_run_ids_sort_by_time_and_differ() -> None:
    """A run id is a UTC time and something that tells two of the same second apart."""
    assert re.fullmatch(r"19700101-000001-[0-9a-f]{4}", new_run_id(1.0))
    assert len({new_run_id(1.0) for _ in range(50)}) > 1


@pytest.mark.ray
def test_a_fleet_is_scrubbed_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E1, E2, E3, E6: `fleet scrub` certifies every device; evidence and audit agree afterwards."""
    command = [sys.executable, "-m", "fleet.cli.main", "scrub", "--json"]
    fleet = ["--simulate", "2x2", "--memory", "8MiB", "--state", str(tmp_path)]
    done = subprocess.run(
        [*command, *fleet], check=False, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["exit_reason"] == "complete"
    assert document["simulated"]
    assert [device["outcome"] for device in document["devices"]] == ["certified"] * 4
    for device in document["devices"]:
        figures = device["bytes"]
        assert figures["total"] == sum(figures[k] for k in ("reserved", "covered", "residual"))
        assert device["certificate"].startswith("sha256:")
        assert f"{device['node']}/{device['device']}: certified" in done.stderr
    state = ["--state", str(tmp_path)]
    assert main(["evidence", "verify", *state]) == 0
    assert main(["audit", *state]) == 0
    assert main(["status", *state]) == 0
    capsys.readouterr()
    assert main(["runs", document["run"], *state, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["state"], len(record["results"])) == ("finished", 4)


@pytest.mark.ray
def test_a_fleet_is_scrubbed_by_a_submitted_job(
    ray_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E2: `fleet scrub --address http://...` submits a job, follows it and ends as it ends."""
    fleet = ["--simulate", "1x1", "--memory", "8MiB", "--state", str(tmp_path)]
    code = main(["scrub", "--address", ray_cluster.dashboard, *fleet, "--json"])
    found = capsys.readouterr()
    # The job's actors outlive it on purpose; the next test wants their names.
    ray.kill(handles.find_coordinator().handle)
    for node in handles.find_nodes():
        ray.kill(node.handle)
    assert code == 0, found.err
    assert json.loads(found.out)["totals"]["outcomes"] == {"certified": 1}
    assert "node-01/gpu-0: certified" in found.err
