"""Rules of the stand-in as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path


def wait_for(path: Path, *, deadline_s: float = 20.0) -> str:
    """The text of a file once it is there."""
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        if path.exists():
            return path.read_text()
        time.sleep(0.02)  # a process has to start
    raise AssertionError(f"{path.name} did not appear in {deadline_s:g} s")


def test_it_serves_until_its_input_ends(tmp_path: Path) -> None:
    """Port and kubeconfig are written whole; the token is the one asked for."""
    port_file, kubeconfig = tmp_path / "port", tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "tests.lab.apiserver", "--port-file", str(port_file),
               "--kubeconfig", str(kubeconfig), "--token", "t", "--until-eof"]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[3])
    try:
        port = int(wait_for(port_file))
        assert json.loads(kubeconfig.read_text())["users"][0]["user"] == {"token": "t"}
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/api/v1/nodes", headers={"Authorization": "Bearer t"})
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
