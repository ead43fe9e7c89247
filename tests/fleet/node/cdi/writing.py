"""A writer of specs that goes on until it is killed, for the tests that kill it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import BootId, ClaimUid, Token, Uuid
from fleet.devices.base import DeviceNode, Grant
from fleet.node.cdi.directory import SpecDirectory

CLAIMS = (
    ClaimUid("0b1c2d3e-aaaa-4bbb-8ccc-000000000001"),
    ClaimUid("9b1c2d3e-aaaa-4bbb-8ccc-000000000002"),
)
NULL = DeviceNode("/dev/fleetsim/null", "c", 1, 3, host_path="/dev/null")


def grow(specs: SpecDirectory, number: int) -> None:
    """One of many steps: each of two claims is written, written anew and removed, in turn.

    A spec has one to four devices, each of which says how many there are.
    """
    turn, place = divmod(number, len(CLAIMS))
    uid = CLAIMS[place]
    if turn % 3 == 2:
        specs.remove(uid)
        return
    count = 1 + turn % 4
    devices = tuple(Uuid(f"SIM-{place}{index}") for index in range(count))
    of = Claim(uid, ClaimState.PREPARING, devices, (), Token(1, 1), BootId("b"))
    grant = Grant((NULL,), (), {"COUNT": str(count), "NUMBER": str(number)})
    specs.write(of, dict.fromkeys(devices, grant))


def main(directory: Path) -> None:
    """Write and remove specs for ever; says once that it has begun."""
    os.umask(0o077)
    specs = SpecDirectory(directory)
    number = 0
    while True:
        grow(specs, number)
        number += 1
        if number == 1:
            sys.stdout.write("begun\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
