"""The sweep over a partitioned GPU: whom a fault concerns, and how little it asks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import ClaimUid, Device, Process, State, Token, Uuid
from fleet.devices.base import Instance
from fleet.devices.health import checks
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Host
from tests.fleet.node import stand_in
from tests.fleet.node.stand_in import Ground, log_xid, machine

CONTAINED, FALLEN = 94, 79


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine with one partitioned GPU."""
    made = machine(tmp_path / "standin", mig_current=1, mig_pending=1)
    monkeypatch.setenv("FLEET_STANDIN", str(made.root))
    return made


@pytest.fixture
def ground(host: Host, tmp_path: Path) -> Iterator[Ground]:
    """That GPU, CLEAN, with an instance of ours for two partitions."""
    with stand_in.ground(host, tmp_path) as made:
        for part in (first(made), second(made)):
            made.validator.partitions.ensure(part)
        yield made


def part(ground: Ground, start: int) -> Device:
    return next(
        device
        for device in ground.registry.devices.values()
        if device.profile.startswith("2g.") and device.name.endswith(f"-{start}")
    )


def first(ground: Ground) -> Device:
    return part(ground, 0)


def second(ground: Ground) -> Device:
    return part(ground, 2)


def number(ground: Ground, device: Device) -> int:
    """The number its instance has now."""
    there = ground.registry.backend.instances(ground.device.uuid)  # type: ignore[attr-defined]
    return next(int(one.ids["gi"]) for one in there if one.device == device.uuid)


def quarantined(ground: Ground) -> set[str]:
    units = ground.registry.units(ground.device)
    return {unit.id for unit in units if unit.state is State.QUARANTINED}


def test_b70_a_contained_fault_reaches_its_partition_only(host: Host, ground: Ground) -> None:
    """B70, promise 9: a neighbour with a tenant is neither blamed nor quarantined."""
    mine, neighbour = first(ground), second(ground)
    with ground.registry.commit() as commit:
        for unit in ground.registry.units(neighbour):
            commit.put_unit(replace(unit, state=State.IN_USE))
    log_xid(host, host.gpus[0], CONTAINED, gi=number(ground, mine))
    seen = ground.sweep.look(ground.device)
    assert seen.failing
    assert quarantined(ground) == set(mine.units)
    assert all(not unit.reasons for unit in ground.registry.units(neighbour))
    assert ground.sweep.good_at(neighbour) == seen.at
    assert ground.sweep.good_at(mine) == ground.sweep.good_at(ground.device) == 0.0


@pytest.mark.parametrize(("code", "gi"), [(FALLEN, None), (CONTAINED, 63)])
def test_b70_a_fault_of_the_parent_or_of_nobody_known_reaches_all(
    host: Host, ground: Ground, code: int, gi: int | None
) -> None:
    """B70: without an instance, or with one nobody knows, the whole parent is suspect."""
    log_xid(host, host.gpus[0], code, gi=gi)
    ground.sweep.look(ground.device)
    assert quarantined(ground) == set(ground.device.units)


def test_b70_a_wipe_is_judged_by_what_concerns_its_memory(host: Host, ground: Ground) -> None:
    """B70, gpus-8.13: an Xid of another instance fails no wipe; one of its own, or of all, does."""
    mine, neighbour = first(ground), second(ground)
    log_xid(host, host.gpus[0], CONTAINED, gi=number(ground, neighbour))
    readings = ground.validator.readings(ground.device.uuid)
    assert readings.xids == (CONTAINED,)

    def xid(found: Readings) -> checks.Verdict:
        findings = checks.judge(found, ground.validator.policy)
        return next(finding.verdict for finding in findings if finding.check == "xid")

    assert xid(ground.validator.concerning(readings, mine.units)) is checks.Verdict.PASS
    assert xid(ground.validator.concerning(readings, neighbour.units)) is checks.Verdict.FAIL
    assert xid(ground.validator.concerning(readings, ground.device.units)) is checks.Verdict.FAIL


def test_b39_a_fault_of_no_device_is_told_of_the_node(host: Host, ground: Ground) -> None:
    """B39, B70: a slot without a device is neither ignored nor everybody's fault."""
    log_xid(host, host.gpus[0], FALLEN, slot="0000:99:00")
    log_xid(host, host.gpus[0], FALLEN, slot="0000:99:00")
    ground.sweep.run()
    (told,) = ground.sweep.strays
    assert "fault 79 of slot 0000:99:00" in told
    assert "2 times" in told
    assert quarantined(ground) == set()


class Counting(NvidiaBackend):
    """Notes what is asked of the driver about holders."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.asked: list[str] = []

    def holders(self, accelerator: Uuid) -> Mapping[Uuid, Sequence[Process]]:
        """Noted."""
        self.asked.append("holders")
        return super().holders(accelerator)

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        """Noted."""
        self.asked.append("processes")
        return super().processes(accelerator)

    def instances(self, accelerator: Uuid) -> Sequence[Instance]:
        """Noted."""
        self.asked.append("instances")
        return super().instances(accelerator)


def test_tenants_cost_one_look_and_soil_what_is_theirs(host: Host, tmp_path: Path) -> None:
    """B29: many partitions and tenants cost one question; promise 1: their memory is soiled."""
    with stand_in.ground(host, tmp_path, kind=Counting) as ground:
        backend = ground.registry.backend
        assert isinstance(backend, Counting)
        ground.validator.partitions.ensure(first(ground))
        gi = number(ground, first(ground))
        host.gpus[0].context(os.getppid(), gi=gi, ci=0)
        host.gpus[0].process(os.getppid(), gi=gi)
        backend.asked.clear()
        ground.sweep.look(ground.device)
        assert sorted(backend.asked) == ["holders", "instances"]
        dirty = {u.id for u in ground.registry.units(ground.device) if u.state is State.DIRTY}
        assert dirty == set(first(ground).units)


FOREIGN = json.loads((Path(__file__).parents[2] / "corpus/B80-foreign-mig/nvml.json").read_text())[
    "devices"
]


def reasons(ground: Ground, device: Device) -> dict[str, str]:
    """Open reasons of a device, with what they say."""
    return {r.code: r.detail for unit in ground.registry.units(device) for r in unit.reasons}


def test_b80_instances_of_somebody_else_are_a_reason_at_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B80: partitions that somebody else made are named as such where they lie, without a scrub; a
    mode that waits for a reset is one too, and the other GPUs work."""
    standin = tmp_path / "standin"
    host = machine(standin, mig_current=1, mig_pending=1)
    monkeypatch.setenv("FLEET_STANDIN", str(host.root))
    made = [host.gpus[0].instance("2g", start)[0] for start in (0, 2)]
    assert len(made) == len(FOREIGN[0]["mig"]["devices"])
    for pid in FOREIGN[0]["mig"]["devices"][0]["procs"]:
        host.gpus[0].process(pid, gi=made[0])
    modes = FOREIGN[1]["mig"]
    host.add_gpu("h100", mig_current=modes["mode"], mig_pending=modes["pending"])
    host.add_gpu("h100")
    with stand_in.ground(host, tmp_path, several=True) as ground:
        ground.sweep.run()
        one, two, three = ground.registry.whole()
        assert reasons(ground, part_of(ground, one, 0))["foreign-partition"] == (
            f"MIG instance gi {made[0]} is not ours"
        )
        assert reasons(ground, part_of(ground, one, 2))["foreign-partition"] == (
            f"MIG instance gi {made[1]} is not ours"
        )
        assert "foreign-partition" not in reasons(ground, part_of(ground, one, 4))
        assert "reset-required" in reasons(ground, two)
        assert reasons(ground, three) == {}
        there = ground.registry.backend.instances(one.uuid)  # type: ignore[attr-defined]
        assert len(there) == 2, "nothing was removed"


def part_of(ground: Ground, whole: Device, start: int) -> Device:
    """The partition of two slices at a place of one GPU."""
    return next(
        device
        for device in ground.registry.accelerators[whole.uuid].devices
        if device.profile.startswith("2g.") and device.name.endswith(f"-{start}")
    )


def test_b80_a_held_devices_reason_is_there_too(host: Host, tmp_path: Path) -> None:
    """B80: after a lost journal memory is held, and what holds it is said at the first sweep."""
    host.gpus[0].instance("2g", 0)
    with stand_in.ground(host, tmp_path) as ground:
        ground.put(State.HELD)
        ground.sweep.run()
        assert "is not ours" in reasons(ground, first(ground))["foreign-partition"]
        assert ground.states() == {State.HELD}
        (reason,) = {r for u in ground.registry.units(first(ground)) for r in u.reasons}
        assert "nvidia-smi mig -i" in reason.remedy
        ground.sweep.run()
        assert len(reasons(ground, first(ground))) == 1


def test_b80_an_instance_of_ours_is_no_reason(ground: Ground) -> None:
    """B80: what a wipe or a claim of ours has made is not taken for somebody else's."""
    ground.sweep.run()
    assert reasons(ground, ground.device) == {}


@pytest.mark.parametrize("rule", ["return 4", "return 3"])
def test_b80_partitioning_that_cannot_be_read_is_a_reason(
    host: Host, tmp_path: Path, rule: str
) -> None:
    """B80: MIG is on and its profiles are refused: the GPU is listed whole and out of service."""
    host.gpus[0].fault("nvmlDeviceGetGpuInstanceProfileInfoV", rule)
    host.gpus[0].fault("nvmlDeviceGetGpuInstanceProfileInfo", rule)
    with stand_in.ground(host, tmp_path) as ground:
        ground.sweep.run()
        told = reasons(ground, ground.device)
        assert told.keys() & {"unusable", "unresponsive"}
        assert ground.states() == {State.QUARANTINED}


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine with one GPU that is not partitioned."""
    made = machine(tmp_path / "standin")
    monkeypatch.setenv("FLEET_STANDIN", str(made.root))
    return made


def test_b10_a_card_pulled_used_elsewhere_and_put_back_is_wiped_again(
    plain: Host, tmp_path: Path
) -> None:
    """B10, B24, promise 1: removed, another in its slot, returned: its certificate is not taken."""
    with stand_in.ground(plain, tmp_path) as ground:
        card, kept = plain.gpus[0], tmp_path / "shelf"
        unit = ground.device.units[0]
        shutil.copytree(card.path, kept)
        card.remove()
        ground.registry.load()
        assert ground.registry.journal.units[unit].state is State.DIRTY
        ground.sweep.run()
        (reason,) = ground.registry.journal.units[unit].reasons
        assert reason.code == "device-lost"
        other = plain.add_gpu("h100", number=0)
        ground.registry.load()
        other.remove()
        shutil.copytree(kept, card.path)
        plain.tree.add(card.bus_id, card.get)
        ground.sweep.run()
        assert ground.registry.journal.units[unit].state is State.QUARANTINED


def test_b24_a_card_dead_at_load_is_out_before_it_can_be_exposed(
    plain: Host, tmp_path: Path
) -> None:
    """B24, promise 5: it keeps its place in the inventory; the look before an exposure ends it."""
    with stand_in.ground(plain, tmp_path) as ground:
        plain.gpus[0].lose()
        ground.registry.load()
        assert not ground.sweep.last, "no sweep was here yet"
        ground.sweep.look(ground.device)
        assert ground.states() == {State.QUARANTINED}


def test_8_33_an_instance_removed_under_a_claim_is_found_by_the_sweep(
    host: Host, ground: Ground
) -> None:
    """gpus-8.33, promise 1: an idle tenant's instance can be removed by anybody with the tool."""
    mine = first(ground)
    record = Claim(
        uid=ClaimUid("alice"),
        state=ClaimState.PREPARED,
        devices=(mine.uuid,),
        units=mine.units,
        token=Token(1, 1),
        boot_id=ground.registry.boot_id,
    )
    with ground.registry.commit() as commit:
        commit.put_claim(record)
        for unit in mine.units:
            commit.put_unit(replace(commit.unit(unit), state=State.IN_USE, claim=record.uid))
    ground.sweep.run()
    assert not ground.validator.partitions.lost(record)
    gi = number(ground, mine)
    host.gpus[0].instance_gone(gi)
    ground.sweep.run()
    found = {r.code for unit in mine.units for r in ground.registry.journal.units[unit].reasons}
    assert found == {"instance-lost"}
    assert ground.validator.partitions.lost(record)
    third = part(ground, 4)
    with pytest.raises(errors.DeviceBusy, match="claim alice"):
        ground.validator.partitions.ensure(third)
    assert gi not in host.gpus[0].instances()
