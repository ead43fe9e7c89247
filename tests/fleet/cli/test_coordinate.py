"""`fleet coordinate` as a process: it binds, and ends as it is told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

from typer.testing import CliRunner

from fleet.cli.main import build
from fleet.control.binding import liveness
from fleet.core import errors
from fleet.wiring.plans import record_kubeconfig
from tests.fleet.wiring.test_coordinator import Host, host

__all__ = ["host"]
END_S = 15.0


def test_it_binds_until_it_is_told_to_end(host: Host) -> None:
    """B1, E5: a claim is proven ready; SIGTERM ends it in good order, exit 0. E4: every line it
    logs is one JSON object where that is asked for."""
    asked = host.pending("a")
    command = [sys.executable, "-m", "fleet.cli.main", "coordinate"]
    command += ["--state", str(host.site.state), "--log-format", "json"]
    record_kubeconfig(host.site.state, host.kubeconfig)  # as the plugin does
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            host.until(lambda: host.reading(asked).bound, lambda: time.sleep(0.02), said=command)
            found = liveness.read(host.site.cluster, "fleetscrub").found
            assert found is not None
            assert found.pid == process.pid
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=END_S)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert liveness.read(host.site.cluster, "fleetscrub") == liveness.Signs()
    lines = [json.loads(line) for line in said.splitlines()]
    assert "claims are reconciled" in [line["message"] for line in lines]
    assert {line["service"] for line in lines} == {"coordinator"}
    assert not any("exception" in line for line in lines)


def test_a_selector_that_is_none_is_refused(host: Host) -> None:
    """E7: it is told before anything runs, instead of a coordinator that has no node."""
    asked = ["coordinate", "--state", str(host.site.state), "--nodes", "pool in"]
    found = CliRunner().invoke(build(), asked)
    assert isinstance(found.exception, errors.InputInvalid)
    assert "'pool in'" in found.exception.detail


def test_a_format_nobody_knows_is_refused() -> None:
    """E4: a mistake in an option is told at once, with what to write."""
    asked = ["coordinate", "--log-format", "xml"]
    found = CliRunner().invoke(build(), asked)
    assert isinstance(found.exception, errors.InputInvalid)
    assert found.exception.remedy == "write text or json"


def test_a_directory_without_a_fleet_is_refused() -> None:
    """Exit 2 with what to do, at once: a service that waits for ever would hide it."""
    found = CliRunner().invoke(build(), ["coordinate", "--state", "/nonexistent/state"])
    assert isinstance(found.exception, errors.DriverAbsent)
