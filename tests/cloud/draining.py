"""Copies a node's ledger and dies on purpose: ``python -m tests.cloud.draining STATE NODE URL N``.

The process kills itself (SIGKILL) right after its N-th put, 0: never. Its endpoint is the
environment's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from fleet.core.clock import SystemClock
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.replication import Replicator
from fleet.stores.s3 import S3Archive
from tests.cloud.buckets import opened


def drain(archive: S3Archive, state: Path, node: str, *, dies_after: int) -> str:
    """Copy; "" once all was copied, else what was in the way."""
    puts = 0

    def count(**_: Any) -> None:
        nonlocal puts
        puts += 1
        if puts == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    events: Any = archive.client.meta.events
    events.register("after-call.s3.PutObject", count)
    feed = LedgerFeed(state, node, place=archive.place)
    copies = Replicator(feed, lambda: archive, clock=SystemClock())
    if copies.drain():
        return ""
    view = copies.view()
    return view.error or "; ".join(view.aside) or f"{view.backlog} are left"


def killed(state: Path, node: str, *, endpoint: str, bucket: str, after: int) -> None:
    """Run it in a process that is killed. Raises unless it was."""
    command = [sys.executable, "-m", "tests.cloud.draining", str(state), node, bucket, str(after)]
    done = subprocess.run(command, env={**os.environ, "AWS_ENDPOINT_URL_S3": endpoint}, check=False)
    if done.returncode != -signal.SIGKILL:
        raise AssertionError(f"the drain ended with {done.returncode}")


def main() -> None:
    """Copy, and die."""
    state, node, bucket, after = sys.argv[1:]
    drain(opened("", bucket), Path(state), node, dies_after=int(after))


if __name__ == "__main__":
    main()
