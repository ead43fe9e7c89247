"""Processes that have a simulated accelerator open, and real ones started to play that part."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import fleet
from fleet.core.processes import MARKER, start_time
from fleet.devices.simulated.memory import Memory
from fleet.devices.simulated.registers import Client, Register, Registers


def own(units: Iterable[str]) -> Client:
    """This process as a client."""
    pid = os.getpid()
    return Client(
        pid=pid,
        start_time=start_time(pid) or 0,
        name="fleet-wipe" if MARKER in os.environ else Path(sys.argv[0]).name or "python",
        units=list(units),
        worker_id=os.environ.get(MARKER, ""),
    )


def alive(register: Register, units: Iterable[str]) -> list[Client]:
    """Living clients that have one of these units open."""
    wanted = set(units)
    return [
        client
        for client in register.clients
        if wanted.intersection(client.units) and start_time(client.pid) == client.start_time
    ]


def forget_dead(register: Register) -> None:
    """Drop clients that are gone."""
    register.clients = [
        client for client in register.clients if start_time(client.pid) == client.start_time
    ]


def start(
    registers: Registers,
    memory: Memory,
    *,
    name: str,
    units: Iterable[str],
    seconds: float,
    fault: str = "",
) -> int:
    """Start a real process that keeps the memory of `units` open for `seconds`; returns its pid.

    It leads a session of its own and outlives its parent. For the fault `wedge` it carries the
    worker's marker, as something a worker left behind does; otherwise it carries none.
    """
    environment = dict(os.environ)
    if fault != "wedge":
        environment.pop(MARKER, None)
    environment["PYTHONPATH"] = str(Path(fleet.__file__).parent.parent)
    client = Client(
        pid=0,
        start_time=0,
        name=name,
        units=[str(unit) for unit in units],
        worker_id=environment.get(MARKER, ""),
        fault=fault,
        started_by_us=True,
    )
    files = map(str, memory.only(client.units).paths)
    command = (sys.executable, "-P", "-m", "fleet.devices.simulated.holder")
    pid = os.posix_spawn(
        sys.executable,
        (*command, str(seconds), str(registers.path), json.dumps(asdict(client)), *files),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
    )
    enter(registers, replace(client, pid=pid, start_time=start_time(pid) or 0))
    return pid


def enter(registers: Registers, client: Client) -> None:
    """Put a client on the list once: the one who starts it does, and it does itself.

    Both, because whoever starts it may be killed before it comes to that.
    """
    with registers.change() as register:
        forget_dead(register)
        if all(known.pid != client.pid for known in register.clients):
            register.clients.append(client)


def stop(clients: Iterable[Client]) -> list[int]:
    """Kill clients the simulation itself started; returns the pids killed."""
    ended = []
    for client in clients:
        if client.started_by_us and start_time(client.pid) == client.start_time:
            with suppress(ProcessLookupError):
                os.kill(client.pid, signal.SIGKILL)
                ended.append(client.pid)
    return ended
