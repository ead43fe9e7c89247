"""The tenant is gone when its pods' cgroups say so; a process list alone never does."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.clock import ManualClock
from fleet.core.model import BootId, ClaimUid, Device, NodeName, Token, Uuid
from fleet.core.settings import HealthPolicy
from fleet.core.sqlite import open_database
from fleet.devices.simulated import clients
from fleet.node.bounded import BoundedCalls
from fleet.node.cgroups import CgroupTree
from fleet.node.journal import schema
from fleet.node.journal.journal import Journal
from fleet.node.journal.startup import Place
from fleet.node.pods import PodTenants
from fleet.node.registry import Registry
from fleet.node.tenancy import ProcessTenants
from fleet.node.validation import Validator
from tests.fleet.devices.wipe.orders import eventually, node
from tests.fleet.node.trees import LAYOUTS, OTHER, POD, Tree, checkpoint_text

THIRD = "3f9c1e0a-0000-4000-8000-00000000000c"


@dataclass
class Bench:
    """A registry of one partitionable accelerator, a cgroup tree and a checkpoint."""

    registry: Registry
    tree: Tree
    checkpoint: Path

    @property
    def tenants(self) -> PodTenants:
        validator = Validator(self.registry, BoundedCalls(), HealthPolicy())
        processes = ProcessTenants(self.registry, validator)
        return PodTenants(self.registry, processes, CgroupTree(self.tree.root), self.checkpoint)

    def device(self, name: str = "gpu-0") -> Device:
        return self.registry.device(name)

    def claim(self, uid: str, name: str = "gpu-0", consumers: tuple[str, ...] = (POD,)) -> Claim:
        """A prepared claim of this boot, in the journal."""
        device = self.device(name)
        claim = Claim(
            ClaimUid(uid),
            ClaimState.PREPARED,
            (device.uuid,),
            device.units,
            Token(1, 1),
            self.registry.boot_id,
            consumers=consumers,
        )
        return self.put(claim)

    def put(self, claim: Claim) -> Claim:
        with self.registry.commit() as commit:
            commit.put_claim(claim)
        return claim

    def kubelet_knows(self, **claims: list[str]) -> None:
        self.checkpoint.write_text(checkpoint_text(claims))


def made(tmp_path: Path, layout: str) -> Bench:
    backend = node(tmp_path / "sim", partitionable=1)
    database = open_database(tmp_path / "journal.db", schema=schema.SCHEMA, timeout_s=5.0)
    place = Place(tmp_path / "journal.db", tmp_path / "witness", NodeName("n0"), "m")
    registry = Registry(
        backend, Journal(database), place, ManualClock(1.0), boot_id=backend.boot_id()
    )
    registry.load()
    return Bench(registry, Tree(tmp_path / "cgroup", layout), tmp_path / "dra_manager_state")


@pytest.fixture(params=LAYOUTS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A node in each layout of cgroups."""
    bench = made(tmp_path, request.param)
    yield bench
    bench.registry.journal.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A node with cgroup v1."""
    found = made(tmp_path, "v1-cgroupfs")
    yield found
    found.registry.journal.close()


def test_a_claim_is_gone_with_the_last_process_of_its_pods(anywhere: Bench) -> None:
    """Promise 4, B01: a force-deleted pod's process that ignores SIGTERM keeps the device."""
    claim, pod = anywhere.claim("c"), anywhere.tree.pod(POD)
    anywhere.tree.enter(pod)
    assert not anywhere.tenants.gone(claim)
    assert POD in anywhere.tenants.obstacle(claim)
    anywhere.tree.leave(pod)
    assert anywhere.tenants.gone(claim), "kubelet removes the pod's cgroup after unprepare only"
    anywhere.tree.remove(pod)
    assert anywhere.tenants.gone(claim)


def test_every_consumer_counts(bench: Bench) -> None:
    """Reference 1.5 a: an early unprepare does not end the tenancy of the other pod."""
    claim = bench.claim("c", consumers=(POD, OTHER))
    bench.tree.pod(POD)
    bench.tree.enter(bench.tree.pod(OTHER, "besteffort"))
    assert not bench.tenants.gone(claim)


def test_a_pod_that_only_kubelet_knows_counts(bench: Bench) -> None:
    """DESIGN 5: a further pod of a shared claim gets no call of its own, kubelet notes it alone."""
    claim = bench.claim("c")
    bench.tree.enter(bench.tree.pod(OTHER))
    bench.kubelet_knows(c=[POD, OTHER], d=[THIRD])
    assert not bench.tenants.gone(claim)
    bench.kubelet_knows(c=[POD], d=[OTHER])
    assert bench.tenants.gone(claim)


def test_a_neighbours_pod_does_not_count(bench: Bench) -> None:
    """Promise 9: another claim's pod keeps nobody waiting."""
    bench.tree.enter(bench.tree.pod(OTHER))
    assert bench.tenants.gone(bench.claim("c"))


def test_a_process_outside_of_the_pods_counts(bench: Bench) -> None:
    """Promise 4: empty cgroups are not enough while a process has the device open."""
    claim, device = bench.claim("c"), bench.device()
    registers = bench.registry.backend.registers(device.uuid)  # type: ignore[attr-defined]
    memory = bench.registry.backend.memory(device.uuid)  # type: ignore[attr-defined]
    clients.start(registers, memory, name="tenant", units=device.units, seconds=60)
    try:
        assert not bench.tenants.gone(claim)
        assert "process" in bench.tenants.obstacle(claim)
    finally:
        clients.stop(registers.read().clients)
    assert eventually(lambda: bench.tenants.gone(claim))


def test_a_later_boot_ends_every_tenancy(bench: Bench) -> None:
    """Promise 4: no process survives a reboot; an unknown boot proves nothing."""
    bench.tree.enter(bench.tree.pod(POD))
    claim = bench.claim("c")
    assert bench.tenants.gone(replace(claim, boot_id=BootId("before")))
    assert not bench.tenants.gone(replace(claim, boot_id=BootId("")))


def lose_tree(bench: Bench) -> None:
    bench.tree.root.rename(bench.tree.root.with_name("elsewhere"))


def damage_checkpoint(bench: Bench) -> None:
    bench.checkpoint.write_text('{"Data": "{", "Checksum": 1}')


def hide_processes(bench: Bench) -> None:
    (bench.tree.pod(POD)[0] / "cgroup.procs").unlink()


def break_driver(bench: Bench) -> None:
    backend = bench.registry.backend
    backend.registers(bench.device().uuid).path.write_text("{")  # type: ignore[attr-defined]


@pytest.mark.parametrize("doubt", [lose_tree, damage_checkpoint, hide_processes, break_driver])
def test_what_is_unknown_is_not_gone(bench: Bench, doubt: Callable[[Bench], None]) -> None:
    """Promise 5: no cgroups, a corrupt checkpoint, an unreadable cgroup, a silent driver."""
    claim = bench.claim("c")
    assert bench.tenants.gone(claim)
    doubt(bench)
    assert not bench.tenants.gone(claim)
    assert "unknown" in bench.tenants.obstacle(claim)


def test_nobody_known_is_gone_only_when_kubelet_says_so(bench: Bench) -> None:
    """Promise 5: a record without consumers (a lost journal) needs kubelet's own word."""
    claim = bench.claim("c", consumers=())
    assert not bench.tenants.gone(claim)
    bench.kubelet_knows(d=[OTHER])
    assert bench.tenants.gone(claim)


def test_what_no_pod_can_be_called_is_not_gone(bench: Bench) -> None:
    """Promise 5: a consumer that cannot be looked for is not taken for absent."""
    assert not bench.tenants.gone(bench.claim("c", consumers=("../x",)))


def test_running_names_the_pods_that_run(anywhere: Bench) -> None:
    """Reference 1.5 a: before a teardown, those of the API's pods that still run."""
    anywhere.tree.enter(anywhere.tree.pod(POD))
    anywhere.tree.pod(OTHER)
    assert anywhere.tenants.running([THIRD, POD, OTHER, POD]) == (POD,)
    lose_tree(anywhere)
    assert anywhere.tenants.running([POD]) == (), "for certain, or not named"


def test_one_unreadable_cgroup_hides_no_running_pod(bench: Bench) -> None:
    """A process seen in one hierarchy runs, whatever another hierarchy does not tell."""
    pod = bench.tree.pod(POD)
    bench.tree.enter(pod)
    for path in pod[:-1]:
        for listed in path.rglob("cgroup.procs"):
            listed.unlink()
    assert bench.tenants.running([POD]) == (POD,)


def test_a_consumers_process_keeps_the_wipe_away(anywhere: Bench) -> None:
    """DESIGN 4, WipeStarted: no non-empty cgroup of a consumer, whether it uses the device yet."""
    tenants, pod = anywhere.tenants, anywhere.tree.pod(POD)
    assert not tenants.created(anywhere.device().uuid)
    anywhere.claim("c")
    assert not tenants.created(anywhere.device().uuid)
    anywhere.tree.enter(pod)
    assert tenants.created(anywhere.device().uuid)


def test_a_partition_is_wiped_beside_its_neighbours_tenant(bench: Bench) -> None:
    """Promise 9: only claims that share memory with the device asked for keep it from a wipe."""
    bench.claim("c", "gpu-0-1g-0")
    bench.tree.enter(bench.tree.pod(POD))
    answers = {
        name: bool(bench.tenants.created(bench.device(name).uuid))
        for name in ("gpu-0-1g-0", "gpu-0-1g-1", "gpu-0-2g-0", "gpu-0")
    }
    assert answers == {"gpu-0-1g-0": True, "gpu-0-1g-1": False, "gpu-0-2g-0": True, "gpu-0": True}


def test_an_attachment_keeps_the_wipe_away(bench: Bench) -> None:
    """B35: somebody with adminAccess is a tenant for a wipe, running or not."""
    part = bench.device("gpu-0-1g-0")
    claim = replace(bench.claim("c"), devices=(), units=(), attached=(part.uuid,))
    bench.put(claim)
    attached = bench.registry.attached
    assert attached((part.uuid,)) == (claim.uid,)
    assert attached((bench.device().uuid,)) == (claim.uid,)
    assert attached((bench.device("gpu-0-1g-1").uuid,)) == ()
    assert attached((part.uuid,), besides=claim.uid) == ()


@pytest.mark.parametrize("doubt", [lose_tree, damage_checkpoint, hide_processes])
def test_what_is_unknown_counts_as_created(bench: Bench, doubt: Callable[[Bench], None]) -> None:
    """Promise 5: nothing is wiped while it is unknown whether a consumer is there."""
    bench.claim("c")
    doubt(bench)
    assert bench.tenants.created(bench.device().uuid)


def test_a_device_that_vanished_is_not_wiped(bench: Bench) -> None:
    """Promise 5: nobody knows who is on a device that the inventory does not list."""
    assert not bench.tenants.created(bench.device().uuid)
    assert bench.tenants.created(Uuid("SIM-gone"))


def test_free_is_what_processes_say(bench: Bench) -> None:
    """DESIGN 4, ProvenFree: (d) for simulated devices; a real one is adopted by a person."""
    device = bench.device().uuid
    assert bench.tenants.free(device)
    bench.registry.backend.simulated = False
    assert not bench.tenants.free(device)


def given(pods: dict[str, tuple[str, str]]) -> str:
    """Kubelet's checkpoint: for each claim its pod, and the device of ours that it was given."""
    entries = [
        {
            "ClaimUID": uid,
            "PodUIDs": {pod: {}},
            "DriverState": {"gpu.example": {"Devices": [{"DeviceName": name}]}, "other": {}},
        }
        for uid, (pod, name) in pods.items()
    ]
    inner = json.dumps({"ClaimInfoStateList": entries})
    return json.dumps({"Data": inner, "Checksum": zlib.crc32(inner.encode())})


@pytest.mark.parametrize(
    ("name", "found"),
    [("gpu-0", True), ("gpu-0-1g-0", True), ("gone-0", True), ("gpu-0-1g-1", False)],
)
def test_a_pod_of_a_claim_we_forgot_counts_for_its_device(
    bench: Bench, name: str, *, found: bool
) -> None:
    """Promise 4, B35: who is attached has no lease; after a lost journal only kubelet knows."""
    tenants = replace(bench.tenants, driver="gpu.example", besides=frozenset({"agent"}))
    bench.tree.enter(bench.tree.pod(OTHER))
    bench.tree.enter(bench.tree.pod(THIRD))
    bench.checkpoint.write_text(given({"forgotten": (OTHER, name), "a": (THIRD, "agent")}))
    assert (OTHER in tenants.created(bench.device("gpu-0-1g-0").uuid)) is found
    assert bench.tenants.created(bench.device().uuid) == "", "another driver's devices"
    known = replace(bench.claim("forgotten", consumers=()), units=(), devices=())
    bench.put(known)
    assert tenants.created(bench.device().uuid) == ""


def test_what_every_proof_would_fail_for_is_told(anywhere: Bench) -> None:
    """Promise 4: unreadable cgroups or checkpoint fail each proof; neither pods nor a checkpoint
    that does not exist yet are none."""
    assert anywhere.tenants.trouble() == ""
    anywhere.checkpoint.write_text("{")
    assert f"{anywhere.checkpoint} cannot be understood" in anywhere.tenants.trouble()
    anywhere.kubelet_knows(c=[POD])
    assert anywhere.tenants.trouble() == ""
    anywhere.tree.root.rename(anywhere.tree.root.with_name("hidden"))
    assert f"there are no cgroups at {anywhere.tree.root}" in anywhere.tenants.trouble()
    anywhere.tree.root.mkdir()
    assert "no kubepods cgroup is visible" in anywhere.tenants.trouble()
