"""Partitioning switched by an operator, on a stand-in GPU through the real back end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import BootId, ClaimUid, OperationId, State, Token
from fleet.core.settings import MIB
from fleet.devices.simulated import backend as simulated
from fleet.node import partition_mode, view
from fleet.node.registry import Work
from tests.drivers.host import Host
from tests.fleet.node import stand_in
from tests.fleet.node.stand_in import Ground, machine


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine with one GPU, which this process's NVML speaks of."""
    made = machine(tmp_path / "standin")
    monkeypatch.setenv("FLEET_STANDIN", str(made.root))
    return made


@pytest.fixture
def ground(host: Host, tmp_path: Path) -> Iterator[Ground]:
    """That GPU, CLEAN and held by nobody."""
    with stand_in.ground(host, tmp_path) as made:
        yield made


def test_8_26_switching_on_and_off_changes_units_and_believes_nothing(
    host: Host, ground: Ground
) -> None:
    """gpus-8.26, promise 5: all new units are DIRTY, also where the minor number changes."""
    host.gpus[0].set(minor_after_mig=7)
    found = ground.switch(on=True)
    assert len(found.units) == 8
    assert ground.states() == {State.DIRTY}
    ground.clean()
    found = ground.switch(on=False)
    assert len(found.units) == 1
    assert ground.states() == {State.DIRTY}
    assert ground.acts() == ["partitioning on", "partitioning off"]


def test_10_22_the_baseline_is_read_judged_and_kept_before(ground: Ground) -> None:
    """gpus-10.22: what is readable of the whole only is on record before it cannot be read."""
    assert partition_mode.told(ground.registry, ground.device.uuid) == "none"
    ground.switch(on=True)
    kept = partition_mode.baseline(ground.registry, ground.device.uuid)
    assert kept is not None
    assert kept.passed
    assert {"ecc_uncorrected_volatile", "uncorrectable_remaps"} <= set(kept.counters)
    told = partition_mode.told(ground.registry, ground.device.uuid)
    assert told.startswith("whole-GPU baseline 20")
    assert told.endswith(": passed")
    (act,) = ground.registry.journal.acts()
    assert (act["operator"], act["detail"]) == ("ada", told)
    now = ground.validator.readings(ground.device.uuid)
    assert "ecc_uncorrected_volatile" not in now.counters()


def test_10_22_a_gpu_that_fails_as_a_whole_is_not_partitioned(host: Host, ground: Ground) -> None:
    """gpus-10.22, B15: a fault that partitioning would hide keeps it from being switched on."""
    host.gpus[0].set(remap_pending=1)
    with pytest.raises(errors.DeviceUnfit, match="remap") as caught:
        ground.switch(on=True)
    assert caught.value.remedy
    assert len(ground.device.units) == 1
    assert ground.acts() == []
    assert partition_mode.baseline(ground.registry, ground.device.uuid) is None


@pytest.mark.parametrize("state", [State.DIRTY, State.QUARANTINED])
def test_what_is_not_clean_is_scrubbed_first(ground: Ground, state: State) -> None:
    """The whole is wiped while it can be reached as a whole; the refusal says how."""
    ground.put(state, certificate=None)
    with pytest.raises(errors.DeviceUnfit, match=str(state)) as caught:
        ground.switch(on=True)
    assert "scrub it first" in caught.value.remedy
    assert (ground.states(), len(ground.device.units), ground.acts()) == ({state}, 1, [])


@pytest.mark.parametrize("state", [State.HELD, State.IN_USE, State.WIPING, State.CHECKING])
@pytest.mark.parametrize("on", [True, False])
def test_promise_4_nothing_is_divided_under_anybody(ground: Ground, state: State, on: bool) -> None:
    """Promise 4: held, used or worked on, it is refused and nothing has changed."""
    if not on:
        ground.switch(on=True)
    units = ground.device.units
    ground.put(state, certificate=None)
    with pytest.raises(errors.DeviceBusy, match=str(state)):
        ground.switch(on=on)
    assert (ground.states(), ground.device.units) == ({state}, units)


def test_promise_4_claims_containers_and_work_are_in_the_way(ground: Ground) -> None:
    """Promise 4: a record, a container that exists, or work in this moment refuses it, named."""
    ground.tenants.container = "pod lab/train"
    with pytest.raises(errors.DeviceBusy, match="pod lab/train"):
        ground.switch(on=True)
    ground.tenants.container = ""
    work = Work(OperationId("scrub-1"), ground.device, idle=False)
    ground.registry.reserve(work)
    with pytest.raises(errors.DeviceBusy, match="scrub-1"):
        ground.switch(on=True)
    ground.registry.unreserve(work)
    record = Claim(
        uid=ClaimUid("claim-a"),
        state=ClaimState.PREPARED,
        devices=(),
        units=(),
        attached=(ground.device.uuid,),
        token=Token(1, 1),
        boot_id=BootId("boot-1"),
    )
    with ground.registry.commit() as commit:
        commit.put_claim(record)
    with pytest.raises(errors.DeviceBusy, match="claim claim-a"):
        ground.switch(on=True)
    assert (ground.states(), ground.acts()) == ({State.CLEAN}, [])


def test_8_37_whoever_has_it_open_is_named_infrastructure_too(host: Host, ground: Ground) -> None:
    """gpus-8.30, gpus-8.17: the driver would refuse, or reset the GPU under that process."""
    host.gpus[0].process(4_190_001, name="nvidia-persistenced")
    with pytest.raises(errors.DeviceBusy, match="nvidia-persistenced"):
        ground.switch(on=True)
    assert (ground.states(), ground.acts()) == ({State.CLEAN}, [])


@pytest.mark.parametrize(("status", "why"), [(16, "must be reset"), (19, "a process uses")])
def test_8_30_a_refusal_told_as_a_value_is_one_and_is_on_record(
    host: Host, ground: Ground, status: int, why: str
) -> None:
    """gpus-8.30: the driver's status is a failure with a remedy; units and baseline stay."""
    host.gpus[0].set(mig_activation=status)
    with pytest.raises(errors.BackendFailed, match=why) as caught:
        ground.switch(on=True)
    assert caught.value.remedy
    assert (ground.states(), len(ground.device.units)) == ({State.CLEAN}, 1)
    assert ground.acts() == ["partitioning on", "partitioning on"]
    assert str(ground.registry.journal.acts()[-1]["detail"]).startswith("not done: ")
    assert partition_mode.baseline(ground.registry, ground.device.uuid) is None


def test_8_33_an_instance_of_somebody_else_is_named_and_stays(host: Host, ground: Ground) -> None:
    """gpus-8.33, promise 4: an instance without a record stays; how to remove it is said."""
    ground.switch(on=True)
    gi, _ = host.gpus[0].instance("2g", 2)
    with pytest.raises(errors.DeviceBusy, match=rf"gi {gi} .*\(not ours\)") as caught:
        ground.switch(on=False)
    assert f"-i {ground.device.uuid} -gi {gi} -ci 0 -dci" in caught.value.remedy
    assert host.gpus[0].instances() == {gi: (2, 2)}


def test_an_instance_of_ours_that_nobody_needs_goes_first(host: Host, ground: Ground) -> None:
    """Promise 7: what a wipe has left is removed, and then the mode is switched."""
    ground.switch(on=True)
    part = next(d for d in ground.registry.devices.values() if not d.whole)
    ground.validator.partitions.ensure(part)
    assert host.gpus[0].instances()
    ground.switch(on=False)
    assert host.gpus[0].instances() == {}
    assert len(ground.device.units) == 1


def test_what_is_so_already_is_left_and_partitions_are_not_divided(ground: Ground) -> None:
    """An order repeated changes and records nothing; only a whole accelerator is meant."""
    ground.switch(on=False)
    assert (ground.states(), ground.acts()) == ({State.CLEAN}, [])
    ground.switch(on=True)
    ground.switch(on=True)
    assert ground.acts() == ["partitioning on"]
    part = next(d for d in ground.registry.devices.values() if not d.whole)
    with pytest.raises(errors.InputInvalid, match="partition") as caught:
        ground.dividing.switch(part.name, on=False, operator="ada")
    assert ground.device.name in caught.value.remedy


def test_a_back_end_without_partitions_says_so(ground: Ground, tmp_path: Path) -> None:
    """DESIGN 7: an optional ability that is missing is a clear answer."""
    root = tmp_path / "sim"
    simulated.create(root, node="n1", accelerators=1, memory_bytes=2 * MIB, partitionable=0)
    ground.registry.backend = simulated.SimulatedBackend(root)
    with pytest.raises(errors.InputInvalid, match="no partitioning to switch"):
        ground.switch(on=True)


def test_the_operator_sees_how_a_gpu_is_partitioned(ground: Ground) -> None:
    """gpus-8.33: that partitioning is on without an instance is shown, with the baseline."""
    assert view.device(ground.registry, ground.device).partitioning == ""
    ground.switch(on=True)
    ground.sweep.look(ground.device)
    unused = ground.sweep.unused(ground.device)
    told = view.device(ground.registry, ground.device, unused=unused).partitioning
    assert told.startswith("partitioning on, no instance; whole-GPU baseline 20")
    part = next(d for d in ground.registry.devices.values() if not d.whole)
    assert view.device(ground.registry, part).partitioning == ""
