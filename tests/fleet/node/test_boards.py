"""Boards that were taken out, or another one has the slot of: what was open stays with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.core.messages import LostDevice
from fleet.core.model import Source, State
from fleet.devices.health import reasons
from fleet.node import view
from tests.drivers.host import Gpu, Host
from tests.fleet.node import stand_in
from tests.fleet.node.conftest import Lab
from tests.fleet.node.stand_in import Ground, machine

PLANTED = json.loads(
    (Path(__file__).parents[2] / "corpus/B38-replaced-gpu-uuid/planted/state.json").read_text()
)["quarantine"][0]
CODE = PLANTED["reason"].replace("remap_failure", "remap-failed")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A machine with one GPU, in the slot of the case."""
    made = machine(tmp_path / "standin", bus_id=PLANTED["slot"])
    monkeypatch.setenv("FLEET_STANDIN", str(made.root))
    return made


def quarantined(host: Host, root: Path) -> Gpu:
    """The GPU, quarantined on a node that was then stopped."""
    with stand_in.ground(host, root) as ground:
        why = reasons.make(CODE, Source.HEALTH, since=5.0)
        ground.put(State.QUARANTINED, reasons=frozenset({why}), certificate=None)
    return host.gpus[0]


def lost(ground: Ground) -> LostDevice:
    (found,) = view.lost(ground.registry)
    return found


def codes(found: LostDevice) -> set[str]:
    return {one.code for one in found.device.reasons}


def test_b38_a_replaced_boards_incident_is_closed_kept_and_not_inherited(
    host: Host, tmp_path: Path
) -> None:
    """B38: another board in the slot starts unknown and with nothing against it; what was open
    against the old one is closed with the new one's name, and stays shown."""
    old = quarantined(host, tmp_path)
    uuid = old.uuid
    old.remove()
    new = host.add_gpu("h100", number=0, bus_id=PLANTED["slot"])
    with stand_in.ground(host, tmp_path, several=True) as ground:
        assert ground.device.uuid == new.uuid != uuid
        assert ground.states() == {State.HELD}
        assert all(not unit.reasons for unit in ground.registry.units(ground.device))
        found = lost(ground)
        assert (found.device.uuid, found.slot) == (uuid, PLANTED["slot"])
        assert found.closed == f"board replaced by {new.uuid} ({PLANTED['slot']})"
        assert codes(found) == {CODE}
        assert ground.acts() == ["board replaced"]
    with stand_in.ground(host, tmp_path, several=True) as again:
        assert lost(again) == found, "kept, and told once"
        assert again.acts() == ["board replaced"]


def test_b38_a_board_that_is_missed_stays_open(host: Host, tmp_path: Path) -> None:
    """B38: a slot that is empty closes nothing: the device is shown as lost, with its reasons."""
    quarantined(host, tmp_path).remove()
    host.add_gpu("h100", number=1)
    with stand_in.ground(host, tmp_path, several=True) as ground:
        found = lost(ground)
        assert found.closed == ""
        assert codes(found) == {CODE, "device-lost"}


def test_b38_a_board_that_comes_back_is_no_lost_one(lab: Lab) -> None:
    """B38: pulled and put back, it is in the inventory again with what was open against it."""
    lab.node.quarantine_add("gpu-0", detail="looks odd", operator="ada")
    uuid = lab.device().uuid
    lab.node.close()
    put_back = lab.take_out()
    lab.open()
    (found,) = lab.node.view().lost
    assert (found.device.uuid, found.device.name, found.closed) == (uuid, "gpu-0", "")
    assert {one.code for one in found.device.reasons} == {"operator", "device-lost"}
    lab.node.close()
    put_back()
    lab.open()
    assert lab.node.view().lost == ()
    assert {one.code for one in lab.device().reasons} == {"operator"}
