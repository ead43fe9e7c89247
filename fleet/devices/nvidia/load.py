"""Readings taken while the device works: link speed, clocks and limits show only then.

A device that waits for the host is idle within microseconds, and reading counters takes the host
far longer. So whoever reads does that in a thread of its own, while this one keeps work queued.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from fleet.core.errors import BackendFailed
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia.cuda import POLL_S

LIMIT_S = 30.0
"""Time, s, that readings under load may take: a driver that needs longer does not answer."""


def read_under(
    read: Callable[[], Readings], traffic: Iterator[None], *, limit_s: float = LIMIT_S
) -> Readings:
    """What `read` gives while `traffic`, whose steps keep the device busy, goes on.

    The first step comes before the reading. Raises what `read` or a step raises, and
    `BackendFailed` after `limit_s`; in every other case nothing reads any more on return.
    """
    answer: Future[Readings] = Future()

    def reading() -> None:
        try:
            answer.set_result(read())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            answer.set_exception(error)

    next(traffic, None)
    limit = time.monotonic() + limit_s
    reader = threading.Thread(target=reading, name="readings under load", daemon=True)
    reader.start()
    try:
        while not answer.done():
            if time.monotonic() > limit:
                break
            next(traffic, None)
            time.sleep(POLL_S)
    finally:
        reader.join(max(limit - time.monotonic(), 0.0))
    if not answer.done():
        raise BackendFailed(
            f"readings under load did not come within {limit_s:g} s",
            remedy="check the kernel log for the driver; reset the device or reboot",
        )
    return answer.result()
