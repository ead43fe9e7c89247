"""How a verb reaches the fleet."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fleet.cli import reach
from fleet.cli.main import main
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimOrder
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.evidence import layout
from fleet.node.journal.lock import OwnerLock
from fleet.wiring import adapters
from tests.fleet.cli.fleets import occupy


def test_a_name_on_two_nodes_must_be_narrowed_down(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device name that is on several nodes is refused rather than guessed."""
    assert main(["quarantine", "add", "gpu-0", "--reason", "x", "--state", str(state)]) == 2
    error = capsys.readouterr().err
    assert "node-01, node-02" in error
    assert "--node" in error


def test_a_node_that_somebody_owns_is_asked_at_its_door(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal has one owner: verbs see and decide what it has, and leave it in place."""
    plan = adapters.plan_fleet(state).nodes[0]
    service = adapters.open_node(plan)
    where = ["--state", str(state), "--node", "node-01"]
    try:
        assert main(["node", "adopt", "--state", str(state), "--operator", "me"]) == 0
        assert main(["quarantine", "add", "gpu-0", "--reason", "smoke", *where]) in (0, 1)
        (device,) = [d for d in service.view().devices if d.name == "gpu-0"]
        assert "operator" in {reason.code for reason in device.reasons}
        assert main(["quarantine", "clear", "gpu-0", "--reason", "seen to", *where]) in (0, 1)
        (device,) = [d for d in service.view().devices if d.name == "gpu-0"]
        assert not device.reasons
        assert {d.state for d in service.view().devices} == {"DIRTY"}
        assert main(["sweep", "--state", str(state), "--json"]) in (0, 1)
        door = adapters.open_door(plan)
        assert door.pulse()["incarnation"] == service.incarnation
        door.close()
    finally:
        service.close()
    assert "smoke" in capsys.readouterr().out


def test_an_owner_that_does_not_answer_is_named(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind a lock that nobody answers for nothing is touched; the error says what to do."""
    plan = adapters.plan_fleet(state).nodes[0]
    lock = OwnerLock(adapters.lock_path(plan))
    lock.acquire(owner="something mute")
    try:
        assert main(["devices", "--state", str(state)]) == 2
    finally:
        lock.release()
    error = capsys.readouterr().err
    assert "something mute" in error
    assert "does not answer" in error


def test_a_verb_that_ends_gives_leases_back_first(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D6: a claim torn down just before the verb ends leaves no lease behind for the audit."""
    with reach.fleet(state, address=None) as fleet:
        node = fleet.nodes["node-01"]
        device = next(d for d in node.view().devices if d.name == "gpu-0")
        holder = Holder(HolderKind.CLAIM, "claim-1")
        units = frozenset(UnitId(unit) for unit in device.units)
        (lease,) = fleet.coordinator.acquire([AcquireRequest(units, holder)])
        assert isinstance(lease, Lease)
        node.adopt(devices=[device.uuid], operator="me")
        order = ClaimOrder(
            uid="claim-1",
            node="node-01",
            devices=(device.uuid,),
            token=str(lease.token),
            namespace="n",
            name="c",
            consumers=("c",),
        )
        assert node.prepare(order).certificates
        node.unprepare("claim-1")
        assert node.view().outbox == 1
        assert len(fleet.coordinator.leases()) == 1
    with reach.coordinator(state, address=None) as coordinator:
        assert list(coordinator.leases()) == []
    assert main(["audit", "--state", str(state)]) == 0, capsys.readouterr().out


def test_f53_who_has_a_node_is_said_at_once(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F53: a campaign on nodes that another command has says who has them and since when, and with
    --no-wait ends there, before a Ray is started for it."""
    lock = OwnerLock(adapters.lock_path(adapters.plan_fleet(state).nodes[0]))
    lock.acquire(owner="node actor of node-01")
    try:
        assert main(["scrub", "--no-wait", "--state", str(state)]) == 2
    finally:
        lock.release()
    said = " ".join(capsys.readouterr().err.split())
    assert f"node-01: node actor of node-01 (pid {os.getpid()}) since 20" in said
    assert "UTC, for 0 s" in said
    assert "gathering" not in said


def test_f53_waiting_is_said_once_and_ends_with_the_other(state: Path) -> None:
    """F53: who waits for another command says for whom and how to give up, once, and goes on when
    that one has let go; a standby is not waited for, since it lets go when asked."""
    plans = adapters.plan_fleet(state).nodes
    lock = OwnerLock(adapters.lock_path(plans[0]))
    lock.acquire(owner="node actor of node-01")
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            lock.release()

    reach.await_free(plans, wait=True, say=say)
    assert [line.split(" (")[0] for line in said] == [
        "node-01 is in use: node actor of node-01",
        "waiting up to 60 s; --no-wait, or Ctrl-C, gives up",
    ]
    lock.acquire(owner="standby of node-01")
    reach.await_free(plans, wait=False, say=said.append)
    lock.release()
    lock.acquire(owner="node actor of node-01")
    with pytest.raises(errors.NotOwner, match="in use by another command or service"):
        reach.await_free(plans, wait=True, say=said.append, limit_s=0.0)
    lock.release()


def test_f53_a_verb_outlives_the_owner_it_asked(state: Path) -> None:
    """F53: where the owner of a node ends while a verb runs, as a campaign does, the verb goes on
    with the node itself instead of calling at a door where nobody is."""
    plan = adapters.plan_fleet(state).nodes[0]
    service = adapters.open_node(plan)
    with reach.fleet(state, address=None, ticking=True) as fleet:
        assert fleet.nodes["node-01"].view().incarnation == service.incarnation
        service.close()
        after = fleet.nodes["node-01"].view()
        assert after.incarnation != service.incarnation
        assert {device.state for device in after.devices} == {"DIRTY"}


def test_f53_a_proof_says_what_it_waits_for(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F53: `fleet prove` where every device is taken says so instead of waiting in silence, and
    with --no-wait ends at once."""
    occupy(state, "uid-1")
    gpu = ["prove", "--device", occupied(state), "--state", str(state), "--no-wait"]
    capsys.readouterr()
    assert main(gpu) == 2
    assert "no device is free: 1 held by claim uid-1" in capsys.readouterr().err


def occupied(state: Path) -> str:
    """UUID of the device that a claim has."""
    with reach.nodes(state, address=None) as nodes:
        views = [node.view() for node in nodes.values()]
    return next(device.uuid for view in views for device in view.devices if device.claim)


LOOKS = [
    ("status",),
    ("devices",),
    ("quarantine", "list"),
    ("scrub", "--dry-run"),
    ("sweep",),
]


def _newer(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[60:64] = (99).to_bytes(4, "big")
    path.write_bytes(raw)


def _damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize("verb", LOOKS, ids=" ".join)
@pytest.mark.parametrize("change", [_newer, _damaged], ids=["newer", "damaged"])
def test_f43_verbs_that_look_leave_a_newer_or_damaged_journal_as_it_is(
    state: Path,
    capsys: pytest.CaptureFixture[str],
    verb: tuple[str, ...],
    change: Callable[[Path], None],
) -> None:
    """F43: a verb that looks answers 2 to a journal it cannot read, with what to do, and neither
    sets it aside nor writes to it."""
    journal = layout.node_directory(state, "node-01") / "journal.db"
    with closing(adapters.open_node(adapters.plan_fleet(state).nodes[0])):
        pass
    change(journal)
    before = journal.read_bytes()
    assert main([*verb, "--state", str(state)]) == 2
    assert "journal.db" in capsys.readouterr().err
    assert journal.read_bytes() == before
    assert not list(journal.parent.glob("*.aside-*"))
