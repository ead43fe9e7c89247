"""Which card is in which slot: remembered, and never confused with another."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.model import Accelerator, Uuid
from fleet.devices.nvidia import identity, layout
from fleet.devices.nvidia.identity import Identities, Known
from fleet.devices.sysfs import PCI_DEVICES, Function

SLOT, OTHER_SLOT = "0000:3b:00.0", "0000:5e:00.0"
CARD, OTHER_CARD = Uuid("GPU-a0"), Uuid("GPU-a1")


def plugged(root: Path, address: str, device: str = "0x2330") -> Function:
    """A card on a bus below `root`."""
    place = root / PCI_DEVICES / address
    place.mkdir(parents=True, exist_ok=True)
    for name, value in {"vendor": "0x10de", "device": device, "class": "0x030200"}.items():
        (place / name).write_text(f"{value}\n")
    return Function(root, address)


def accelerator(uuid: Uuid, address: str) -> Accelerator:
    """A GPU without partitions."""
    name = identity.name(address, uuid)
    return layout.undivided(uuid, name, total_bytes=1 << 20, attributes={"pci": address})


def seen(function: Function, uuid: Uuid, serial: str = "") -> Known:
    """The card as the inventory remembers it."""
    address = function.address
    return Known(address, identity.marks(function), serial, accelerator(uuid, address))


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    """Nothing remembered yet, in a directory that does not exist yet."""
    return Identities(tmp_path / "state" / "cards.json")


def test_b24_a_card_is_remembered_whole(tmp_path: Path, identities: Identities) -> None:
    """B24: what a card was when it lived is found again by its slot, by another process too."""
    function = plugged(tmp_path, SLOT)
    identities.remember([seen(function, CARD)])
    again = Identities(tmp_path / "state" / "cards.json")
    found = again.at(function, alive=())
    assert found is not None
    assert found.accelerator == accelerator(CARD, SLOT)
    assert again.of(CARD) == found


def test_another_kind_of_card_in_the_slot_is_nobody_known(
    tmp_path: Path, identities: Identities
) -> None:
    """B24: a card swapped for another kind never inherits the identity of the slot."""
    identities.remember([seen(plugged(tmp_path, SLOT), CARD)])
    assert identities.at(plugged(tmp_path, SLOT, device="0x20b7"), alive=()) is None


def test_a_card_that_lives_elsewhere_is_not_the_dead_one(
    tmp_path: Path, identities: Identities
) -> None:
    """B24: a dead card in the old slot of a card that moved is somebody else."""
    function = plugged(tmp_path, SLOT)
    identities.remember([seen(function, CARD)])
    assert identities.at(function, alive={CARD}) is None


def test_a_serial_that_differs_is_another_card(tmp_path: Path, identities: Identities) -> None:
    """B24: two cards of one kind are told apart where the bus shows their serial numbers."""
    function = plugged(tmp_path, SLOT)
    identities.remember([seen(function, CARD, serial="00000000000000aa")])
    capability = (0x0003 | 1 << 16).to_bytes(4, "little")
    for number, same in ((0xAA, True), (0xBB, False)):
        config = b"\xde\x10\x30\x23".ljust(256, b"\0") + capability + number.to_bytes(8, "little")
        (function.path / "config").write_bytes(config)
        assert (identities.at(function, alive=()) is not None) is same


def test_a_slot_has_one_card_and_a_card_one_slot(tmp_path: Path, identities: Identities) -> None:
    """B24: a card that moves, or is replaced, leaves nothing behind in the memory of its slot."""
    here, there = plugged(tmp_path, SLOT), plugged(tmp_path, OTHER_SLOT)
    identities.remember([seen(here, CARD)])
    identities.remember([seen(there, CARD)])
    assert identities.at(here, alive=()) is None
    identities.remember([seen(there, OTHER_CARD)])
    assert [known.accelerator.uuid for known in identities.all()] == [OTHER_CARD]


def test_nothing_is_written_while_nothing_changes(tmp_path: Path, identities: Identities) -> None:
    """Every inventory remembers what it saw: a file that stays the same is not written again."""
    function, path = plugged(tmp_path, SLOT), tmp_path / "state" / "cards.json"
    identities.remember([seen(function, CARD)])
    before = path.stat().st_ino
    identities.remember([seen(function, CARD)])
    assert path.stat().st_ino == before
    identities.remember([seen(function, OTHER_CARD)])
    assert path.stat().st_ino != before


def test_the_most_links_of_a_card_are_kept(tmp_path: Path, identities: Identities) -> None:
    """gpus-8.28: by card, over inventories and moves, and never fewer; a card that is not in the
    file yet is remembered with what was seen of it."""
    function = plugged(tmp_path, SLOT)
    assert identities.links(CARD, 2) == 2
    identities.remember([seen(function, CARD)])
    other = Identities(tmp_path / "state" / "cards.json")
    assert [other.links(CARD), other.links(CARD, 4), other.links(OTHER_CARD)] == [2, 4, 0]
    other.remember([seen(plugged(tmp_path, OTHER_SLOT), CARD)])
    assert identities.links(CARD, 1) == 4
    assert Identities(None).links(CARD, 3) == 3


def test_a_broken_memory_is_no_memory(tmp_path: Path, identities: Identities) -> None:
    """A file cut short makes cards unknown, never an inventory fail; the next one repairs it."""
    function, path = plugged(tmp_path, SLOT), tmp_path / "state" / "cards.json"
    identities.remember([seen(function, CARD)])
    path.write_text(path.read_text()[:40])
    assert identities.all() == ()
    identities.remember([seen(function, CARD)])
    assert identities.of(CARD) is not None


def test_without_a_file_nothing_is_remembered(tmp_path: Path) -> None:
    """The setting may be empty: then nothing is written anywhere."""
    forgetful = Identities(None)
    forgetful.remember([seen(plugged(tmp_path, SLOT), CARD)])
    assert forgetful.all() == ()


def test_names_come_from_slot_and_identity() -> None:
    """gpus-8.2, B13: a name has slot and identity in it and no index, so nobody inherits it."""
    name = identity.name(SLOT, CARD)
    assert name.startswith("gpu-3b-00-")
    assert name != identity.name(SLOT, OTHER_CARD)
    assert identity.name("0001:3b:00.0", CARD).startswith("gpu-0001-3b-00-")
    assert identity.name("", CARD) == f"gpu-{name.rpartition('-')[2]}"


def test_an_identity_of_the_slot_is_the_same_each_time() -> None:
    """B24: a card that never told its UUID is one device, not a new one at every inventory."""
    made = identity.unnamed(SLOT, "10de:2330")
    assert made == identity.unnamed(SLOT, "10de:2330")
    assert made != identity.unnamed(SLOT, "10de:20b7")
    assert made != identity.unnamed(OTHER_SLOT, "10de:2330")
