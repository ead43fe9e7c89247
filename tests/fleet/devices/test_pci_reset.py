"""Resetting one function, with the kernel's answers scripted on a fake tree."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DeviceLost
from fleet.core.model import Process, ProcessKind
from fleet.devices import pci_reset
from fleet.devices.pci_reset import NOTES, Terms
from fleet.devices.sysfs import Function, Ids
from tests.drivers.pci_tree import GAUDI2, H100, SWITCH, TPU_V5E, Card, Kernel, PciTree

PORT, PLACE = "0000:20:00.0", "0000:3b:00.0"
TERMS = Terms(("flr", "device_specific"), settle_s=0.0)
FREE = replace(GAUDI2, driver="")
AGENT = Process(42, "nv-hostengine", ProcessKind.INFRASTRUCTURE)


def nobody() -> Sequence[Process]:
    """Nobody has it open."""
    return ()


class Bench:
    """One card and the kernel below it."""

    def __init__(self, root: Path, card: Card) -> None:
        self.tree = PciTree(root)
        self.tree.add(PORT, SWITCH)
        self.function: Function = self.tree.add(PLACE, card, below=PORT)
        self.kernel = Kernel(self.tree)

    @property
    def acts(self) -> list[tuple[str, str]]:
        """What was written, by attribute."""
        return self.kernel.log

    @property
    def note(self) -> Path:
        """Where changes are noted."""
        return self.tree.root / NOTES / f"{PLACE}.json"


def test_a_free_function_is_reset_by_the_first_method_allowed(tmp_path: Path) -> None:
    """gpus-8.36, 5.3: method named, then 1; the list of methods is put back; nothing is left."""
    bench = Bench(tmp_path, replace(FREE, methods="bus device_specific flr"))
    outcome = pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert (outcome.done, outcome.method, outcome.detail) == (True, "flr", "")
    assert bench.acts == [
        ("reset_method", "flr"),
        ("reset", "1"),
        ("reset_method", "bus device_specific flr"),
    ]
    assert not bench.note.exists()


def test_without_a_reset_file_it_is_not_supported(tmp_path: Path) -> None:
    """gpus-8.36: the file is absent, so nothing is written and the answer is "not supported"."""
    bench = Bench(tmp_path, FREE)
    (bench.function.path / "reset").unlink()
    outcome = pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert not outcome.done
    assert outcome.detail.startswith("not supported")
    assert bench.acts == []


def test_a_method_policy_leaves_out_is_never_used(tmp_path: Path) -> None:
    """gpus-8.36, 5.3: a bus reset is offered and not allowed: refused, with both named."""
    bench = Bench(tmp_path, replace(FREE, methods="bus pm"))
    outcome = pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert not outcome.done
    assert "offers bus, pm" in outcome.detail
    assert bench.acts == []


def test_enotty_tries_the_next_method_and_then_fails(tmp_path: Path) -> None:
    """gpus-8.36: a method that ends with ENOTTY has failed; when all have, the reset has."""
    bench = Bench(tmp_path, replace(FREE, methods="flr device_specific"))
    bench.kernel.failing = {"flr"}
    done = pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert done.method == "device_specific"
    bench.kernel.failing = {"flr", "device_specific"}
    with pytest.raises(BackendFailed, match=r"flr: ENOTTY.*device_specific: ENOTTY"):
        pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert bench.function.reset_methods() == ("flr", "device_specific")


def test_a_holder_refuses_it_and_is_named(tmp_path: Path) -> None:
    """gpus-8.17: a daemon that may stay for a wipe may not for a reset."""
    bench = Bench(tmp_path, FREE)
    outcome = pci_reset.reset(bench.function, TERMS, lambda: (AGENT,), write=bench.kernel)
    assert (outcome.done, outcome.holders) == (False, (AGENT,))
    assert outcome.detail == "held by nv-hostengine (pid 42)"
    assert bench.acts == []


def test_a_holder_that_comes_while_it_is_unbound_refuses_it(tmp_path: Path) -> None:
    """gpus-8.17: holders are read again last of all; the driver is bound again."""
    bench = Bench(tmp_path, GAUDI2)
    answers = iter([(), (AGENT,)])
    terms = replace(TERMS, unbinds=True)
    outcome = pci_reset.reset(bench.function, terms, lambda: next(answers), write=bench.kernel)
    assert not outcome.done
    assert [name for name, _ in bench.acts] == ["unbind", "bind"]
    assert bench.function.driver == "habanalabs"


def test_a_bound_driver_refuses_it(tmp_path: Path) -> None:
    """gpus-8.36, 5.3: sysfs would reset under a bound driver's feet; we do not."""
    bench = Bench(tmp_path, GAUDI2)
    outcome = pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert not outcome.done
    assert "driver habanalabs is bound" in outcome.detail
    assert bench.acts == []


def test_a_driver_that_may_be_is_unbound_and_bound_again(tmp_path: Path) -> None:
    """gpus-5.3: unbind, reset, prove, bind, in this order."""
    bench = Bench(tmp_path, GAUDI2)
    terms = replace(TERMS, unbinds=True)
    assert pci_reset.reset(bench.function, terms, nobody, write=bench.kernel).done
    assert bench.acts == [
        ("unbind", PLACE),
        ("reset_method", "flr"),
        ("reset", "1"),
        ("reset_method", "flr bus"),
        ("bind", PLACE),
    ]
    assert bench.function.driver == "habanalabs"


def test_a_driver_that_stands_it_stays_bound(tmp_path: Path) -> None:
    """gpus-5.3: vfio-pci with nobody on it needs no unbinding."""
    bench = Bench(tmp_path, TPU_V5E)
    assert pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel).done
    assert "unbind" not in [name for name, _ in bench.acts]


def test_unbind_is_never_attempted_while_the_driver_counts_users(tmp_path: Path) -> None:
    """gpus-8.37, 10.13: unbindLock reads 0 after writing 1: an unbind would never return."""
    bench = Bench(tmp_path, H100)
    bench.tree.put(f"proc/driver/nvidia/gpus/{PLACE}/unbindLock", "0\n")
    terms = replace(TERMS, unbinds=True)
    bench.kernel.users = 1
    outcome = pci_reset.reset(bench.function, terms, nobody, write=bench.kernel)
    assert not outcome.done
    assert "unbindLock stays 0" in outcome.detail
    assert bench.acts == [("unbindLock", "1")]
    bench.kernel.users = 0
    assert pci_reset.reset(bench.function, terms, nobody, write=bench.kernel).done
    assert [name for name, _ in bench.acts[1:3]] == ["unbindLock", "unbind"]


def test_without_the_lock_file_nvidia_is_not_unbound(tmp_path: Path) -> None:
    """gpus-8.37: only hosts of virtual GPUs have the lock; elsewhere a bound GPU is left alone,
    with what to do instead, and an unbound one is reset."""
    bench = Bench(tmp_path, H100)
    terms = replace(TERMS, unbinds=True)
    outcome = pci_reset.reset(bench.function, terms, nobody, write=bench.kernel)
    assert not outcome.done
    assert "no unbind lock" in outcome.detail
    assert "hardware.reset_tool" in outcome.detail
    assert (bench.function.driver, bench.acts) == ("nvidia", [])
    bench.tree.unbind(PLACE)
    assert pci_reset.reset(bench.function, terms, nobody, write=bench.kernel).done
    assert "unbindLock" not in [name for name, _ in bench.acts]


def test_a_lock_is_given_back_where_the_driver_stays(tmp_path: Path) -> None:
    """gpus-8.37, B29: a lock kept would let nobody open the GPU: an unbind that failed, or a reset
    that was killed after it had the lock, gives it back."""
    bench = Bench(tmp_path, H100)
    lock = bench.tree.put(f"proc/driver/nvidia/gpus/{PLACE}/unbindLock", "0\n")
    bench.kernel.clings = True
    with pytest.raises(BackendFailed, match="unbinding nvidia failed"):
        pci_reset.reset(bench.function, replace(TERMS, unbinds=True), nobody, write=bench.kernel)
    assert bench.acts == [("unbindLock", "1"), ("unbind", PLACE), ("unbindLock", "0")]
    methods = " ".join(bench.function.reset_methods() or ())
    bench.tree.put(f"{NOTES}/{PLACE}.json", f'{{"methods": "{methods}", "driver": "nvidia"}}')
    lock.write_text("1\n")
    assert pci_reset.recover(bench.function, write=bench.kernel)
    assert lock.read_text().strip() == "0"


def test_virtual_functions_refuse_it(tmp_path: Path) -> None:
    """gpus-5.3: guests behind virtual functions are seen in no list of processes."""
    bench = Bench(tmp_path, FREE)
    bench.tree.write(PLACE, "sriov_numvfs", "2")
    outcome = pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert not outcome.done
    assert "2 virtual functions" in outcome.detail


def test_a_dead_function_is_not_reset(tmp_path: Path) -> None:
    """gpus-8.25: what reads ones is lost before anything is written."""
    bench = Bench(tmp_path, FREE)
    bench.tree.die(PLACE)
    with pytest.raises(DeviceLost, match="is dead"):
        pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert bench.acts == []


def test_one_that_does_not_come_back_is_lost(tmp_path: Path) -> None:
    """gpus-8.12, 5.3: the write succeeds and the function answers no more."""
    bench = Bench(tmp_path, FREE)
    bench.kernel.struck = lambda _: bench.tree.die(PLACE)
    with pytest.raises(DeviceLost, match="dead after its reset"):
        pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)


def test_one_that_leaves_the_bus_is_lost(tmp_path: Path) -> None:
    """gpus-8.12: a function that vanishes in its reset is lost, and nothing of it is restored."""
    bench = Bench(tmp_path, FREE)
    bench.kernel.struck = lambda _: bench.tree.remove(PLACE)
    with pytest.raises(DeviceLost, match="gone after its reset"):
        pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert not bench.note.exists()


def test_a_link_that_comes_back_narrower_fails_it(tmp_path: Path) -> None:
    """gpus-5.3: x8 where it was x16 is no success."""
    bench = Bench(tmp_path, FREE)

    def struck(_method: str) -> None:
        bench.tree.write(PLACE, "current_link_width", "8")

    bench.kernel.struck = struck
    with pytest.raises(BackendFailed, match="came back x8 and was x16"):
        pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)


@pytest.mark.parametrize(
    ("device", "banned"), [(0x2342, True), (0x237F, True), (0x22CE, True), (0x2330, False)]
)
def test_parts_that_a_bus_reset_kills_are_spared(
    tmp_path: Path, device: int, *, banned: bool
) -> None:
    """gpus-5.3: the kernel's quirk holds although the method is offered and allowed."""
    bench = Bench(tmp_path, replace(H100, device=device, driver="", methods="bus"))
    terms = Terms(("bus",), settle_s=0.0)
    outcome = pci_reset.reset(bench.function, terms, nobody, write=bench.kernel)
    assert outcome.done is not banned
    assert ("would kill this part" in outcome.detail) is banned
    other = Ids(0x1002, device, 0x030200)
    assert pci_reset.quirk(other) == frozenset()


def test_what_cannot_be_noted_is_not_done(tmp_path: Path) -> None:
    """B29: a reset that may be killed first writes down what it is about to change."""
    bench = Bench(tmp_path, FREE)
    bench.tree.put("run", "a file where a directory belongs")
    with pytest.raises(BackendFailed, match="cannot be noted"):
        pci_reset.reset(bench.function, TERMS, nobody, write=bench.kernel)
    assert bench.acts == []


def test_a_blocked_write_ends_with_its_process_and_is_undone(tmp_path: Path) -> None:
    """gpus-8.36, B29: a write to `reset` that blocks is bounded by killing the process it is in.

    What that leaves (one method in the list) is put back by the next one.
    """
    bench = Bench(tmp_path, replace(FREE, methods="flr bus"))
    (bench.function.path / "reset").unlink()
    os.mkfifo(bench.function.path / "reset")
    program = f"""
        from pathlib import Path
        from fleet.devices import pci_reset
        from fleet.devices.sysfs import Function
        function = Function(Path({str(tmp_path)!r}), {PLACE!r})
        pci_reset.reset(function, pci_reset.Terms(("flr",)), lambda: ())
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    deadline = time.monotonic() + 20
    while bench.function.reset_methods() != ("flr",):
        assert time.monotonic() < deadline
        assert child.poll() is None
    child.kill()
    assert child.wait(timeout=10) != 0
    assert bench.note.exists()
    assert pci_reset.recover(bench.function)
    assert bench.function.reset_methods() == ("flr", "bus")
    assert not pci_reset.recover(bench.function)


def test_a_driver_left_unbound_is_bound_again(tmp_path: Path) -> None:
    """B29: the next reset of a function first undoes what a killed one has left."""
    bench = Bench(tmp_path, GAUDI2)
    bench.tree.put(f"{NOTES}/{PLACE}.json", '{"methods": "flr bus", "driver": "habanalabs"}')
    bench.tree.unbind(PLACE)
    bench.tree.write(PLACE, "reset_method", "flr")
    assert pci_reset.recover(bench.function, write=bench.kernel)
    assert bench.function.driver == "habanalabs"
    assert bench.function.reset_methods() == ("flr", "bus")


def test_an_unreadable_note_restores_the_kernels_own_list(tmp_path: Path) -> None:
    """B29: a note nobody can read means the kernel's default, which it has a word for."""
    bench = Bench(tmp_path, FREE)
    bench.tree.put(f"{NOTES}/{PLACE}.json", "{")
    assert pci_reset.recover(bench.function, write=bench.kernel)
    assert bench.acts == [("reset_method", "default")]


def test_an_attribute_is_written_and_never_made(tmp_path: Path) -> None:
    """gpus-8.36: an absent attribute is an error; writing does not create it."""
    with pytest.raises(FileNotFoundError):
        pci_reset.write_attribute(tmp_path / "reset", "1")
    there = tmp_path / "there"
    there.write_text("before")
    pci_reset.write_attribute(there, "1")
    assert there.read_text() == "1"
