"""Which accelerators a machine has is asked of its bus, and one service speaks for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.privileges import Lacks
from fleet.core.settings import HardwareKind, HardwareSettings, MpsPolicy, Settings
from fleet.devices import registry
from fleet.wiring import adapters, hardware
from fleet.wiring import plans as wiring_plans
from tests.drivers.host import Host
from tests.drivers.pci_tree import CONSOLE, H100, TPU_V5E, Card, PciTree

SLOT = "0000:3b:00.0"
NOTHING, EVERYTHING = "0", "000001ffffffffff"
POD = "0000010400080004"
"""What the containers have that own a node's devices, as the kernel writes it."""


def permitted(asked: HardwareSettings, mask: str) -> HardwareSettings:
    """The same machine, whose kernel says that a process has these effective capabilities."""
    status = Path(asked.root) / "proc/self/status"
    status.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(f"Name:\tx\nCapEff:\t{mask}\n")
    return asked


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
        wiring_plans.discover_fleet(tmp_path / "state", settings)
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
    plans: list[wiring_plans.NodePlan] = []
    for name in ("first", "second"):
        wiring_plans.discover_fleet(tmp_path / name, settings)
        plans += wiring_plans.plan_fleet(tmp_path / name, settings=settings).nodes
    node = adapters.open_node(plans[0])
    try:
        assert [device.uuid for device in node.view().devices]
        with pytest.raises(errors.NotOwner, match="serves"):
            adapters.open_node(plans[1])
    finally:
        node.close()
    with pytest.raises(errors.InputInvalid, match="speaks for the devices"):
        adapters.open_node(plans[1])
    again = adapters.open_node(plans[0])
    assert again.view().notes == ()
    assert "set aside" not in str(again.view().degraded)
    again.close()


def test_a_pod_of_ours_can_prove_and_says_what_is_off(tmp_path: Path) -> None:
    """DESIGN 7: the named capabilities are enough for every proof; what needs CAP_SYS_ADMIN is off
    and says what to do instead, on the accelerators that have it."""
    asked = permitted(machine(tmp_path, H100), POD)
    found = hardware.lacks("nvidia", asked)
    assert found.blocking == ()
    assert [told.split()[0] for told in found.off] == [
        "partitioning-switch",
        "tool-reset",
        "card-serials",
    ]
    assert all("CAP_SYS_ADMIN" in told for told in found.off)
    (serials,) = hardware.lacks("pcie", asked).off
    assert serials.startswith("card-serials")
    shuts = asked.model_copy(update={"mps": MpsPolicy.SHUT_DOWN, "reset_tool": ""})
    told = hardware.lacks("nvidia", shuts).off
    assert any(one.startswith("mps-shut-down") for one in told)
    assert not any(one.startswith("tool-reset") for one in told)


def test_on_the_host_itself_nothing_is_off(tmp_path: Path) -> None:
    """DESIGN 7: root with everything lacks nothing; a simulated fleet is not asked at all."""
    asked = permitted(machine(tmp_path, H100), EVERYTHING)
    assert hardware.lacks("nvidia", asked) == Lacks()
    assert hardware.lacks("", permitted(asked, NOTHING)) == Lacks()


def test_where_the_kernel_does_not_tell_nothing_is_judged(tmp_path: Path) -> None:
    """DESIGN 7: rights that cannot be read are no rights missing; each look says what it met."""
    assert hardware.lacks("pcie", machine(tmp_path)) == Lacks()


def test_without_the_view_of_all_processes_the_node_is_blocked(tmp_path: Path) -> None:
    """DESIGN 7, promise 4: a service that cannot see holders offers no device, and says why."""
    settings = Settings(hardware=permitted(machine(tmp_path, TPU_V5E), NOTHING))
    wiring_plans.discover_fleet(tmp_path / "state", settings)
    (plan,) = wiring_plans.plan_fleet(tmp_path / "state", settings=settings).nodes
    node = adapters.open_node(plan)
    try:
        view = node.view()
    finally:
        node.close()
    (blocked,) = [told for told in view.blocked if told.startswith("holders")]
    assert "CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE" in blocked
    assert "hostPID" in blocked
    assert [told.split()[0] for told in view.notes] == [
        "mapped-holders",
        "fault-codes",
        "card-serials",
    ]


def test_an_open_kernel_log_needs_no_right(tmp_path: Path) -> None:
    """DESIGN 7: CAP_SYSLOG is asked for only where the kernel keeps its log to itself."""
    asked = permitted(machine(tmp_path, TPU_V5E), NOTHING)
    root = Path(asked.root)
    (root / "proc/sys/kernel").mkdir(parents=True)
    for restrict, spoken in (("1", True), ("0", False)):
        (root / "proc/sys/kernel/dmesg_restrict").write_text(f"{restrict}\n")
        told = hardware.lacks("pcie", asked).off
        assert any(one.startswith("fault-codes") for one in told) is spoken
