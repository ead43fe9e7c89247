"""Partitions through the vendor's binding, against the driver stand-in: made, removed, refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.model import BootId, NodeName, UnitId
from fleet.core.processes import start_time
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.nvidia.mig import Mig, Mode
from fleet.node.bounded import BoundedCalls
from fleet.node.journal import startup
from fleet.node.journal.startup import Place
from fleet.node.partitions import Partitions
from fleet.node.registry import Registry
from tests.drivers.host import Host
from tests.fleet.devices.nvidia.bench import Bench


@pytest.fixture
def bench(host: Host) -> Iterator[Bench]:
    made = Bench(host.add_gpu(mig_current=1))
    yield made
    made.library.close()


def test_an_instance_is_made_whole_and_seen_at_its_place(bench: Bench) -> None:
    """gpus-8.31: the UUID by which a worker finds its one device comes with the instance."""
    device = bench.device("3g.16mb", 4)
    made = bench.mig.make(bench.handle, device)
    assert made.uuid.startswith("MIG-")
    assert (made.device, made.units, made.accelerator) == (device.uuid, device.units, bench.uuid)
    assert set(made.ids) == {"gi", "ci"}
    assert bench.instances() == [made]
    assert bench.gpu.instances() == {made.ids["gi"]: (4, 4)}


def test_the_whole_accelerator_is_reached_through_the_largest_profile(bench: Bench) -> None:
    """gpus-8.33: with partitioning on nothing is reached without an instance, the whole neither."""
    assert bench.instances() == []
    made = bench.mig.make(bench.handle, bench.accelerator.device)
    assert made.device == bench.uuid
    assert made.units == bench.accelerator.device.units


def test_where_the_driver_takes_a_switch_from_administrators_instances_are_made_all_the_same(
    bench: Bench,
) -> None:
    """DESIGN 7: in a pod without CAP_SYS_ADMIN the mode stays, and it is said where it is done."""
    bench.gpu.fault("nvmlDeviceSetMigMode", "return 4")
    with pytest.raises(errors.DriverRefused, match="nvmlDeviceSetMigMode") as caught:
        bench.mig.set_mode(bench.uuid, on=False)
    assert "docs/privilege.md" in caught.value.remedy
    assert bench.mig.enabled(bench.handle)
    assert bench.mig.make(bench.handle, bench.device("3g.16mb", 4)).uuid


def test_a_place_that_is_taken_is_refused_naming_by_what(bench: Bench) -> None:
    """gpus-1.2: code 23 means an occupied placement too; the occupier is named, nothing is left."""
    gi, _ = bench.gpu.instance("1g.4mb", 5)
    bench.gpu.instance("1g.4mb", 0)
    before = bench.instances()
    with pytest.raises(errors.BackendFailed, match=f"by MIG instance gi {gi} at 5:1 ") as caught:
        bench.mig.make(bench.handle, bench.device("3g.16mb", 4))
    assert caught.value.remedy
    with pytest.raises(errors.BackendFailed, match=f"gi {gi} at 5:1"):
        bench.mig.make(bench.handle, bench.device("1g.4mb", 5))
    assert bench.instances() == before


def test_a_half_made_instance_is_gone_on_with(bench: Bench) -> None:
    """gpus-8.29: a GPU instance at the place without a compute instance gets one."""
    device = bench.device("2g.8mb", 2)
    gi, _ = bench.gpu.instance("2g.8mb", 2)
    (instance,) = bench.instances()
    bench.gpu.fault("nvmlGpuInstanceDestroy", "return 19")
    with pytest.raises(errors.BackendFailed):
        bench.mig.unmake(bench.handle, instance)
    bench.gpu.heal("nvmlGpuInstanceDestroy")
    assert [found.uuid for found in bench.instances()] == [""]
    made = bench.mig.make(bench.handle, device)
    assert (made.ids["gi"], made.device) == (gi, device.uuid)
    assert bench.instances() == [made]


CUTS = ["nvmlGpuInstanceCreateComputeInstance", "nvmlComputeInstanceGetInfo_v2"]


@pytest.mark.parametrize("function", CUTS)
def test_a_making_that_fails_takes_back_what_it_began(bench: Bench, function: str) -> None:
    """Promise 7: a GPU instance of ours that can have no compute instance is not left behind."""
    device = bench.device("1g.4mb", 0)
    bench.gpu.fault(function, "times 1 return 999")
    bench.gpu.host.fault(function, "times 1 return 999")  # some calls know no GPU
    with pytest.raises(errors.BackendFailed):
        bench.mig.make(bench.handle, device)
    assert bench.gpu.instances() == {}


def test_removal_ends_compute_before_gpu_instance(bench: Bench) -> None:
    """gpus-8.29: gone already is success, again and again."""
    made = bench.mig.make(bench.handle, bench.device("1g.4mb", 1))
    bench.mig.unmake(bench.handle, made)
    assert bench.gpu.instances() == {}
    bench.mig.unmake(bench.handle, made)
    assert bench.pauses == []


def test_a_process_inside_is_waited_for_a_little_then_named(bench: Bench) -> None:
    """gpus-8.29: IN_USE is tried again with pauses; then the error names who uses the instance."""
    made = bench.mig.make(bench.handle, bench.device("1g.4mb", 1))
    contexts = bench.gpu.path / "contexts"
    contexts.mkdir(exist_ok=True)
    started = start_time(os.getpid())
    context = contexts / f"{os.getpid()}-0"
    context.write_text(f"{started} {made.ids['gi']} {made.ids['ci']}\n")
    with pytest.raises(errors.BackendFailed, match=rf"in use by .*\(pid {os.getpid()}\)"):
        bench.mig.unmake(bench.handle, made)
    assert bench.pauses == sorted(set(bench.pauses))
    assert len(bench.pauses) == 2, "the last try is followed by no pause"
    assert bench.instances() == [made], "nothing of it is lost"
    context.unlink()
    bench.mig.unmake(bench.handle, made)
    assert bench.instances() == []


def test_a_removal_cut_after_the_compute_instance_goes_on(bench: Bench) -> None:
    """gpus-8.29: compute instance gone, GPU instance left: the next call ends it."""
    made = bench.mig.make(bench.handle, bench.device("1g.4mb", 1))
    bench.gpu.host.fault("nvmlGpuInstanceDestroy", "times 3 return 19")
    with pytest.raises(errors.BackendFailed, match="a client that the driver does not list"):
        bench.mig.unmake(bench.handle, made)
    (left,) = bench.instances()
    assert (left.uuid, left.ids["gi"], left.device) == ("", made.ids["gi"], made.device)
    bench.mig.unmake(bench.handle, made)
    assert bench.gpu.instances() == {}


def test_a_client_nobody_lists_gets_a_quarter_of_a_minute(bench: Bench) -> None:
    """gpus-8.29: drivers were seen to say "in use" that long after the last process had gone."""
    pauses: list[float] = []
    mig = Mig(bench.library, sleep=pauses.append)
    made = mig.make(bench.handle, bench.device("1g.4mb", 1))
    bench.gpu.host.fault("nvmlGpuInstanceDestroy", "times 4 return 19")
    mig.unmake(bench.handle, made)
    assert 15 <= sum(pauses) <= 20
    assert pauses[0] <= 0.2, "most are gone at once"


def test_in_use_that_passes_is_no_error(bench: Bench) -> None:
    """gpus-8.29: the driver says so for a moment after the last process has gone."""
    made = bench.mig.make(bench.handle, bench.device("1g.4mb", 1))
    bench.gpu.host.fault("nvmlGpuInstanceDestroy", "times 1 return 19")
    bench.mig.unmake(bench.handle, made)
    assert bench.gpu.instances() == {}
    assert len(bench.pauses) == 1


def test_a_number_given_to_somebody_else_is_not_removed(bench: Bench) -> None:
    """Promise 4: numbers are given out again; another UUID or another place is another instance."""
    made = bench.mig.make(bench.handle, bench.device("1g.4mb", 1))
    bench.gpu.instance_gone(made.ids["gi"])
    gi, _ = bench.gpu.instance("1g.4mb", 1)
    assert gi == made.ids["gi"]
    bench.mig.unmake(bench.handle, made)
    bench.mig.unmake(bench.handle, replace(made, uuid="", units=(UnitId(f"{bench.uuid}/m2"),)))
    assert bench.gpu.instances() == {gi: (1, 1)}


def test_modes_are_told_with_what_is_pending(bench: Bench) -> None:
    """gpus-1.9: no partitions at all is another answer than partitioning turned off."""
    assert bench.mig.mode(bench.handle) == Mode(current=True, pending=True)
    bench.gpu.set(mig_current=0, mig_pending=1)
    assert bench.mig.mode(bench.handle) == Mode(current=False, pending=True)
    assert not bench.mig.enabled(bench.handle)
    assert bench.instances() == []
    bench.gpu.set(mig_capable=0)
    assert bench.mig.mode(bench.handle) is None


@pytest.mark.parametrize(("status", "why"), [(16, "must be reset"), (19, "process"), (3, "3")])
def test_a_failure_told_as_a_value_is_a_failure(bench: Bench, status: int, why: str) -> None:
    """gpus-8.30: the call succeeds and its value says that the mode did not change."""
    bench.gpu.set(mig_current=0, mig_activation=status)
    with pytest.raises(errors.DriverRefused, match=why) as caught:
        bench.mig.set_mode(bench.uuid, on=True)
    assert caught.value.code == status
    assert bench.mig.mode(bench.handle) == Mode(current=False, pending=False)
    assert "next reset" not in caught.value.detail


def test_an_order_that_cannot_be_taken_back_is_told(bench: Bench) -> None:
    """gpus-8.30: a refused switch would happen at the next reset, whose ever that is."""
    bench.gpu.set(mig_current=0, mig_pending=0, mig_activation=19)
    bench.gpu.fault("nvmlDeviceSetMigMode", "after 1 return 999")
    with pytest.raises(errors.DriverRefused, match=r"a process uses .* with the next reset"):
        bench.mig.set_mode(bench.uuid, on=True)
    assert bench.mig.mode(bench.handle) == Mode(current=False, pending=True)


def test_a_mode_that_did_not_change_after_all_is_a_failure(bench: Bench) -> None:
    """gpus-8.30: the mode is asked for again, whatever the call said."""
    bench.gpu.set(mig_activation=0)
    bench.gpu.path.joinpath("mig_current").unlink()
    bench.gpu.path.joinpath("mig_current").mkdir()  # the driver cannot write it down
    with pytest.raises(errors.BackendFailed, match="is not on"):
        bench.mig.set_mode(bench.uuid, on=True)


def test_a_changed_mode_reads_everything_anew(bench: Bench) -> None:
    """gpus-8.26: the minor number may change with the mode; the GPU is found by its UUID."""
    bench.gpu.set(mig_current=0, mig_pending=0, minor_after_mig=7)
    assert bench.mig.set_mode(bench.uuid, on=True) == Mode(current=True, pending=True)
    assert bench.library.call("nvmlDeviceGetMinorNumber", bench.handle) == 7
    assert bench.mig.set_mode(bench.uuid, on=False).current is False


LOST: list[Callable[[Bench, Any], object]] = [
    lambda bench, _: bench.instances(),
    lambda bench, made: bench.mig.unmake(bench.handle, made),
    lambda bench, _: bench.mig.make(bench.handle, bench.device("1g.4mb", 2)),
]


@pytest.mark.parametrize("act", LOST, ids=["instances", "unmake", "make"])
def test_a_lost_gpu_is_lost_not_empty(bench: Bench, act: Callable[[Bench, Any], object]) -> None:
    """gpus-8.12: a GPU that does not answer has unknown instances, never none."""
    made = bench.mig.make(bench.handle, bench.device("1g.4mb", 1))
    bench.mig.profiles(bench.handle, bench.uuid)
    bench.gpu.lose()
    with pytest.raises((errors.DeviceLost, errors.BackendFailed)):
        act(bench, made)


def test_the_node_s_records_and_the_driver_s_instances_agree(
    bench: Bench, backend: NvidiaBackend, tmp_path: Path
) -> None:
    """gpus-8.29, promise 7: made, in use, half removed, gone: recorded while it is there."""
    backend = NvidiaBackend(**{**backend.settings(), "partition_retries": 2})
    place = Place(tmp_path / "journal.db", tmp_path / "witness", NodeName("n1"), "machine")
    journal = startup.open_or_set_aside(place, now=0.0).journal
    registry = Registry(backend, journal, place, SystemClock(), boot_id=BootId("boot-1"))
    registry.load()
    partitions = Partitions(registry, BoundedCalls())
    device = next(d for d in registry.devices.values() if d.uuid == bench.device("1g.4mb", 3).uuid)
    gi, _ = bench.gpu.instance("2g.8mb", 4)
    assert partitions.ensure(device) in {instance.uuid for instance in bench.instances()}
    bench.gpu.host.fault("nvmlGpuInstanceDestroy", "times 2 return 19")
    assert "in use" in " ".join(partitions.settle())
    assert [instance.uuid for instance in bench.instances()].count("") == 1
    assert [process.name for process in partitions.foreign(device)] == []
    assert partitions.settle() == []
    assert bench.gpu.instances() == {gi: (4, 2)}
    assert partitions.records() == []
    whole = registry.device(bench.uuid)
    (stranger,) = partitions.foreign(whole)
    assert stranger.name.startswith(f"MIG instance gi {gi} ")
    with pytest.raises(errors.DeviceBusy, match="not ours"):
        partitions.ensure(whole)
    journal.close()
    backend.close()
