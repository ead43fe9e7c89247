"""A start brings journal and reality together before any act: doubt never leads to CLEAN."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid as uuids
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import errors, sqlite
from fleet.core.boot import kernel_boot_id
from fleet.core.claim_states import ClaimState
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimOrder, Outcome
from fleet.core.model import (
    ClaimUid,
    Digest,
    Holder,
    HolderKind,
    OperationId,
    State,
    Token,
    UnitId,
    Uuid,
)
from fleet.core.processes import WorkerIdentity, start_time, survivors
from fleet.core.unit_states import INTERRUPTIONS_MAX
from fleet.devices.simulated.registers import Client
from fleet.node.journal import schema
from fleet.node.journal.journal import OperationRow, WorkerRow
from tests.fleet.node.conftest import Lab, quick_settings, wait_for
from tests.fleet.node.parting import parting

ROOT = Path(__file__).parents[3]


def crash(lab: Lab, mode: str, *arguments: str) -> int:
    """Close the node, run it in a process that is killed, and open it again; the exit code."""
    lab.node.close()
    command = (sys.executable, "-m", "tests.fleet.node.crashing")
    done = subprocess.run(
        [*command, mode, lab.plan.model_dump_json(), *arguments],
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    lab.open()
    return done.returncode


def test_a_service_killed_in_the_middle_of_a_wipe(lab: Lab) -> None:
    """B02, gpus-8.40: DIRTY, worker gone, operation INTERRUPTED, no certificate for that run."""
    lab.scrub()
    lab.fault("hang")
    order = lab.order()
    code = crash(lab, "scrub", order.model_dump_json())
    assert code == -signal.SIGKILL
    assert (lab.device().state, lab.device().certificate) == (State.DIRTY, "")
    assert lab.node._registry.journal.workers() == []
    (result,) = lab.node.view([order.operation]).results
    assert (result.outcome, result.certificate) == (Outcome.INTERRUPTED, "")
    assert lab.ledger.count == 1
    (replayed,) = lab.node.scrub([order])
    assert replayed.accepted
    assert lab.node._registry.works() == []
    lab.backend.clear_fault(Uuid(lab.device().uuid), "hang")
    assert lab.scrub().outcome is Outcome.CERTIFIED
    assert lab.ledger.count == 2


@pytest.mark.parametrize(
    ("left", "found"),
    [
        (State.WIPING, State.DIRTY),
        (State.CHECKING, State.DIRTY),
        (State.RETESTING, State.QUARANTINED),
        (State.CLEAN, State.CLEAN),
        (State.DIRTY, State.DIRTY),
        (State.HELD, State.HELD),
        (State.QUARANTINED, State.QUARANTINED),
    ],
)
def test_each_state_after_a_restart(lab: Lab, left: State, found: State) -> None:
    """Promise 5: work that was cut is doubt; everything else is as it was."""
    lab.leave(left)
    assert lab.device().state == found


@pytest.mark.parametrize(
    ("left", "found"),
    [
        (State.WIPING, State.DIRTY),
        (State.CLEAN, State.DIRTY),
        (State.IN_USE, State.DIRTY),
        (State.RETESTING, State.QUARANTINED),
        (State.QUARANTINED, State.QUARANTINED),
        (State.HELD, State.DIRTY),
    ],
)
def test_each_state_after_a_reboot(lab: Lab, left: State, found: State) -> None:
    """D5, V2: a new boot drops all trust."""
    lab.backend.reboot()
    lab.leave(left)
    assert lab.device().state == found
    assert {unit.boot_id for unit in lab.units()} == {lab.node.view().boot_id}


def test_a_crash_in_the_check_for_the_third_time_quarantines(lab: Lab) -> None:
    """DESIGN 4: a wipe cut three times in a row is a fault, also when the service was cut."""
    lab.leave(State.CHECKING, interruptions=INTERRUPTIONS_MAX - 1)
    assert lab.device().state == State.DIRTY
    assert lab.units()[0].interruptions == INTERRUPTIONS_MAX


def test_what_outlives_its_kill_is_remembered_across_restarts(lab: Lab) -> None:
    """B44, gpus-8.14: wedged until proven gone; then a scrub passes, and not before."""
    lab.fault("wedge", seconds="60")
    assert lab.scrub().outcome is Outcome.QUARANTINED
    lab.restart()
    assert {reason.code for reason in lab.device().reasons} >= {"wedged"}
    assert len(lab.node._registry.journal.workers()) == 1
    assert lab.scrub().outcome is Outcome.QUARANTINED
    lab.backend.clear_fault(Uuid(lab.device().uuid), "wedge")
    wait_for(lambda: lab.scrub().outcome is Outcome.CERTIFIED)
    assert lab.node._registry.journal.workers() == []


def test_a_surviving_worker_quarantines_whatever_the_state(lab: Lab) -> None:
    """DESIGN 4: no exposure while an older worker of ours may live, CLEAN or not."""
    lab.fault("wedge", seconds="60")
    lab.scrub()
    (row,) = lab.node._registry.journal.workers()
    units = [unit.id for unit in lab.units("gpu-1")][:5]
    states = [State.CLEAN, State.WIPING, State.CHECKING, State.DIRTY, State.HELD]
    lab.node.close()
    with lab.journal() as journal, journal.commit() as commit:
        commit.put_worker(WorkerRow("ghost", row.accelerator, tuple(units), row.identity, row.at))
        for unit, state in zip(units, states, strict=True):
            commit.put_unit(replace(commit.unit(unit), state=state))
    lab.open()
    found = lab.units("gpu-1")
    assert [unit.state for unit in found[:5]] == [State.QUARANTINED] * 4 + [State.HELD]
    assert {r.code for unit in found[:5] for r in unit.reasons} == {"wedged"}
    assert {unit.state for unit in found[5:]} == {State.DIRTY}
    lab.backend.clear_fault(Uuid(lab.device().uuid), "wedge")


def test_many_survivors_are_waited_for_together(lab: Lab) -> None:
    """Promise 7: nobody answers while a start waits, so many wedged workers take no longer than one
    and keep no other from being killed and proven gone.
    """
    wait_s = 1.0
    lab.fault("wedge", seconds="60")
    lab.scrub()
    (row,) = lab.node._registry.journal.workers()
    units = [unit.id for unit in lab.units("gpu-1")]
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(child.pid)
    assert started is not None
    mortal = WorkerIdentity("e" * 32, child.pid, started, kernel_boot_id()).as_json()
    lab.node.close()
    with lab.journal() as journal, journal.commit() as commit:
        for number, unit in enumerate(units[:6]):
            ghost = WorkerRow(f"ghost-{number}", row.accelerator, (unit,), row.identity, row.at)
            commit.put_worker(ghost)
        commit.put_worker(WorkerRow("mortal", row.accelerator, (units[6],), mortal, row.at))
    began = time.monotonic()
    lab.open(settings=quick_settings(kill_wait_s=wait_s))
    assert time.monotonic() - began < 3 * wait_s
    left = {worker.worker_id for worker in lab.node._registry.journal.workers()}
    assert left == {row.worker_id, *(f"ghost-{number}" for number in range(6))}
    assert child.wait(10.0) == -signal.SIGKILL
    found = lab.units("gpu-1")
    assert [unit.state for unit in found] == [State.QUARANTINED] * 6 + [State.DIRTY] * len(
        units[6:]
    )
    assert child.stdin is not None
    child.stdin.close()
    lab.backend.clear_fault(Uuid(lab.device().uuid), "wedge")


def test_a_recycled_pid_is_not_our_worker(lab: Lab) -> None:
    """B44: pid, start time and boot together name a worker; another process is left alone."""
    identity = WorkerIdentity("f" * 32, os.getpid(), 1, kernel_boot_id())
    units = tuple(UnitId(unit) for unit in lab.device().units)
    with lab.node._registry.commit() as commit:
        commit.put_worker(
            WorkerRow("f" * 32, Uuid(lab.device().uuid), units, identity.as_json(), 1.0)
        )
    lab.restart()
    assert lab.device().state == State.DIRTY
    assert start_time(os.getpid()) is not None
    assert survivors(identity) == ()
    assert lab.node._registry.journal.workers() == []


def test_a_reboot_undoes_exposure_and_trusts_no_spec(lab: Lab) -> None:
    """V2: PREPARED goes back to PREPARING, its spec is gone; the same uid is wiped again first."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.prepare(order)
    count = lab.ledger.count
    lab.node.close()
    lab.backend.reboot()
    lab.open()
    assert [claim.state for claim in lab.node.claims()] == [ClaimState.PREPARING]
    assert (lab.device().state, lab.device().certificate, lab.specs) == (State.DIRTY, "", [])
    assert lab.node.prepare(order).state == ClaimState.PREPARED
    assert lab.ledger.count == count + 1
    assert lab.device().state == State.IN_USE


def test_a_teardown_cut_by_a_reboot_goes_on(lab: Lab) -> None:
    """Promise 7: UNPREPARING survives the boot and ends by itself."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    with lab.tenant(), pytest.raises(errors.DeviceBusy, match="still has gpu-0"):
        lab.node.unprepare("claim-a")
    lab.node.close()
    lab.backend.reboot()
    lab.open()
    lab.node.tick(1.0)
    wait_for(lambda: not lab.node.claims())
    assert lab.device().state == State.CLEAN


def test_specs_after_a_restart(lab: Lab) -> None:
    """Promise 3, A7: orphans go, specs of prepared claims are rebuilt, others' files stay."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    (name,) = lab.specs
    directory = lab.directory / "cdi"
    content = (directory / name).read_text()
    lab.node.close()
    (directory / name).unlink()
    for orphan in ("fleetscrub.dev-gpu_orphan.json", "nvidia.com-gpu.json"):
        (directory / orphan).write_text("{}")
    lab.open()
    assert lab.specs == [name, "fleetscrub.dev-gpu_orphan.json.aside", "nvidia.com-gpu.json"]
    assert (directory / name).read_text() == content


def test_orphans_that_cannot_be_removed_keep_the_node_up_and_are_tried_again(lab: Lab) -> None:
    """No state is a trap: an unusable directory is shown, and cured once it can be."""
    orphan = lab.directory / "cdi" / "fleetscrub.dev-gpu_orphan.json"
    orphan.mkdir(parents=True)
    lab.restart()
    assert any("orphan" in text for text in lab.node.view().degraded)
    orphan.rmdir()
    orphan.write_text("{}")
    lab.node.tick(0.0)
    assert not orphan.exists()
    assert lab.node.view().degraded == ()


def test_a_crash_between_ledger_and_journal_forks_no_chain(lab: Lab) -> None:
    """E3: the chain's end is read from the ledger; the certificate of the lost CLEAN is linked."""
    first = lab.scrub()
    lab.leave(State.CHECKING, certificate=None, head=None)
    assert lab.device().state == State.DIRTY
    second = lab.scrub()
    (unit,) = lab.device().units
    link = lab.ledger.certificate(Digest(second.certificate)).chain[UnitId(unit)]
    assert (link.previous, link.sequence) == (first.certificate, 2)


def test_operations_without_an_answer_are_answered(lab: Lab) -> None:
    """B43: whoever asks for an operation the crash cut gets the truth, also for lost devices."""
    lab.node.close()
    with lab.journal() as journal, journal.commit() as commit:
        for op, target in (
            ("op-a", "gone"),
            ("op-b", str(next(iter(journal.units))).split("/")[0]),
        ):
            commit.put_operation(OperationRow(OperationId(op), "scrub", target, {}, None, 1.0))
    lab.open()
    results = lab.node.view(["op-a", "op-b", "op-c"]).results
    assert [r.outcome for r in results] == [Outcome.INTERRUPTED] * 2
    assert [r.state for r in results] == [State.HELD, State.DIRTY]


def lose_journal(lab: Lab, *, damage: bool = False) -> None:
    lab.node.close()
    path = lab.directory / "journal.db"
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    if damage:
        path.write_bytes(b"SQLite format 3\0" + b"\xff" * 8176)
    else:
        path.unlink()


def test_a_lost_journal_holds_everything_and_closes_all_tokens(lab: Lab) -> None:
    """V10: floors are adopted from the store; a delayed order of before is refused."""
    lab.scrub()
    old = lab.order()
    lose_journal(lab)
    lab.open()
    assert {device.state for device in lab.node.view().devices} == {State.HELD}
    newest = lab.coordinator.newest()
    assert {(u.floor, u.closed) for u in lab.units()} == {(newest, True)}
    (refused,) = lab.node.scrub([old])
    assert (refused.kind, refused.fields["floor"]) == ("TokenStale", str(newest))
    lab.free()
    lab.let_go()
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_a_journal_set_aside_is_shown_and_kept(lab: Lab) -> None:
    """DESIGN 4: damaged means lost; the file is kept and the view says why."""
    lab.scrub()
    lose_journal(lab, damage=True)
    lab.open()
    assert any("set aside" in text for text in lab.node.view().degraded)
    assert list(lab.directory.glob("journal.db.aside-*"))
    assert {device.state for device in lab.node.view().devices} == {State.HELD}


def test_a_lost_journal_removes_specs_and_remembers_quarantines(lab: Lab) -> None:
    """DESIGN 4: orphan specs go; the store's quarantine holders become reasons again."""
    lab.node.prepare(lab.claim("claim-a", "gpu-1-1g-0"))
    units = frozenset(UnitId(unit) for unit in lab.device().units)
    lab.coordinator.acquire([AcquireRequest(units, Holder(HolderKind.QUARANTINE, "gpu-0"))])
    lose_journal(lab)
    lab.open()
    assert lab.specs == []
    assert {reason.code for reason in lab.device().reasons} == {"operator"}
    lab.free()
    assert lab.device().state == State.QUARANTINED
    assert lab.device("gpu-1-1g-1").state == State.DIRTY


def test_reasons_survive_the_loss_of_the_journal(lab: Lab) -> None:
    """B15: what an operator and the health sweep found is still there in a new journal."""
    lab.node.quarantine_add("gpu-0", detail="smells", operator="ada")
    lab.fault("remap-failed", device="gpu-1")
    lab.node.sweep()
    lose_journal(lab)
    lab.open()
    lab.free()
    assert [r.detail for r in lab.device().reasons] == ["smells"]
    assert {r.code for r in lab.device("gpu-1").reasons} == {"remap-failed"}
    assert lab.device().state == lab.device("gpu-1").state == State.QUARANTINED


def test_reasons_survive_an_older_journal_that_nobody_witnessed(lab: Lab) -> None:
    """B15, promise 6: restored from a backup before a boot, it lacks what the copy has kept."""
    lab.free()
    lab.node.close()
    shutil.copy(lab.directory / "journal.db", lab.directory / "older")
    lab.open()
    lab.node.quarantine_add("gpu-0", detail="smells", operator="ada")
    lab.node.close()
    shutil.copy(lab.directory / "older", lab.directory / "journal.db")
    (lab.directory / "run" / "n1.witness").unlink()
    lab.backend.reboot()
    lab.open()
    lab.free()
    assert [reason.detail for reason in lab.device().reasons] == ["smells"]
    assert lab.device().state == State.QUARANTINED
    assert lab.device("gpu-1").reasons == ()


def test_a_first_start_cut_short_and_a_boot_leave_no_unit_behind(lab: Lab) -> None:
    """Promise 7: a unit of an earlier boot could be wiped for ever, and never be exposed."""
    lose_journal(lab)
    lab.open()
    lab.node.close()
    journal = sqlite.open_database(
        lab.directory / "journal.db", schema=schema.SCHEMA, timeout_s=2.0
    )
    with journal.transaction():
        journal.execute("DELETE FROM meta WHERE key = 'boot_id'")
    journal.close()
    lab.backend.reboot()
    (lab.directory / "run" / "n1.witness").unlink(missing_ok=True)
    lab.open()
    assert {unit.boot_id for unit in lab.units()} == {lab.node.view().boot_id}
    lab.free()
    assert lab.node.prepare(lab.claim("claim-a", "gpu-0")).state == "PREPARED"


def test_with_the_store_away_a_new_journal_accepts_nothing(lab: Lab) -> None:
    """DESIGN 4: before it knows the newest token a node would follow any."""
    order, claim = lab.order(), lab.claim("claim-a", "gpu-1")
    lose_journal(lab)
    store = lab.state / "coordinator" / "store.db"
    store.rename(store.with_suffix(".away"))
    store.mkdir()
    lab.open()
    (refused,) = lab.node.scrub([order])
    assert refused.kind == "StoreUnavailable"
    with pytest.raises(errors.StoreUnavailable, match="new journal"):
        lab.node.prepare(claim)
    with pytest.raises(errors.StoreUnavailable, match="new journal"):
        lab.node.abandon("claim-a", str(claim.token), claim.devices)
    assert {unit.floor for unit in lab.units()} == {Token(0, 0)}
    store.rmdir()
    store.with_suffix(".away").rename(store)
    lab.free()
    (refused,) = lab.node.scrub([order])
    assert refused.kind == "TokenStale"


def test_a_journal_that_follows_a_store_needs_it_no_more(lab: Lab) -> None:
    """A store outage stops no teardown and no act under tokens already issued."""
    order = lab.order()
    lab.node.close()
    store = lab.state / "coordinator" / "store.db"
    store.rename(store.with_suffix(".away"))
    store.mkdir()
    lab.open()
    (accepted,) = lab.node.scrub([order])
    assert accepted.accepted
    assert lab.result(order.operation).outcome is Outcome.CERTIFIED
    store.rmdir()
    store.with_suffix(".away").rename(store)


def test_work_that_nobody_does_any_more_is_settled_without_a_restart(lab: Lab) -> None:
    """No state is a trap: a lost thread leaves neither WIPING nor an open operation behind."""
    registry = lab.node._registry
    device = registry.device("gpu-1-1g-0")
    with registry.commit() as commit:
        for unit in device.units:
            commit.put_unit(replace(commit.unit(unit), state=State.WIPING))
        commit.put_operation(OperationRow(OperationId("lost"), "scrub", device.uuid, {}, None, 1.0))
    lab.node.tick(0.0)
    assert lab.device("gpu-1-1g-0").state == State.DIRTY
    assert lab.result("lost").outcome is Outcome.INTERRUPTED


AFTER_EXPOSURE = 8
"""Commits of a prepare of two devices until they are IN_USE: one, three for each wipe, one."""


@pytest.mark.parametrize(
    ("commits", "retried"), [(1, True), (2, False), (5, True), (7, False), (8, False), (9, True)]
)
def test_a_prepare_killed_after_each_commit(lab: Lab, commits: int, retried: bool) -> None:
    """B62: killed anywhere, a retry prepares fully, the teardown undoes fully; nothing leaks."""
    order = lab.claim("claim-a", "gpu-0", "gpu-1-1g-0")
    code = crash(lab, "prepare", order.model_dump_json(), str(commits))
    assert code == -signal.SIGKILL
    (claim,) = lab.node.claims()
    assert (claim.state == ClaimState.PREPARED) == (commits > AFTER_EXPOSURE)
    assert bool(lab.specs) == (claim.state == ClaimState.PREPARED)
    retry_then_undo(lab, order) if retried else undo(lab)
    assert_nothing_left(lab)


def test_a_prepare_killed_between_exposure_and_spec_goes_on_without_a_wipe(lab: Lab) -> None:
    """DESIGN 4: units IN_USE under this record on the same boot: go on at "write CDI"."""
    order = lab.claim("claim-a", "gpu-0", "gpu-1-1g-0")
    crash(lab, "prepare", order.model_dump_json(), str(AFTER_EXPOSURE))
    assert [claim.state for claim in lab.node.claims()] == [ClaimState.PREPARING]
    assert (lab.device().state, lab.specs) == (State.IN_USE, [])
    count = lab.ledger.count
    assert lab.node.prepare(order).state == ClaimState.PREPARED
    assert (lab.ledger.count, len(lab.specs)) == (count, 1)


def retry_then_undo(lab: Lab, order: ClaimOrder) -> None:
    answer = lab.node.prepare(order)
    assert answer.state == ClaimState.PREPARED
    assert {u.token for n in ("gpu-0", "gpu-1-1g-0") for u in lab.units(n)} == {
        Token.parse(str(order.token))
    }
    assert len(lab.specs) == 1
    undo(lab)


def undo(lab: Lab) -> None:
    assert lab.node.unprepare("claim-a").state == ClaimState.ABSENT


def assert_nothing_left(lab: Lab) -> None:
    assert lab.specs == []
    assert list(lab.node.claims()) == []
    assert {unit.claim for n in ("gpu-0", "gpu-1") for unit in lab.units(n)} == {None}
    assert lab.node._registry.journal.workers() == []
    lab.node.tick(0.0)
    assert lab.coordinator.leases() == []
    for device in lab.backend.inventory():
        assert lab.backend.processes(device.uuid) == ()


@pytest.mark.parametrize("commits", [1, 2, 3, 5, 6])
def test_a_teardown_killed_after_each_commit(lab: Lab, commits: int) -> None:
    """B02, D6: killed anywhere, the teardown goes on by itself and ends clean, once."""
    lab.node.prepare(lab.claim("claim-a", "gpu-0"))
    assert crash(lab, "unprepare", "claim-a", str(commits)) == -signal.SIGKILL
    lab.node.tick(1.0)
    wait_for(lambda: not lab.node.claims())
    assert (lab.device().state, lab.specs) == (State.CLEAN, [])
    assert_nothing_left(lab)


def test_client_records_of_the_dead_are_no_holders(lab: Lab) -> None:
    """A register file that names a process of before is not believed without that process."""
    with lab.backend.registers(Uuid(lab.device().uuid)).change() as register:
        units = list(lab.device().units)
        register.clients.append(Client(2**22 - 1, 1, "tenant", units, str(uuids.uuid4())))
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_the_witness_catches_a_restored_journal(lab: Lab) -> None:
    """DESIGN 4: a journal behind its witness was restored: set aside, everything HELD."""
    lab.scrub()
    witness = lab.directory / "run" / "n1.witness"
    lab.node.close()
    seen = json.loads(witness.read_text())
    witness.write_text(json.dumps({**seen, "sequence": seen["sequence"] + 1}))
    lab.open()
    assert {device.state for device in lab.node.view().devices} == {State.HELD}
    assert lab.node.view().degraded


def test_a_claims_lease_in_the_store_is_not_lost_with_the_journal(lab: Lab) -> None:
    """Promise 4: its tenant may be running: HELD under its claim until that is torn down."""
    order = lab.claim("claim-a", "gpu-0")
    lab.node.prepare(order)
    lab.memory().write_bytes(b"\x5a" * lab.device().memory_bytes)
    lose_journal(lab)
    lab.open()
    lab.node.tick(1e12)
    assert (lab.device().state, lab.device().claim) == (State.HELD, "claim-a")
    with pytest.raises(errors.IllegalTransition):
        lab.node.abandon("claim-a", str(order.token), order.devices)
    with pytest.raises(errors.DeviceBusy):
        lab.node.prepare(order)
    assert lab.node.unprepare("claim-a").state == "ABSENT"
    assert not any(lab.memory().read_bytes())
    lab.node.tick(0.0)
    assert lab.coordinator.leases() == []
    assert lab.node.prepare(lab.claim("claim-a", "gpu-0")).state == "PREPARED"


def test_a_journal_that_disagrees_with_the_ledger_is_not_believed(lab: Lab) -> None:
    """Promise 5: CLEAN without its certificate at the end of the chain is DIRTY after a start."""
    lab.scrub()
    lab.let_go()
    lab.node.close()
    shutil.copy(lab.directory / "journal.db", lab.directory / "older")
    lab.open()
    newest = Token.parse(lab.order().token)
    lab.scrub()
    lab.node.close()
    shutil.copy(lab.directory / "older", lab.directory / "journal.db")
    for witness in lab.directory.glob("run/*"):
        witness.unlink()
    lab.open()
    assert lab.device().state == State.DIRTY
    assert {unit.floor for unit in lab.units()} >= {newest}


def test_all_leases_of_a_claim_are_remembered_when_the_journal_is_lost(lab: Lab) -> None:
    """Promise 7: one that its record never learned of is found by holder; nothing leaks."""
    holder = Holder(HolderKind.CLAIM, "claim-a")
    for name in ("gpu-0", "gpu-1-1g-0"):
        lab.lease(name, holder=holder)
    lose_journal(lab)
    lab.open()
    assert {lab.device(name).claim for name in ("gpu-0", "gpu-1-1g-0")} == {"claim-a"}
    lab.node.unprepare("claim-a")
    for step in range(3):
        lab.node.tick(float(step))
    assert (lab.leases_of("claim-a"), lab.node.claims()) == ([], [])
    assert {lab.device(name).claim for name in ("gpu-0", "gpu-1-1g-0")} == {""}


def test_records_of_instances_end_with_their_boot(lab: Lab) -> None:
    """gpus-1.9: instances vanish with a reboot; a record of one must not name a stranger's."""
    key = f"partition:{lab.device('gpu-1-1g-0').uuid}"
    parting(lab)
    partitions = lab.node._parts.sweep.validator.partitions
    partitions.ensure(lab.node._registry.device("gpu-1-1g-0"))
    lab.restart()
    meta = lab.node._registry.journal.meta
    assert meta[key], "the same boot: it may still be there"
    lab.backend.reboot()
    lab.restart()
    assert lab.node._registry.journal.meta[key] == ""


def test_a_reboot_frees_what_an_unknown_holder_had_and_no_claims_units(lab: Lab) -> None:
    """DESIGN 4, ProvenFree (a): holders of an earlier boot are gone; a claim is torn down first."""
    lab.backend.reboot()
    lab.leave(State.HELD, claim=ClaimUid("claim-a"))
    assert lab.device().state == State.HELD
