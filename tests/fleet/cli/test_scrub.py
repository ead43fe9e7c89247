"""`fleet scrub` as far as it needs no Ray."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.core.messages import DeviceResult, Outcome
from fleet.stores.base import RunRecord
from fleet.wiring import adapters
from tests.fleet.cli.fleets import certify


class JobServer(BaseHTTPRequestHandler):
    """Ray's job server as far as a submission needs it: it takes a job, and the job ends with 7."""

    taken: list[str]

    def do_GET(self) -> None:
        """The version, and how the job is; it has no log."""
        if self.path == "/api/version":
            return self._answer({"ray_version": "2.60.0", "version": "4", "ray_commit": "x"})
        if self.path.endswith("/logs/tail"):
            return self.send_error(404)
        job = {"type": "SUBMISSION", "status": "FAILED", "entrypoint": "x", "driver_exit_code": 7}
        return self._answer(job)

    def do_POST(self) -> None:
        """A job."""
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.taken.append(given["entrypoint"])
        self._answer({"job_id": "j", "submission_id": given["submission_id"]})

    def log_message(self, *told: object) -> None:
        """Nothing."""

    def _answer(self, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def job_server() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the entry points it was given."""
    taken: list[str] = []
    handler = type("Handler", (JobServer,), {"taken": taken})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", taken
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run"],
        ["--yes"],
        ["--select", "device=gpu-0,node~n *"],
        ["--json", "--yes", "--simulate", "1x2", "--memory", "8MiB"],
        ["--resume", "run-1", "--profile", "lab", "--state", "/a b"],
    ],
)
def test_f40_a_submitted_scrub_is_asked_what_was_typed(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F40: an operator's word covers exactly the devices that were listed, also where a job carries
    it to a running Ray: every option of the command reaches the job, and none that was not given;
    its exit code is the job's."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    with job_server() as (address, taken):
        assert main(["scrub", "--address", address, "--operator", "me", *words]) == 7
    (entry,) = taken
    found = shlex.split(entry)
    assert found[:4] == ["python", "-P", "-m", "jobs.scrub"]
    assert found[-2:] == ["--address", "auto"]
    given = found[4:-2]
    assert given[given.index("--settings-json") :][:2] == ["--settings-json", "{}"]
    assert sorted(given) == sorted([*words, "--operator", "me", "--settings-json", "{}"])


def test_f40_settings_of_this_side_reach_a_submitted_scrub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F40: limits of the policy file and of the command line go with the job, whose machine has no
    such file."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    policy = tmp_path / "policy.toml"
    policy.write_text("[campaign]\nattempts = 3\n")
    line = ["scrub", "--policy", str(policy), "--max-parallel", "3", "--operator", "me"]
    with job_server() as (address, taken):
        assert main([*line, "--address", address]) == 7
    given = shlex.split(taken[0])
    campaign = json.loads(given[given.index("--settings-json") + 1])["campaign"]
    assert campaign == {"attempts": 3, "max_parallel": 3}
    assert "--policy" not in given
    assert "--max-parallel" not in given


def test_a_mistake_in_a_selection_is_told_before_anything_starts(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong --select is an error that names each problem, and starts no Ray."""
    assert main(["scrub", "--state", str(state), "--select", "nod=x"]) == 2
    assert "'node'" in capsys.readouterr().err


def test_a_size_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong --memory is an error that shows how to write one, and makes no fleet."""
    arguments = ["scrub", "--simulate", "1x1", "--memory", "64 miles", "--state", str(tmp_path)]
    assert main(arguments) == 2
    assert "64MiB" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_the_plan_and_touches_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--dry-run lists the waves and starts no wipe."""
    assert main(["scrub", "--dry-run", "--max-parallel", "3", "--state", str(state), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"]
    assert [len(wave) for wave in document["waves"]] == [3, 1]
    assert main(["devices", "--state", str(state), "--json"]) == 0
    states = {device["state"] for device in json.loads(capsys.readouterr().out)["devices"]}
    assert states <= {"HELD", "DIRTY"}


def resumable(state: Path) -> str:
    """A run over node-01 of which gpu-0 is certified, and that was stopped then."""
    certify(state)
    coordinator = adapters.open_coordinator(adapters.plan_fleet(state).coordinator)
    (node, *_) = adapters.plan_fleet(state).nodes
    with closing(adapters.open_node(node)) as service:
        device = service.view().devices[0]
    result = DeviceResult(
        node="node-01",
        device=device.name,
        uuid=device.uuid,
        outcome=Outcome.CERTIFIED,
        state="CLEAN",
        certificate=device.certificate,
    )
    coordinator.open(RunRecord(id="r1", started_at=1.0, plan={"select": "node=node-01"}))
    coordinator.append("r1", [result])
    coordinator.close("r1", "stopped")
    return "r1"


def test_f40_the_plan_of_a_resumed_run_is_the_runs_own(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F40: an operator's word covers what was listed: --dry-run with --resume lists what that run
    would go on with, and a selection of another kind beside it is refused, not left unread."""
    run = resumable(state)
    capsys.readouterr()
    line = ["scrub", "--resume", run, "--state", str(state)]
    assert main([*line, "--dry-run", "--json"]) == 0
    waves = json.loads(capsys.readouterr().out)["waves"]
    assert [(one["node"], one["device"]) for wave in waves for one in wave] == [
        ("node-01", "gpu-1")
    ]
    for words in (["--select", "device=gpu-0"], ["--max-parallel", "1"]):
        assert main([*line, *words]) == 2
        assert "keeps its own selection" in capsys.readouterr().err
