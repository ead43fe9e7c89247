"""A plugin in a process of its own: ``python -m tests.node_plugin.serving ROOT INSTANCE``.

It prints a line when it serves, stops on SIGTERM with 2 s of grace, and may be killed at any time.
A claim named ``slow-<s>`` takes that long to prepare.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from pathlib import Path

from fleet.plugin.requests import AskedClaim, PreparedClaim
from tests.node_plugin.standins import ActedClaims, device_of, plugin

GRACE_S = 2.0


def act(claim: AskedClaim) -> PreparedClaim:
    """Prepare, slowly where the claim's name says so."""
    if claim.uid.startswith("slow-"):
        threading.Event().wait(float(claim.uid.removeprefix("slow-")))
    return device_of(claim)


async def serve(root: Path, instance: str) -> None:
    """Serve until SIGTERM."""
    server = plugin(root, ActedClaims(act), instance=instance)
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    await server.start()
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await asked_to_stop.wait()
    await server.stop(GRACE_S)
    sys.stdout.write("stopped\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
