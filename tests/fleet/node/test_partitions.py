"""Instances of partitions: whose they are survives every crash, and none of ours is left."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.clock import SystemClock
from fleet.core.model import (
    BootId,
    ClaimUid,
    Device,
    NodeName,
    OperationId,
    Process,
    ProcessKind,
    State,
    Token,
)
from fleet.core.settings import MIB
from fleet.devices.simulated import backend as simulated
from fleet.node.bounded import BoundedCalls
from fleet.node.journal import startup
from fleet.node.journal.startup import Place
from fleet.node.partitions import Partitions
from fleet.node.registry import Registry, Work
from tests.fleet.node.parting import STEPS, Killed, PartingBackend


class Ground:
    """A registry over one partitionable accelerator, without workers and doors."""

    def __init__(self, root: Path) -> None:
        simulated.create(
            root / "sim", node="n1", accelerators=1, memory_bytes=2 * MIB, partitionable=1
        )
        self.backend = PartingBackend(root / "sim")
        place = Place(root / "journal.db", root / "witness", NodeName("n1"), "machine")
        journal = startup.open_or_set_aside(place, now=0.0).journal
        self.registry = Registry(
            self.backend, journal, place, SystemClock(), boot_id=BootId("boot-1")
        )
        self.registry.load()
        self.partitions = Partitions(self.registry, BoundedCalls())

    def restart(self, *, boot_id: str = "boot-1") -> None:
        """The service dies and starts again, in the same boot unless another is named."""
        self.backend.cut = ""
        self.registry.boot_id = BootId(boot_id)
        self.partitions = Partitions(self.registry, BoundedCalls())
        self.partitions.begin()

    def device(self, name: str = "gpu-0-1g-0") -> Device:
        return self.registry.device(name)

    def claim(self, uid: str, *names: str, attached: tuple[str, ...] = ()) -> None:
        """Have a record of a claim."""
        devices = [self.device(name) for name in names]
        record = Claim(
            uid=ClaimUid(uid),
            state=ClaimState.PREPARING,
            devices=tuple(device.uuid for device in devices),
            attached=tuple(self.device(name).uuid for name in attached),
            units=tuple(unit for device in devices for unit in device.units),
            token=Token(1, 1),
            boot_id=self.registry.boot_id,
        )
        with self.registry.commit() as commit:
            commit.put_claim(record)

    def bury(self, uid: str) -> None:
        with self.registry.commit() as commit:
            commit.bury_claim(ClaimUid(uid), Token(1, 1), 0.0)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.registry.journal.close()


def test_an_instance_is_there_for_one_wipe_only(ground: Ground) -> None:
    """gpus-8.33: nothing is reached without an instance; after the wipe there is none of ours."""
    device = ground.device()
    with ground.partitions.entered(device, None) as visible:
        (instance,) = ground.backend.there
        assert (visible, instance.device) == (instance.uuid, device.uuid)
        assert ground.partitions.ensure(device) == visible, "asked again it is the same"
    assert (ground.backend.there, ground.partitions.records()) == ([], [])


def test_an_instance_goes_after_a_wipe_that_failed_too(ground: Ground) -> None:
    """Promise 7: no way out of a wipe leaves a partition behind."""
    with (
        pytest.raises(errors.BackendFailed, match="broken"),
        ground.partitions.entered(ground.device(), None),
    ):
        raise errors.BackendFailed("broken")
    assert (ground.backend.there, ground.partitions.records()) == ([], [])


def test_what_needs_no_instance_gets_none(ground: Ground) -> None:
    """A GPU with partitioning off is reached as itself."""
    ground.backend.off = True
    assert ground.partitions.ensure(ground.device()) == ""
    assert ground.partitions.foreign(ground.device()) == []
    assert ground.backend.log == []


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_while_making_leaves_nothing_of_ours_and_all_of_others(
    ground: Ground, step: str
) -> None:
    """gpus-8.40, promise 7: cut at each step; settling ends with the foreign instance alone."""
    device = ground.device()
    stranger = ground.backend.foreign(device.accelerator, ground.device("gpu-0-1g-3").units)
    ground.backend.cut = step
    with pytest.raises(Killed):
        ground.partitions.ensure(device)
    ground.restart()
    later = ground.backend.foreign(device.accelerator, ground.device("gpu-0-1g-5").units)
    assert ground.partitions.foreign(device) == [], "what is half made is ours already"
    assert ground.partitions.settle() == []
    assert ground.backend.there == [stranger, later]
    assert ground.partitions.records() == []


@pytest.mark.parametrize("step", STEPS)
def test_a_making_that_was_cut_is_gone_on_with(ground: Ground, step: str) -> None:
    """gpus-8.29: the same instance is completed, never a second one made beside it."""
    ground.backend.cut = step
    with pytest.raises(Killed):
        ground.partitions.ensure(ground.device())
    there = len(ground.backend.there)
    ground.restart()
    assert ground.partitions.ensure(ground.device()).startswith("MIG-")
    assert len(ground.backend.there) == max(1, there) == 1
    assert len(ground.partitions.records()) == 1


@pytest.mark.parametrize("step", ["unmade ci", "unmade"])
def test_a_crash_while_removing_is_gone_on_with(ground: Ground, step: str) -> None:
    """gpus-8.29: half removed, or removed with the record still there: settling ends it."""
    ground.partitions.ensure(ground.device())
    ground.backend.cut = step
    with pytest.raises(Killed):
        ground.partitions.release(ground.device().uuid, besides=None)
    ground.restart()
    assert ground.partitions.foreign(ground.device()) == []
    ground.partitions.settle()
    assert (ground.backend.there, ground.partitions.records()) == ([], [])


def test_an_instance_of_the_same_shape_and_number_but_another_uuid_is_foreign(
    ground: Ground,
) -> None:
    """Promise 4: after a reset somebody else may have our place and our number."""
    device = ground.device()
    ground.partitions.ensure(device)
    (mine,) = ground.backend.there
    theirs = dataclasses.replace(mine, uuid="MIG-theirs")
    ground.backend.there = [theirs]
    assert [process.kind for process in ground.partitions.foreign(device)] == [ProcessKind.FOREIGN]
    with pytest.raises(errors.DeviceBusy, match="not ours"):
        ground.partitions.ensure(device)
    ground.partitions.settle()
    assert ground.backend.there == [theirs]
    assert ground.partitions.records() == []


def test_what_was_there_before_is_never_taken_for_ours(ground: Ground) -> None:
    """Promise 4: a record without a UUID names nothing that its own list of before has."""
    device = ground.device()
    ground.backend.cut = "record"
    neighbour = ground.backend.foreign(device.accelerator, ground.device("gpu-0-1g-1").units)
    with pytest.raises(Killed):
        ground.partitions.ensure(device)
    (record,) = ground.partitions.records()
    assert not record.names(dataclasses.replace(neighbour, device=device.uuid))
    twin = dataclasses.replace(neighbour, device=device.uuid, units=device.units)
    assert record.names(twin), "the number alone is nobody's: it is given out again"


def test_foreign_instances_are_holders_of_the_memory_they_lie_in(ground: Ground) -> None:
    """Promise 4, B24: nobody can be asked who uses one, and so it counts as a process."""
    accelerator = ground.device("gpu-0")
    ground.partitions.ensure(ground.device("gpu-0-1g-0"))
    stranger = ground.backend.foreign(accelerator.uuid, ground.device("gpu-0-2g-2").units)
    named = f"MIG instance gi {stranger.ids['gi']} ci 0 of {accelerator.uuid} (not ours)"
    for name, expected in {
        "gpu-0": [named],
        "gpu-0-1g-2": [named],
        "gpu-0-3g-0": [named],
        "gpu-0-1g-0": [],
        "gpu-0-1g-4": [],
    }.items():
        found = ground.partitions.foreign(ground.device(name))
        assert [(p.name, p.pid) for p in found] == [(text, 0) for text in expected], name
    with pytest.raises(errors.DeviceBusy, match="not ours") as caught:
        ground.partitions.ensure(ground.device("gpu-0-1g-3"))
    assert "not ours" not in caught.value.told


def test_a_making_that_fails_leaves_neither_instance_nor_record(ground: Ground) -> None:
    """Promise 7: what the driver refuses is refused, and the next try begins anew."""
    ground.backend.refuses = "no room"
    with pytest.raises(errors.BackendFailed, match="no room"):
        ground.partitions.ensure(ground.device())
    assert ground.partitions.records() == []
    ground.backend.refuses = ""
    assert ground.partitions.ensure(ground.device())


def test_an_instance_in_use_keeps_its_record_until_it_goes(ground: Ground) -> None:
    """gpus-8.29: the holder is named, the record is consistent, and settling tries again."""
    with ground.partitions.entered(ground.device(), None):
        ground.backend.user = "python (pid 7)"
    assert len(ground.partitions.records()) == 1
    (trouble,) = ground.partitions.settle()
    assert "python (pid 7)" in trouble
    assert list(ground.partitions.troubles) == [trouble]
    ground.backend.user = ""
    assert ground.partitions.settle() == []
    assert list(ground.partitions.troubles) == []
    assert ground.backend.there == []


def test_what_is_left_of_ours_gives_way_to_a_larger_device(ground: Ground) -> None:
    """No state is a trap: a leftover partition does not keep the whole from being wiped."""
    with ground.partitions.entered(ground.device("gpu-0-1g-2"), None):
        ground.backend.user = "python (pid 7)"
    ground.backend.user = ""
    visible = ground.partitions.ensure(ground.device("gpu-0"))
    assert [instance.uuid for instance in ground.backend.there] == [visible]


def test_claims_keep_their_instance_and_nobody_else_s_work_takes_it(ground: Ground) -> None:
    """Invariant: an instance of ours exists only while work or a claim holds its device."""
    device = ground.device()
    ground.claim("claim-a", "gpu-0-1g-0")
    with ground.partitions.entered(device, ClaimUid("claim-a")):
        pass
    ground.partitions.settle()
    ground.partitions.release(device.uuid, besides=None)
    assert len(ground.backend.there) == 1
    with pytest.raises(errors.DeviceBusy, match="claim-a") as caught:
        ground.partitions.ensure(ground.device("gpu-0"))
    assert "claim-a" not in caught.value.told
    ground.claim("claim-b", attached=("gpu-0-1g-0",))
    ground.partitions.release(device.uuid, besides=ClaimUid("claim-a"))
    assert len(ground.backend.there) == 1, "another claim looks into it"
    ground.bury("claim-b")
    ground.partitions.release(device.uuid, besides=ClaimUid("claim-a"))
    assert ground.backend.there == []


def test_nothing_is_settled_under_work(ground: Ground) -> None:
    """Promise 4: nothing is repartitioned under whoever works there."""
    device = ground.device()
    ground.partitions.ensure(device)
    work = Work(OperationId("op"), ground.device("gpu-0"), idle=False)
    assert ground.registry.reserve(work) is None
    assert ground.partitions.strays() == []
    ground.partitions.settle()
    assert len(ground.backend.there) == 1
    ground.registry.unreserve(work)
    ground.partitions.settle()
    assert ground.backend.there == []
    assert ground.registry.works() == []


def test_a_boot_ends_all_instances_and_their_records(ground: Ground) -> None:
    """gpus-1.9: instances vanish with a reboot; what is there afterwards is somebody else's."""
    device = ground.device()
    ground.partitions.ensure(device)
    (mine,) = ground.backend.there
    ground.restart(boot_id="boot-2")
    assert ground.partitions.records() == []
    assert len(ground.partitions.foreign(device)) == 1
    ground.partitions.settle()
    assert ground.backend.there == [mine], "not ours any more, however alike it looks"
    ground.restart(boot_id="boot-1")
    assert ground.partitions.records() == [], "a record that was dropped does not come back"


def test_partitioning_turned_off_ends_the_records(ground: Ground) -> None:
    """gpus-8.26: after a change of mode there is nothing to remove, and no record stays."""
    ground.partitions.ensure(ground.device())
    ground.backend.off, ground.backend.there = True, []
    assert ground.partitions.settle() == []
    assert ground.partitions.records() == []


def test_an_accelerator_that_is_away_keeps_its_records(ground: Ground) -> None:
    """B10: what cannot be asked is neither removed nor forgotten; it is settled once it is back."""
    ground.partitions.ensure(ground.device())
    away = ground.registry.accelerators
    ground.registry.accelerators = {}
    assert ground.partitions.strays() == []
    ground.partitions.release(ground.device().uuid, besides=None)
    assert len(ground.partitions.records()) == 1
    ground.registry.accelerators = away
    ground.partitions.settle()
    assert (ground.backend.there, ground.partitions.records()) == ([], [])


def exposed(ground: Ground, uid: str, name: str) -> None:
    """A claim whose containers have the device, by an instance of it."""
    ground.claim(uid, name)
    with ground.registry.commit() as commit:
        for unit in ground.device(name).units:
            known = commit.unit(unit)
            commit.put_unit(dataclasses.replace(known, state=State.CLEAN))
    ground.partitions.ensure(ground.device(name))
    with ground.registry.commit() as commit:
        for unit in ground.device(name).units:
            known = commit.unit(unit)
            used = dataclasses.replace(known, state=State.IN_USE, claim=ClaimUid(uid))
            commit.put_unit(used)


def removed_from_outside(ground: Ground) -> None:
    """As by `nvidia-smi mig -dci`, then `-dgi`: numbers are given out again from the first."""
    ground.backend.there.clear()
    ground.backend.numbers_again()


def reasons_of(ground: Ground, name: str) -> list[tuple[State, str]]:
    units = ground.registry.units(ground.device(name))
    return [(unit.state, reason.code) for unit in units for reason in unit.reasons]


def test_8_33_a_number_is_not_given_out_while_a_tenant_may_reach_what_has_it(
    ground: Ground,
) -> None:
    """Promise 1, gpus-8.33: removed under alice, her number would be open to her in bob's hands."""
    exposed(ground, "alice", "gpu-0-1g-0")
    removed_from_outside(ground)
    for name in ("gpu-0-1g-4", "gpu-0-2g-2"):
        with pytest.raises(errors.DeviceBusy, match="claim alice") as caught:
            ground.partitions.ensure(ground.device(name))
        assert "alice" not in caught.value.told + caught.value.remedy
    assert ground.backend.there == [], "not made for a moment either"
    with ground.registry.commit() as commit:
        for unit in ground.device("gpu-0-1g-0").units:
            commit.put_unit(dataclasses.replace(commit.unit(unit), state=State.DIRTY))
    assert ground.partitions.ensure(ground.device("gpu-0-1g-4")), "her tenant is proven gone"
    assert ground.partitions.ensure(ground.device("gpu-0-1g-0")), "and her teardown wipes"
    numbers = [instance.ids["gi"] for instance in ground.backend.there]
    assert len(set(numbers)) == len(numbers) == 2


def test_8_33_an_instance_with_the_number_of_another_is_unmade_at_once(ground: Ground) -> None:
    """Promise 1: hers was removed between the look and the making; nothing works in the other."""
    exposed(ground, "alice", "gpu-0-1g-0")
    ground.backend.outsider = lambda: removed_from_outside(ground)
    with (
        pytest.raises(errors.DeviceBusy, match="claim alice"),
        ground.partitions.entered(ground.device("gpu-0-1g-4"), None),
    ):
        pytest.fail("no worker starts in it")
    assert ground.backend.log[-2:] == ["made gpu-0-1g-4", "removed gpu-0-1g-4"]
    assert ground.backend.there == []
    assert [record.device for record in ground.partitions.records()] == [ground.device().uuid]


@pytest.mark.parametrize("replaced", [False, True])
def test_8_33_an_instance_removed_under_a_claim_is_noticed(ground: Ground, replaced: bool) -> None:
    """gpus-8.33, promise 1: reason, no second exposure, and one made in its place is not it."""
    exposed(ground, "alice", "gpu-0-1g-0")
    (hers,) = ground.backend.there
    ground.partitions.strange(ground.device("gpu-0"))
    assert reasons_of(ground, "gpu-0-1g-0") == [], "as long as it is there"
    removed_from_outside(ground)
    if replaced:
        ground.backend.there.append(dataclasses.replace(hers, uuid="MIG-theirs"))
    ground.partitions.strange(ground.device("gpu-0"))
    assert reasons_of(ground, "gpu-0-1g-0") == [(State.IN_USE, "instance-lost")]
    (claim,) = ground.registry.journal.claims.values()
    assert ground.partitions.lost(claim)
    with pytest.raises(errors.DeviceUnfit, match="removed from outside"):
        ground.partitions.present(ground.device())
    with pytest.raises((errors.DeviceUnfit, errors.DeviceBusy)):
        ground.partitions.ensure(ground.device())
    ground.partitions.settle()
    assert len(ground.partitions.records()) == 1, "its number stays its own"


def test_a_tenant_that_outlived_its_claim_keeps_its_number(ground: Ground) -> None:
    """Promise 1, promise 4: nothing is made with a number that such a pod has nodes of."""
    exposed(ground, "alice", "gpu-0-1g-0")
    (claim,) = ground.registry.journal.claims.values()
    ground.partitions.retain(claim)
    ground.bury("alice")
    ground.partitions.settle()
    assert len(ground.backend.there) == 1
    assert ground.partitions.outlived(ground.device().uuid)
    removed_from_outside(ground)
    with pytest.raises(errors.DeviceBusy, match="outlived"):
        ground.partitions.ensure(ground.device("gpu-0-1g-4"))
    with ground.registry.commit() as commit:
        for unit in ground.device("gpu-0-1g-0").units:
            commit.put_unit(dataclasses.replace(commit.unit(unit), state=State.QUARANTINED))
    with ground.partitions.entered(ground.device(), None):
        pass  # a retest, before which that tenant was proven gone
    assert (ground.backend.there, ground.partitions.records()) == ([], [])


def test_what_is_made_and_removed_meanwhile_is_never_taken_for_foreign(ground: Ground) -> None:
    """Promise 9: partitions of one accelerator come and go; nobody's guard trips over them."""
    ended = threading.Event()
    whole = ground.device("gpu-0")
    seen: list[Process] = []

    def look() -> None:
        while not ended.is_set():
            seen.extend(ground.partitions.foreign(whole))

    def wipe(start: int) -> None:
        for _ in range(4):
            with ground.partitions.entered(ground.device(f"gpu-0-1g-{start}"), None) as visible:
                assert visible

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        wiping = [pool.submit(wipe, start) for start in range(3)]
        for each in wiping:
            each.result(10.0)
        ended.set()
        looking.result(10.0)
    assert (seen, ground.backend.there, ground.partitions.records()) == ([], [], [])
    assert len(ground.backend.log) == 24
