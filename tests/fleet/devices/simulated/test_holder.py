"""The process that plays a tenant."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from fleet.devices.simulated.registers import Client, Registers


def test_it_enters_the_list_by_itself_and_ends_by_itself(tmp_path: Path) -> None:
    """Whoever started it may be dead: the list still names it, with its own pid."""
    memory, register = tmp_path / "memory", tmp_path / "r.json"
    memory.write_bytes(bytes(65536))
    client = json.dumps(asdict(Client(0, 0, "left-behind", ["u/all"])))
    command = (sys.executable, "-m", "fleet.devices.simulated.holder")
    with subprocess.Popen((*command, "0.05", str(register), client, str(memory))) as process:
        assert process.wait(20) == 0
    (found,) = Registers(register).read().clients
    assert (found.pid, found.name) == (process.pid, "left-behind")
