"""Keeps a simulated device open: ``python -m ...holder SECONDS REGISTER CLIENT FILE...``.

It plays a tenant, a daemon, or what a wedged worker leaves behind, and ends by itself.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fleet.core.processes import rename, start_time
from fleet.devices.simulated.clients import enter
from fleet.devices.simulated.registers import Client, Registers


def main(arguments: Sequence[str]) -> None:
    """Enter the list of clients, then keep the memory files open and mapped for SECONDS."""
    seconds, register, text, *files = arguments
    client = Client(**json.loads(text))
    pid = os.getpid()
    rename(client.name)
    with ExitStack() as held:
        opened = [held.enter_context(Path(path).open("rb")) for path in files]
        enter(Registers(Path(register)), replace(client, pid=pid, start_time=start_time(pid) or 0))
        for file in opened:
            mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ)
            held.enter_context(mapped)
        time.sleep(float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
