"""Why a node cannot be opened now, told beside its door by who tries to (B14, B72).

A standby that cannot open its node knows the cause and has no door to tell it at. It keeps the
cause in a file while it goes on trying; whoever finds nobody at the door reads it there.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.core.disk import read_regular

FILE = "door.trouble"
FRESH_S = 15.0
"""Age, s, up to which the cause counts: it is told anew with every try."""
MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Told:
    """What keeps the process `pid` from opening the node."""

    pid: int
    detail: str
    remedy: str


def tell(door: Path, error: errors.FleetError | OSError) -> None:
    """Tell the cause; where not even that can be written nobody is told."""
    detail, remedy = str(error), "repair access to the node's state directory"
    if isinstance(error, errors.FleetError):
        detail, remedy = error.detail, error.remedy
    found = {
        "pid": os.getpid(),
        "detail": detail,
        "remedy": remedy,
        "at": time.clock_gettime(time.CLOCK_BOOTTIME),
        "boot_id": str(kernel_boot_id()),
    }
    fresh = door.with_name(f".{FILE}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
            file.write(json.dumps(found))
        fresh.replace(door.with_name(FILE))


def end(door: Path) -> None:
    """The node was opened."""
    with suppress(OSError):
        door.with_name(FILE).unlink(missing_ok=True)


def read(door: Path) -> Told | None:
    """What is told of the node whose door that is; None: nothing, or nothing of late."""
    try:
        found = json.loads(read_regular(door.with_name(FILE), most_bytes=MOST_BYTES))
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - float(found["at"])
        if found["boot_id"] != str(kernel_boot_id()) or not 0 <= age_s <= FRESH_S:
            return None
        return Told(int(found["pid"]), str(found["detail"]), str(found["remedy"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
