"""Wiring: what a fleet is, is written down once; nothing simulated without being asked for."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.core import errors
from fleet.core.messages import ClaimOrder
from fleet.core.model import State
from fleet.core.profiles import Profile
from fleet.core.settings import MIB, EvidenceSettings, Settings
from fleet.evidence import layout
from fleet.evidence.keys import PublicKey
from fleet.evidence.writer import Writer
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan


def test_without_simulation_an_absent_driver_is_an_error(tmp_path: Path) -> None:
    """Promise 10: never "no devices, all clean", never a simulation nobody asked for."""
    with pytest.raises(errors.DriverAbsent):
        adapters.plan_fleet(tmp_path / "state")
    assert not (tmp_path / "state").exists()
    with pytest.raises(errors.DriverAbsent):
        adapters.open_node(NodePlan(node="n1", state=str(tmp_path / "state")))


def test_the_shape_is_recorded_and_used_again(tmp_path: Path) -> None:
    """A second use without --simulate finds the same fleet."""
    first = adapters.plan_fleet(tmp_path, simulate="2x3p1", memory_bytes=2 * MIB)
    assert [node.node for node in first.nodes] == ["node-01", "node-02"]
    assert first.simulated
    assert adapters.plan_fleet(tmp_path) == first
    assert adapters.plan_fleet(tmp_path, simulate="2x3p1") == first
    assert [p.name for p in tmp_path.iterdir()] == ["fleet.json"]
    assert len({node.simulated.seed for node in first.nodes if node.simulated}) == 2
    assert {node.labels["rack"] for node in first.nodes} == {"rack-01"}


@pytest.mark.parametrize(
    ("simulate", "memory_bytes"), [("2x4", None), ("1x3", None), ("2x3p1", None), ("2x3", 4 * MIB)]
)
def test_another_shape_is_refused(tmp_path: Path, simulate: str, memory_bytes: int | None) -> None:
    """Evidence and leases name the units that exist: a fleet is never reshaped."""
    adapters.plan_fleet(tmp_path, simulate="2x3", memory_bytes=2 * MIB)
    with pytest.raises(errors.InputInvalid, match="another shape"):
        adapters.plan_fleet(tmp_path, simulate=simulate, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("simulate", "memory_bytes"),
    [("0x1", None), ("2", None), ("2x0", None), ("2x2p3", None), ("1x1", 100_000), ("1x1", -5)],
)
def test_an_impossible_shape_is_refused_and_not_recorded(
    tmp_path: Path, simulate: str, memory_bytes: int | None
) -> None:
    """No state is a trap: a typing error does not spoil the state directory."""
    with pytest.raises(errors.InputInvalid):
        adapters.plan_fleet(tmp_path, simulate=simulate, memory_bytes=memory_bytes)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_and_an_unknown_profile_are_told(tmp_path: Path) -> None:
    """Input trouble is an error with a remedy, not a traceback."""
    with pytest.raises(errors.InputInvalid, match="no profile"):
        adapters.plan_fleet(tmp_path, simulate="1x1", profile="lax")
    (tmp_path / "fleet.json").write_text("{")
    with pytest.raises(errors.InputInvalid, match="cannot be read"):
        adapters.plan_fleet(tmp_path, simulate="1x1")


def test_two_first_uses_at_once_agree(tmp_path: Path) -> None:
    """The record is made once, complete; whoever is second has the same fleet or an error."""
    outcomes: list[object] = []

    def plan(simulate: str) -> None:
        try:
            outcomes.append(adapters.plan_fleet(tmp_path, simulate=simulate).nodes)
        except errors.InputInvalid as error:
            outcomes.append(error)

    threads = [threading.Thread(target=plan, args=(f"{1 + n % 2}x1",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    agreed = adapters.plan_fleet(tmp_path).nodes
    assert all(found == agreed or isinstance(found, errors.InputInvalid) for found in outcomes)
    assert agreed in outcomes


def test_a_node_lives_in_its_own_directory_and_has_one_owner(tmp_path: Path) -> None:
    """The layout of the module's docstring; a second owner is told who has the journal."""
    plan = adapters.plan_fleet(
        tmp_path, simulate="1x1", memory_bytes=1 * MIB, profile="fast", settings=Settings()
    )
    assert plan.nodes[0].settings.profile is Profile.FAST
    node = adapters.open_node(plan.nodes[0])
    try:
        root = tmp_path / "nodes" / "node-01"
        assert (root / "journal.db").is_file()
        assert (root / "journal.lock").is_file()
        assert (root / "run" / "node-01.witness").is_file()
        assert (root / "sim" / "topology.json").is_file()
        assert (tmp_path / "coordinator" / "store.db").is_file()
        assert node.view().simulated
        assert {device.state for device in node.view().devices} == {State.HELD}
        with pytest.raises(errors.NotOwner, match="node service of node-01"):
            adapters.open_node(plan.nodes[0])
    finally:
        node.close()
    adapters.open_node(plan.nodes[0]).close()


def test_a_start_that_fails_gives_everything_back(tmp_path: Path) -> None:
    """B50: an owner that could not start does not keep the journal from the next."""
    (plan,) = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=1 * MIB).nodes
    adapters.open_node(plan).close()
    key = layout.node_key(tmp_path, plan.node)
    before = threading.active_count()
    key.chmod(0o644)
    with pytest.raises(errors.KeyUnusable):
        adapters.open_node(plan)
    key.chmod(0o600)
    node = adapters.open_node(plan)
    assert node.view().degraded == ()
    node.close()
    deadline = time.monotonic() + 10.0
    while threading.active_count() > before:  # who asked the driver ends by itself
        assert time.monotonic() < deadline, threading.enumerate()
        threading.Event().wait(0.01)


def test_a_store_that_is_away_keeps_no_node_from_coming_up(tmp_path: Path) -> None:
    """DESIGN 4: with the store away a node serves, and accepts no act until it has adopted."""
    (plan,) = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=1 * MIB).nodes
    store = tmp_path / "coordinator" / "store.db"
    store.mkdir(parents=True)
    node = adapters.open_node(plan)
    assert any("no lease store" in text for text in node.view().degraded)
    assert node.unprepare("nobody").state == "ABSENT"
    with pytest.raises(errors.StoreUnavailable):
        node.abandon("claim-a", "1.1", [])
    store.rmdir()
    node.tick(0.0)
    assert node.view().degraded == ()
    node.close()


def test_the_plan_crosses_a_process_border(tmp_path: Path) -> None:
    """A node's plan is JSON, validated on arrival; unknown keys are refused."""
    (plan,) = adapters.plan_fleet(tmp_path, simulate="1x1").nodes
    text = plan.model_dump_json()
    assert NodePlan.model_validate_json(text) == plan
    with pytest.raises(ValueError, match="extra"):
        NodePlan.model_validate({**json.loads(text), "extra": 1})


def test_the_key_is_where_the_settings_say(tmp_path: Path) -> None:
    """E3: the signing key may live outside the state directory, on a disk of its own."""
    chosen = tmp_path / "elsewhere" / "node.key"
    settings = Settings().model_copy(update={"evidence": EvidenceSettings(key_file=str(chosen))})
    plan = adapters.plan_fleet(
        tmp_path / "state", simulate="1x1", memory_bytes=MIB, settings=settings
    )
    adapters.open_node(plan.nodes[0]).close()
    assert chosen.stat().st_mode & 0o777 == 0o600
    usual = layout.node_key(tmp_path / "state", "node-01")
    assert not usual.exists()
    assert PublicKey.load(usual.with_suffix(".pub")) == PublicKey.load(chosen.with_suffix(".pub"))


def test_a_node_that_certifies_before_any_coordinator_leaves_whole_evidence(tmp_path: Path) -> None:
    """C2: the log of heads begins before the first certificate, whoever is there first."""
    plan = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=MIB)
    adapters.begin(plan.coordinator)
    node = adapters.open_node(plan.nodes[0])
    try:
        (device,) = node.adopt(operator="me")
        order = ClaimOrder(uid="c", node=node.view().node, devices=(device.uuid,), consumers=("p",))
        assert node.prepare(order).certificates
    finally:
        node.close()
    adapters.begin(plan.coordinator)
    adapters.open_coordinator(plan.coordinator)
    assert main(["evidence", "verify", "--state", str(tmp_path)]) == 0


def test_two_coordinators_that_begin_at_once_both_come_up(tmp_path: Path) -> None:
    """Promise 7: the log of heads is begun by one of them, and neither waits for the other."""
    plan = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=2 * MIB)
    other = Writer(layout.heads_directory(tmp_path))
    try:
        coordinator = adapters.open_coordinator(plan.coordinator)
    finally:
        other.close()
    assert coordinator.newest().epoch > 0


@pytest.mark.parametrize("open_before", [False, True])
def test_b47_what_a_node_keeps_is_its_owners_alone_under_any_umask(
    tmp_path: Path, *, open_before: bool
) -> None:
    """B47: the node's directory and its door are closed to others, whatever umask the caller has;
    a directory that was open is closed."""
    (plan,) = adapters.plan_fleet(tmp_path / "state", simulate="1x1", memory_bytes=MIB).nodes
    directory = layout.node_directory(tmp_path / "state", plan.node)
    before = os.umask(0o000)
    try:
        if open_before:
            directory.mkdir(parents=True)
        with closing(adapters.open_node(plan)):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            assert stat.S_IMODE(adapters.door_path(plan).stat().st_mode) == 0o600
            for above in (directory.parent, tmp_path / "state"):
                assert not above.stat().st_mode & 0o002
    finally:
        os.umask(before)
