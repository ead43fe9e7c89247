"""A real Prometheus for tests: its rules checked, its tests run, itself scraping."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped] # ships no types

from tests.alerts import RULES
from tests.debian import Program
from tests.metrics_page import RELABEL

SCRAPE_S = 1
"""Period, s, of its scrapes."""
ASK_S = 5.0


def promtool(tool: Program, *arguments: str) -> str:
    """What promtool says. Raises AssertionError with it where it finds fault."""
    done = subprocess.run(
        [str(tool.path), *arguments], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs, on loopback."""

    port: int

    def api(self, path: str, **asked: str) -> Any:
        """The data of an answer of its API."""
        query = urllib.parse.urlencode(asked)
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=ASK_S) as answer:
            return json.load(answer)["data"]

    def ask(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Labels and value of each series of an expression now."""
        found = self.api("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def names(self, job: str) -> set[str]:
        """Names of the series that the last scrape of a job had."""
        return {
            labels["__name__"] for labels, _ in self.ask(f'{{__name__=~"fleet_.+", job="{job}"}}')
        }


@contextmanager
def running(
    program: Program, directory: Path, targets: Mapping[str, Sequence[str]]
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `targets` (addresses by job) with our rules, until the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": list(addresses)}],
                **yaml.safe_load(RELABEL),
            }
            for job, addresses in targets.items()
        ],
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                str(program.path),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'store'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=program.environment,
        )
    try:
        _await(process, port, directory / "log")
        yield Prometheus(port)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30.0
    while True:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=ASK_S),
        ):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        threading.Event().wait(0.1)
