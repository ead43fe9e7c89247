"""Who has a simulated device open."""

from __future__ import annotations

import os
from pathlib import Path

from fleet.core.processes import start_time
from fleet.devices.simulated import clients
from fleet.devices.simulated.registers import Client, Register, Registers
from tests.fleet.devices.wipe.orders import eventually, one_file


def test_this_process_is_a_client_by_pid_and_start_time() -> None:
    """A client is recognised also when its pid is used again."""
    mine = clients.own(["u/all"])
    assert (mine.pid, mine.start_time) == (os.getpid(), start_time(os.getpid()))


def test_only_living_clients_of_the_units_count() -> None:
    """Dead ones, pids of somebody else, and clients of other partitions are not holders."""
    mine = clients.own(["u/m0"])
    earlier = Client(mine.pid, mine.start_time - 1, "earlier", ["u/m0"])
    register = Register(clients=[mine, earlier])
    assert clients.alive(register, ["u/m0", "u/m1"]) == [mine]
    assert clients.alive(register, ["u/m1"]) == []
    clients.forget_dead(register)
    assert register.clients == [mine]


def test_a_client_enters_the_list_once(tmp_path: Path) -> None:
    """The one who starts a process and the process itself both enter it."""
    registers = Registers(tmp_path / "r.json")
    mine = clients.own(["u/all"])
    clients.enter(registers, mine)
    clients.enter(registers, mine)
    assert registers.read().clients == [mine]


def test_a_started_process_is_real_and_can_be_ended(tmp_path: Path) -> None:
    """It holds the file open in a session of its own, and is ended by pid and start time."""
    path, registers = tmp_path / "memory", Registers(tmp_path / "r.json")
    path.write_bytes(bytes(65536))
    pid = clients.start(registers, one_file(path), name="tenant", units=["u/all"], seconds=60)
    try:
        assert os.getsid(pid) == pid
        assert eventually(lambda: str(path) in Path(f"/proc/{pid}/maps").read_text())
        assert Path(f"/proc/{pid}/comm").read_text().strip() == "tenant"
    finally:
        ended = clients.stop(registers.read().clients)
    assert ended == [pid]
    assert eventually(lambda: start_time(pid) is None)


def test_what_the_simulation_did_not_start_is_never_ended() -> None:
    """A client that came by itself, such as a wipe worker, is not killed."""
    assert clients.stop([clients.own(["u/all"])]) == []
