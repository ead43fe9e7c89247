"""One wipe in a process of its own: ``python -m fleet.devices.wipe.worker``.

Protocol, one JSON document a line. In: the order with the parent's pid; later the bare word ``go``,
sent once the parent has written down who we are (end of input means: leave). Out: ``ready``,
``progress`` at most ten times a second, ``result``, and ``end`` with our id; a report without that
end counts as none.

The process dies with the thread that started it, so that no worker outlives a killed service. Its
imports are few: a fleet starts one of these per device, and start-up is paid each time.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from fleet.core.clock import SystemClock
from fleet.core.errors import FleetError
from fleet.core.processes import MARKER, start_time, tie
from fleet.devices import registry
from fleet.devices.wipe import engine
from fleet.devices.wipe.plan import WipeOrder

GO = "go\n"
PROGRESS_EVERY_S = 0.1
REFUSED = 3
"""Exit code when the worker left before it touched anything."""


def main(orders: TextIO, reports: TextIO, backend: str = "") -> int:
    """Serve one order; returns the exit code. `backend`: loaded while the order is waited for."""
    tie()
    registry.preload(backend)
    line = orders.readline()
    if not line:
        return REFUSED
    try:
        envelope = json.loads(line)
        order = WipeOrder.from_json(envelope["order"])
        parent = int(envelope["parent"])
    except (ValueError, KeyError, TypeError, FleetError) as error:
        _say(reports, {"refused": f"the order cannot be understood: {error}"})
        return REFUSED
    if not tie(parent):
        return REFUSED  # the parent died before the signal was armed
    if os.environ.get(MARKER) != order.worker_id:
        _say(reports, {"refused": f"the environment does not carry {MARKER} of this order"})
        return REFUSED
    _say(reports, {"ready": {"pid": os.getpid(), "start_time": start_time(os.getpid())}})
    if orders.readline() != GO:
        return REFUSED
    return _serve(order, reports)


def _serve(order: WipeOrder, reports: TextIO) -> int:
    clock = SystemClock()
    try:
        backend = registry.build(order.backend, order.settings)
    except FleetError as error:
        _say(reports, {"refused": str(error)})
        return REFUSED
    told = _Told(reports, clock)
    result = engine.run(order, backend, clock, told.progress)
    told.last()
    _say(reports, {"result": result.as_json()})
    _say(reports, {"end": order.worker_id})
    return 0


class _Told:
    """Progress lines, few enough and never waiting for a reader."""

    def __init__(self, reports: TextIO, clock: SystemClock) -> None:
        self._reports = reports
        self._clock = clock
        self._last = 0.0
        self._phase = ""
        self._untold: tuple[str, int, int] | None = None

    def progress(self, phase: str, done: int, total: int) -> None:
        """Say how far the wipe is: at every new phase, else if the last time was long enough ago.

        A phase is told at once because a worker that hangs never tells anything later.
        """
        now = self._clock.monotonic()
        self._untold = (phase, done, total)
        if now - self._last < PROGRESS_EVERY_S and phase == self._phase:
            return
        room = select.poll()
        room.register(self._reports, select.POLLOUT)
        if not room.poll(0):
            return  # nobody reads: memory must not wait for a full pipe
        self._last, self._phase = now, phase
        self.last()

    def last(self) -> None:
        """Say what has not been said yet."""
        if self._untold is not None:
            _say(self._reports, {"progress": self._untold})
        self._untold = None


def _say(reports: TextIO, document: Mapping[str, Any]) -> None:
    reports.write(json.dumps(document) + "\n")
    reports.flush()


if __name__ == "__main__":
    status = main(sys.stdin, sys.stdout, *sys.argv[1:2])
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking the interpreter apart takes as long as some wipes, and the device waits for our end.
    os._exit(status)
