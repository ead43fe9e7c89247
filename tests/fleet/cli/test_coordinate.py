"""`fleet coordinate` as a process: it binds, and ends as it is told."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

from typer.testing import CliRunner

from fleet import errors
from fleet.binding import alive
from fleet.cli.main import build
from fleet.planning import record_kubeconfig
from tests.fleet.test_coordinating import Host, host

__all__ = ["host"]
END_S = 15.0


def test_it_binds_until_it_is_told_to_end(host: Host) -> None:
    """B1, E5: a claim is proven ready; SIGTERM ends it in good order, exit 0."""
    asked = host.pending("a")
    command = [sys.executable, "-m", "fleet.cli.main", "coordinate"]
    command += ["--state", str(host.site.state)]
    record_kubeconfig(host.site.state, host.kubeconfig)  # as the plugin does
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            host.until(lambda: host.reading(asked).bound, lambda: time.sleep(0.02), said=command)
            found = alive.read(host.site.state)
            assert found is not None
            assert found.pid == process.pid
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=END_S)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert alive.read(host.site.state) is None
    assert re.search(r"^\d{4}-\d\d-\d\d \S+ coordinate: claims are reconciled", said, re.MULTILINE)
    assert "Traceback" not in said


def test_a_directory_without_a_fleet_is_refused() -> None:
    """Exit 2 with what to do, at once: a service that waits for ever would hide it."""
    found = CliRunner().invoke(build(), ["coordinate", "--state", "/nonexistent/state"])
    assert isinstance(found.exception, errors.DriverAbsent)
