"""Which accelerators a machine has is asked of its bus, and one service speaks for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet import bootstrap, errors, hardware, planning
from fleet.backends import registry
from fleet.settings import HardwareKind, HardwareSettings, Settings
from tests.drivers.host import Host
from tests.drivers.pci_tree import CONSOLE, H100, TPU_V5E, Card, PciTree

SLOT = "0000:3b:00.0"


def machine(tmp_path: Path, *cards: Card) -> HardwareSettings:
    """Settings for a fake machine with these cards."""
    tree = PciTree(tmp_path / "host")
    for number, card in enumerate(cards):
        tree.add(f"0000:{0x3B + number:02x}:00.0", card)
    return HardwareSettings(root=str(tree.root), run_directory=str(tmp_path / "run"))


def test_a_card_of_nvidia_makes_it_nvidia_with_no_driver_in_sight(tmp_path: Path) -> None:
    """B24, gpus-8.1: a card whose driver is missing is a card all the same."""
    assert hardware.discover(machine(tmp_path, CONSOLE, TPU_V5E, H100)) == "nvidia"


def test_stand_in_gpus_are_found_by_their_bus(tmp_path: Path) -> None:
    """The machine the driver stand-ins describe is one for the NVIDIA back end."""
    host = Host(tmp_path / "machine")
    host.add_gpu()
    assert hardware.discover(HardwareSettings(root=str(host.hardware_root))) == "nvidia"


def test_other_accelerators_are_reached_by_their_bus(tmp_path: Path) -> None:
    """A TPU is an accelerator without any vendor library, and looking for it writes nothing."""
    asked = machine(tmp_path, CONSOLE, TPU_V5E)
    assert hardware.discover(asked) == "pcie"
    assert not Path(hardware.IDENTITIES).exists()


@pytest.mark.parametrize("cards", [(), (CONSOLE,)], ids=["nothing", "a console"])
def test_a_machine_without_accelerators_is_no_empty_fleet(
    tmp_path: Path, cards: tuple[Card, ...]
) -> None:
    """gpus-8.1, promise 10: an error of its own with what to do, and nothing is recorded."""
    settings = Settings(hardware=machine(tmp_path, *cards))
    with pytest.raises(errors.DriverAbsent) as caught:
        planning.discover_fleet(tmp_path / "state", settings)
    assert "--simulate" in caught.value.remedy
    assert caught.value.exit_code == 2
    assert not (tmp_path / "state").exists()


def test_without_the_hosts_bus_nothing_is_known(tmp_path: Path) -> None:
    """gpus-8.1: a root where no /sys is seen is an error, not a machine without accelerators."""
    for root in (str(tmp_path), "relative"):
        with pytest.raises(errors.SettingsInvalid, match=r"hardware\.root"):
            hardware.discover(HardwareSettings(root=root))


def test_the_kind_asked_for_is_not_looked_up(tmp_path: Path) -> None:
    """GPUs that guests are to get are served as PCI functions where policy says so."""
    (tmp_path / "sys").mkdir()
    asked = HardwareSettings(kind=HardwareKind.PCIE, root=str(tmp_path))
    assert hardware.discover(asked) == "pcie"


@pytest.mark.parametrize("kind", ["nvidia", "pcie"])
def test_its_arguments_make_the_back_end(tmp_path: Path, kind: str) -> None:
    """Every back end takes what the settings give, and remembers cards beside the journal."""
    given = hardware.arguments(machine(tmp_path), tmp_path / "node")
    backend = registry.build(kind, given)
    assert (backend.kind, backend.simulated) == (kind, False)
    assert backend.settings()["identities"] == str(tmp_path / "node" / hardware.IDENTITIES)
    assert dict(backend.settings()) == given


def test_two_services_never_speak_for_one_card(tmp_path: Path) -> None:
    """gpus-8.39, promises 2 and 6: another state directory is refused before it writes anything,
    naming who has the card, and later too: it knows nothing of what was decided."""
    settings = Settings(hardware=machine(tmp_path, TPU_V5E))
    plans: list[planning.NodePlan] = []
    for name in ("first", "second"):
        planning.discover_fleet(tmp_path / name, settings)
        plans += planning.plan_fleet(tmp_path / name, settings=settings).nodes
    node = bootstrap.open_node(plans[0])
    try:
        assert [device.uuid for device in node.view().devices]
        with pytest.raises(errors.NotOwner, match="serves"):
            bootstrap.open_node(plans[1])
    finally:
        node.close()
    with pytest.raises(errors.InputInvalid, match="speaks for the devices"):
        bootstrap.open_node(plans[1])
    again = bootstrap.open_node(plans[0])
    assert again.view().notes == ()
    assert "set aside" not in str(again.view().degraded)
    again.close()
