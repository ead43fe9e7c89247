"""Resetting a GPU: preconditions, tool and kernel, modes put back, proof afterwards."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, Wedged
from fleet.core.model import Process, ProcessKind, Uuid
from fleet.core.processes import start_time
from fleet.devices import tool
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import modes, nvml
from fleet.devices.nvidia import reset as nvidia_reset
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.nvidia.linkage import Card
from fleet.devices.nvidia.reset import Terms
from fleet.devices.remote import RemoteBackend
from tests.drivers.host import Host
from tests.fleet.devices.nvidia import hosttree
from tests.fleet.devices.nvidia.scripted import Scripted, by_turns, refuse

ONE = Card(Uuid("GPU-stand-in-0"), "0000:3b:00.0")
TWO = Card(Uuid("GPU-stand-in-1"), "0000:3c:00.0")
MONITOR = Process(70, "nv-hostengine", ProcessKind.INFRASTRUCTURE)
FUNCTION = "sys/bus/pci/devices/0000:3b:00.0"
IN_USE = "GPU 00000000:3B:00.0: In use by another client"
DONE = "\n".join(
    f"echo 'GPU 0000{card.address.upper()} was successfully reset.'" for card in (ONE, TWO)
)
"""What the tool prints of GPUs it has reset."""


def until(true: Callable[[], bool], wait_s: float = 10.0) -> bool:
    """Whether it became true."""
    deadline = time.monotonic() + wait_s
    while not (found := true()) and time.monotonic() < deadline:
        pass
    return found


class Around:
    """The back end around a reset; writes down what it was asked, in order."""

    def __init__(self) -> None:
        self.held: dict[Card, Sequence[Process]] = {}
        self.made: dict[Card, Sequence[str]] = {}
        self.now = Readings(at=0.0, present=True, ecc_uncorrected_volatile=0)
        self.read: list[Card] = []
        self.marked: list[Card] = []

    def holders(self, card: Card) -> Sequence[Process]:
        return self.held.get(card, ())

    def instances(self, card: Card) -> Sequence[str]:
        return self.made.get(card, ())

    def readings(self, card: Card) -> Readings:
        self.read.append(card)
        return self.now

    def mark(self, card: Card) -> None:
        self.marked.append(card)


class Bench:
    """One GPU, or two that are linked, on a planted host, and a tool that does what it is told."""

    def __init__(self, root: Path) -> None:
        self.root = hosttree.host(root)
        self.around = Around()
        hosttree.put(root, f"{FUNCTION}/config", b"\xde\x10\x30\x23" + bytes(60))
        hosttree.put(root, f"{FUNCTION}/current_link_width", "16\n")
        self.modes = {"Persistence": 1, "Compute": 3}
        cards = {card.address: card for card in (ONE, TWO)}
        self.library = Scripted(
            nvmlDeviceGetHandleByPciBusId=lambda address: cards[address].uuid,
            nvmlDeviceGetUUID=lambda handle: handle,
            nvmlDeviceGetArchitecture=9,
            nvmlDeviceGetPersistenceMode=lambda _: self.modes["Persistence"],
            nvmlDeviceSetPersistenceMode=lambda _, mode: self.set("Persistence", mode),
            nvmlDeviceGetComputeMode=lambda _: self.modes["Compute"],
            nvmlDeviceSetComputeMode=lambda _, mode: self.set("Compute", mode),
        )

    def set(self, name: str, mode: int) -> None:
        self.modes[name] = mode

    def link(self) -> None:
        """The two GPUs are older and linked directly."""
        other = {ONE.uuid: TWO, TWO.uuid: ONE}
        self.library.answers |= {
            "nvmlDeviceGetArchitecture": 5,
            "nvmlDeviceGetNvLinkState": lambda _, link: 1 if link == 0 else 0,
            "nvmlDeviceGetNvLinkRemoteDeviceType": 0,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, _: SimpleNamespace(
                busId=other[handle].address
            ),
        }

    def tool(self, script: str) -> str:
        """A reset tool: a shell script that is told how it was called; its path."""
        text = f'#!/bin/sh\necho "$@" >> {self.root}/asked\n{script}\n'
        path = hosttree.put(self.root, "tool", text)
        path.chmod(stat.S_IRWXU)
        return str(path)

    @property
    def asked(self) -> str:
        path = self.root / "asked"
        return path.read_text().strip() if path.exists() else ""

    def reset(self, script: str = "exit 0", *, says: str = DONE, **terms: Any) -> Any:
        """Reset by a tool that prints `says` before it does as the script says."""
        wanted = Terms(**{"tool": self.tool(f"{says}\n{script}"), "back_s": 0.1, **terms})
        return nvidia_reset.reset(
            ONE, self.library, around=self.around, terms=wanted, root=self.root
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_tool_is_asked_by_uuid_and_the_modes_come_back(bench: Bench) -> None:
    """gpus-8.35: off for the tool, persistence is on again; the compute mode is as before."""
    seen = bench.root / "seen"

    def switch(_: str, mode: int) -> None:
        bench.set("Persistence", mode)
        seen.write_text(str(mode))

    bench.library.answers["nvmlDeviceSetPersistenceMode"] = switch
    outcome = bench.reset(f"cp {seen} {bench.root}/then")
    assert (outcome.done, outcome.method, outcome.holders) == (True, "nvidia-smi", ())
    assert bench.asked == f"--gpu-reset -i {ONE.uuid}"
    assert (bench.root / "then").read_text() == "0"
    assert bench.modes == {"Persistence": 1, "Compute": 3}
    assert bench.around.marked == [ONE]
    assert bench.library.closed


def test_modes_a_reset_loses_are_set_again(bench: Bench) -> None:
    """gpus-8.35: after success what the operator had set is there, or the reset is not good."""
    bench.library.answers["nvmlDeviceGetComputeMode"] = by_turns(3, 0)
    assert bench.reset().done
    assert bench.library.called("nvmlDeviceSetComputeMode") == [(ONE.uuid, 3)]
    bench.library.answers["nvmlDeviceGetComputeMode"] = by_turns(3, 0)
    bench.library.answers["nvmlDeviceSetComputeMode"] = refuse(nvml.NO_PERMISSION)
    with pytest.raises(BackendFailed, match="modes are not as before: nvmlDeviceSetComputeMode"):
        bench.reset()


def test_modes_come_back_after_a_failure_too(bench: Bench) -> None:
    """gpus-8.35: a reset that failed leaves persistence as it was, and says what the tool said."""
    with pytest.raises(BackendFailed, match="could not be reset: Unable to reset") as caught:
        bench.reset("echo 'Unable to reset' >&2; exit 3", says="")
    assert bench.modes["Persistence"] == 1
    assert "reboot" in caught.value.remedy
    assert bench.around.marked == []


def test_nobody_may_have_it_open_not_even_infrastructure(bench: Bench) -> None:
    """gpus-8.17, B3: the holder is named with what it does, and the tool is not started."""
    bench.around.held[ONE] = (MONITOR,)
    outcome = bench.reset()
    assert not outcome.done
    assert outcome.holders == (MONITOR,)
    assert "nv-hostengine (pid 70), which collects health readings" in outcome.detail
    assert bench.asked == ""
    assert bench.modes["Persistence"] == 1


def test_persistence_is_off_before_holders_are_looked_for(bench: Bench) -> None:
    """gpus-8.36: the daemon that keeps it lets go then, and is no holder any more."""
    bench.around.holders = (  # type: ignore[method-assign] # the daemon follows the mode
        lambda card: (MONITOR,) if card == ONE and bench.modes["Persistence"] else ()
    )
    assert bench.reset().done


def test_persistence_that_cannot_be_switched_off_refuses(bench: Bench) -> None:
    """gpus-8.36: without the right to set it nothing is tried."""
    bench.library.answers["nvmlDeviceSetPersistenceMode"] = refuse(nvml.NO_PERMISSION)
    outcome = bench.reset()
    assert not outcome.done
    assert "persistence mode" in outcome.detail
    assert bench.asked == ""


def test_instances_of_partitions_refuse(bench: Bench) -> None:
    """gpus-8.36, promise 9: a reset would take every partition's instance away."""
    bench.around.made = {ONE: ("gi1",)}
    outcome = bench.reset()
    assert not outcome.done
    assert "gi1" in outcome.detail
    assert bench.asked == ""


def test_linked_gpus_are_reset_together_or_not_at_all(bench: Bench) -> None:
    """gpus-8.36, promise 4: a holder of the other one refuses; both free, both are named."""
    bench.link()
    bench.around.held[TWO] = (Process(80, "train", ProcessKind.FOREIGN),)
    outcome = bench.reset()
    assert not outcome.done
    assert outcome.detail == (
        f"{TWO.uuid}, which resets along with {ONE.uuid}, is held by train (pid 80)"
    )
    bench.around.held.clear()
    outcome = bench.reset()
    assert outcome.done
    assert TWO.uuid in outcome.detail
    assert bench.asked == f"--gpu-reset -i {ONE.uuid},{TWO.uuid}"
    assert bench.around.marked == bench.around.read == [ONE, TWO]


def test_a_tool_that_says_in_use_is_not_overruled(bench: Bench) -> None:
    """gpus-8.17: the driver knows of a client nobody sees; the kernel is not asked instead."""
    hosttree.put(bench.root, f"{FUNCTION}/reset")
    hosttree.put(bench.root, f"{FUNCTION}/reset_method", "flr\n")
    outcome = bench.reset(f"echo '{IN_USE}'; exit 255", methods=("flr",))
    assert not outcome.done
    assert IN_USE in outcome.detail
    assert "rmmod" not in outcome.detail
    hosttree.put(bench.root, "sys/module/nvidia_peermem/refcnt", "0\n")
    told = bench.reset(f"echo '{IN_USE}'; exit 255", methods=("flr",)).detail
    assert "nvidia_peermem" in told, "a client that no list of processes shows"
    assert "rmmod nvidia_peermem" in told
    assert (bench.root / f"{FUNCTION}/reset").read_text() == ""


def test_a_tool_that_hangs_is_killed_and_nothing_else_is_tried(bench: Bench) -> None:
    """gpus-8.36: bounded, modes restored, and the kernel's methods are left alone."""
    hosttree.put(bench.root, f"{FUNCTION}/reset")
    hosttree.put(bench.root, f"{FUNCTION}/reset_method", "flr\n")
    with pytest.raises(BackendFailed, match=r"did not end within 0\.2 s and was killed"):
        bench.reset("exec sleep 60", tool_limit_s=0.2, methods=("flr",))
    assert (bench.root / f"{FUNCTION}/reset").read_text() == ""
    assert bench.modes["Persistence"] == 1


@pytest.mark.parametrize("tool", ["", "no-such-tool"])
def test_without_a_tool_the_kernels_methods_are_used(bench: Bench, tool: str) -> None:
    """gpus-8.36: by the methods policy allows, with what happened on the record."""
    hosttree.put(bench.root, f"{FUNCTION}/reset")
    hosttree.put(bench.root, f"{FUNCTION}/reset_method", "flr\n")
    outcome = bench.reset(tool=tool, methods=("flr",))
    assert (outcome.done, outcome.method) == (True, "flr")
    assert ("no-such-tool" in outcome.detail) is bool(tool)
    assert (bench.root / f"{FUNCTION}/reset").read_text() == "1"
    assert bench.around.marked == [ONE]


def test_without_any_way_a_reset_fails(bench: Bench) -> None:
    """gpus-8.36: no tool and no method allowed is a failure that says so."""
    with pytest.raises(BackendFailed, match="no way to do it is allowed"):
        bench.reset(tool="")


def test_a_method_the_kernel_lacks_is_refused(bench: Bench) -> None:
    """gpus-8.36: without the file the kernel cannot reset; nothing was done."""
    outcome = bench.reset("echo broken; exit 1", says="", methods=("flr",))
    assert not outcome.done
    assert outcome.detail.startswith("broken; not supported")


def test_a_driver_that_is_in_use_is_never_unbound(bench: Bench) -> None:
    """gpus-8.37: its lock stays 0 while anybody uses it; unbinding would never return."""
    hosttree.put(bench.root, f"{FUNCTION}/reset")
    hosttree.put(bench.root, f"{FUNCTION}/reset_method", "flr\n")
    drivers = bench.root / "sys/bus/pci/drivers/nvidia"
    hosttree.put(drivers, "unbind")
    hosttree.put(drivers, "bind")
    (bench.root / FUNCTION / "driver").symlink_to(drivers)
    lock = hosttree.put(bench.root, f"proc/driver/nvidia/gpus/{ONE.address}/unbindLock", "0\n")
    lock.unlink()
    lock.symlink_to(os.devnull)  # takes any write and reads as nothing: the lock was not given
    outcome = bench.reset(tool="", methods=("flr",))
    assert not outcome.done
    assert "unbindLock" in outcome.detail
    assert (drivers / "unbind").read_text() == ""


@pytest.mark.parametrize(
    ("readings", "told"),
    [
        ({"present": False}, "it is gone"),
        ({"ecc_uncorrected_volatile": 2}, "still counts 2 uncorrected errors"),
        ({"reset_required": True}, "still asks for a reset"),
        ({"recovery_action": "NODE_REBOOT"}, "still asks for NODE_REBOOT"),
        ({"row_remap_pending": True}, "rows still wait"),
    ],
)
def test_a_reset_that_its_readings_belie_is_not_done(
    bench: Bench, readings: dict[str, Any], told: str
) -> None:
    """gpus-8.21: what a reset clears has to be clear; a tool's word is not enough."""
    bench.around.now = Readings(at=0.0, **readings)
    with pytest.raises(BackendFailed, match=told):
        bench.reset()


def test_a_pending_remap_that_the_reset_cleared_is_fine(bench: Bench) -> None:
    """gpus-8.21: pending before, not pending after: done."""
    bench.around.now = Readings(at=0.0, row_remap_pending=False, recovery_action="NONE")
    assert bench.reset().done


def test_a_gpu_that_does_not_come_back_is_lost(bench: Bench) -> None:
    """gpus-8.12: no answer after the reset, another card, or a config of ones is no reset."""
    calls = bench.library.answers["nvmlDeviceGetHandleByPciBusId"]
    gone = bench.root / "gone"
    bench.library.answers["nvmlDeviceGetHandleByPciBusId"] = lambda address: (
        "GPU-another" if gone.exists() else calls(address)
    )
    with pytest.raises(DeviceLost, match="does not answer after its reset"):
        bench.reset(f"touch {gone}")
    gone.unlink()
    with pytest.raises(DeviceLost, match="reads all ones"):
        bench.reset(f"head -c 64 /dev/zero | tr '\\0' '\\377' > {bench.root}/{FUNCTION}/config")


def test_a_narrower_link_is_a_failure(bench: Bench) -> None:
    """gpus-8.23: a link that comes back narrower was damaged or badly trained."""
    with pytest.raises(BackendFailed, match="its link is x8 and was x16"):
        bench.reset(f"echo 8 > {bench.root}/{FUNCTION}/current_link_width")


def test_a_gpu_that_waits_for_its_reset_can_have_it(bench: Bench) -> None:
    """gpus-8.21: it answers nothing before; what was set on it is not known and left alone."""
    real = bench.library.answers["nvmlDeviceGetHandleByPciBusId"]
    done = bench.root / "done"

    def handle(address: str) -> Any:
        if not done.exists():
            raise refuse(nvml.RESET_REQUIRED).error("nvmlDeviceGetHandleByPciBusId")
        return real(address)

    bench.library.answers["nvmlDeviceGetHandleByPciBusId"] = handle
    assert bench.reset(f"touch {done}").done
    assert not [name for name, *_ in bench.library.calls if "Set" in name]


def test_the_vendors_binding_and_the_stand_ins_tool(host: Host) -> None:
    """gpus-8.21, 8.35: on the stand-ins: pending before, cleared after, modes as they were."""
    gpu = host.add_gpu()
    gpu.set(remap_pending=1, persistence=1, compute_mode=3)
    library, around = nvml.Library(), Around()
    outcome = nvidia_reset.reset(
        Card(Uuid(gpu.uuid), gpu.bus_id),
        library,
        around=around,
        terms=Terms(tool=str(host.hardware_root / "usr/bin/nvidia-smi")),
        root=host.hardware_root,
    )
    library.close()
    assert (outcome.done, outcome.method) == (True, "nvidia-smi")
    names = ("remap_pending", "persistence", "compute_mode", "resets")
    assert [gpu.get(name) for name in names] == ["0", "1", "3", "1"]


def test_holders_of_a_gpu_that_waits_for_its_reset_are_named(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.17, 8.21: the driver answers nothing about it; open descriptors still refuse."""
    gpu = host.add_gpu()
    (accelerator,) = backend.inventory()
    host.tree.process(41, "train", files=["/dev/nvidia0"])
    gpu.fault("nvmlDeviceGetUUID", f"return {nvml.RESET_REQUIRED}")
    outcome = backend.reset(accelerator.uuid)
    assert not outcome.done
    assert [holder.pid for holder in outcome.holders] == [41]
    assert gpu.get("resets") == ""


@pytest.mark.parametrize(
    "says",
    [
        "echo 'Warning: mode is in pending state for GPU 00000000:3B:00.0'; echo 'All done.'",
        "echo 'All done.'",
        "",
        "echo 'GPU 00000000:3C:00.0 was successfully reset.'; echo 'All done.'",
        "echo 'GPU 00000000:3B:00.0 is pending: it was not successfully reset'",
    ],
)
def test_b41_clean_counters_and_an_exit_code_of_0_are_no_reset(bench: Bench, says: str) -> None:
    """B41: done is what the tool says of this very GPU; all else is also so if nothing happened."""
    outcome = bench.reset(says=says)
    assert not outcome.done
    assert "did not say that GPU-stand-in-0 was reset" in outcome.detail
    assert ("pending" in says) is ("pending" in outcome.detail)
    assert bench.modes == {"Persistence": 1, "Compute": 3}
    assert bench.around.marked == []


def test_b41_of_two_gpus_both_have_to_be_confirmed(bench: Bench) -> None:
    """B41: GPUs that reset together are reset only if the tool says so of each."""
    bench.link()
    outcome = bench.reset(says=DONE.splitlines()[0])
    assert not outcome.done
    assert f"did not say that {TWO.uuid} was reset" in outcome.detail


def test_b41_what_outlives_a_killed_tool_keeps_the_next_reset_away(bench: Bench) -> None:
    """B41: a tool is killed with all it started; what lives on is waited for, and no second reset
    starts beside it."""
    child = bench.root / "child"
    script = f"setsid sh -c 'echo $$ > {child}.new; mv {child}.new {child}; exec sleep 60' &\n"
    script += f"while [ ! -e {child} ]; do :; done; sleep 60"
    with pytest.raises(Wedged, match="could not be killed, and still lives"):
        bench.reset(script, tool_limit_s=1.0)
    assert bench.modes["Persistence"] == 1
    asked = bench.asked
    remote = RemoteBackend("nvidia", {"root": str(bench.root)})
    for again in (bench.reset, lambda: remote.reset(ONE.uuid)):
        with pytest.raises(Wedged, match="still lives"):
            again()
    assert bench.asked == asked, "nothing was started"
    os.kill(int(child.read_text()), signal.SIGKILL)
    assert until(lambda: not tool.survivors(nvidia_reset.mark(ONE.uuid)))
    assert bench.reset().done


def test_b41_a_child_that_keeps_the_output_open_keeps_nobody_waiting(bench: Bench) -> None:
    """B41: a tool is over when it ends, whoever still has its output open."""
    began = time.monotonic()
    assert bench.reset(f"sleep 30 & echo $! > {bench.root}/left", tool_limit_s=20.0).done
    assert time.monotonic() - began < 15.0
    os.kill(int((bench.root / "left").read_text()), signal.SIGKILL)


def test_b41_a_whole_group_dies_with_its_tool(bench: Bench) -> None:
    """B41: what a killed tool has started is killed along with it."""
    child = bench.root / "child"
    script = f"sleep 60 & echo $! > {child}.new; mv {child}.new {child}; wait"
    with pytest.raises(BackendFailed, match="and was killed"):
        bench.reset(script, tool_limit_s=1.0)
    assert start_time(int(child.read_text())) is None


def test_b41_modes_to_put_back_outlive_who_was_to_do_it(bench: Bench) -> None:
    """B41: what was set on a GPU is on disk before it is changed; who comes next puts it back."""
    note = bench.root / modes.NOTES / f"{ONE.uuid}.json"
    seen = bench.root / "seen"
    assert bench.reset(f"cp {note} {seen}").done
    assert not note.exists()
    note.write_text(seen.read_text())  # as a reset leaves it that was killed
    bench.modes["Persistence"] = 0
    modes.recover(bench.library, lambda: ONE.uuid, root=bench.root, uuid=ONE.uuid)
    assert bench.modes["Persistence"] == 1
    assert not note.exists()


def test_b41_a_mode_that_cannot_be_put_back_stays_noted(bench: Bench) -> None:
    """B41: a note goes with the last mode that was put back, and a second reset keeps the first."""
    bench.library.answers["nvmlDeviceSetComputeMode"] = refuse(nvml.NO_PERMISSION)
    bench.library.answers["nvmlDeviceGetComputeMode"] = by_turns(3, 0, 0, 0, 0, 0)
    with pytest.raises(BackendFailed, match="not as before"):
        bench.reset()
    kept = modes.noted(bench.root, ONE.uuid)
    assert kept is not None
    assert (kept.persistence, kept.compute) == (1, 3)
    with pytest.raises(BackendFailed, match="not as before"):
        bench.reset()
    assert modes.noted(bench.root, ONE.uuid) == kept


def test_b41_a_killed_resets_modes_come_back_with_the_next_reading(
    host: Host, backend: NvidiaBackend
) -> None:
    """B41: a service that starts anew finds persistence mode off and switches it on again."""
    gpu = host.add_gpu()
    gpu.set(persistence=0)
    modes.note(host.hardware_root, gpu.uuid, modes.Modes(persistence=1))
    backend.readings(Uuid(gpu.uuid))
    assert gpu.get("persistence") == "1"
    assert modes.noted(host.hardware_root, gpu.uuid) is None
