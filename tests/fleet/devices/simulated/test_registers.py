"""The register file: changed by many, never half."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.devices.simulated.registers import Client, Fault, Registers


def test_content_survives(tmp_path: Path) -> None:
    """Readings, faults and clients are found again by another process."""
    registers = Registers(tmp_path / "r.json")
    with registers.change() as register:
        register.values["aer_fatal"] = 2
        register.faults["hang"] = Fault("hang", ["u/all"], 1, 3, {"at": 0.5})
        register.clients.append(Client(1, 2, "python", ["u/all"]))
        register.lost = True
    assert Registers(tmp_path / "r.json").read() == register


def test_no_change_of_many_at_once_is_lost(tmp_path: Path) -> None:
    """Writers wait for each other: every single rise counts."""
    path = tmp_path / "r.json"

    def rise(_turn: int) -> None:
        with Registers(path).change() as register:
            register.resets += 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(rise, range(40)))
    assert Registers(path).read().resets == 40


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    """An error inside a change leaves the content as it was."""
    registers = Registers(tmp_path / "r.json")
    with registers.change() as register:
        register.resets = 1
    with pytest.raises(ZeroDivisionError):
        _fail_within(registers)
    assert registers.read().resets == 1


def _fail_within(registers: Registers) -> None:
    with registers.change() as register:
        register.resets = 2
        register.resets //= 0


@pytest.mark.parametrize("text", ["", "null", "{}", '{"values": 1}'])
def test_a_damaged_file_is_a_failed_back_end(tmp_path: Path, text: str) -> None:
    """Damage is not read as a healthy device."""
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(BackendFailed, match=r"r\.json"):
        Registers(path).read()
