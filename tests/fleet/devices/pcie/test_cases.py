"""Cases of cards without a vendor library: who has them open, and what a reset proves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.core.settings import HealthPolicy
from fleet.devices.base import ResetScrub
from fleet.devices.health import checks
from tests.drivers.pci_tree import CONSOLE, GAUDI2, GIB, H100, MI300X, Card
from tests.fleet.devices.pcie.benches import Bench, address, bench

SECOND = replace(MI300X, serial=5)
SWITCH_OF_GPUS = Card(0x10DE, 0x22A3, 0x068000, driver="vfio-pci", group="7", bar_bytes=0)


def held(found: Bench, index: int = 0) -> list[int]:
    """Pids of the holders of one card."""
    return [one.pid for one in found.backend.processes(found.accelerator(index).uuid)]


def reset(found: Bench) -> ResetScrub:
    """The first card, scrubbed in the only way there is."""
    return found.backend.scrub_by_reset(found.accelerator().uuid)


def failing(found: Bench, index: int = 0) -> dict[str, str]:
    """What a sweep finds wrong with a card: reason and detail."""
    seen = found.backend.readings(found.accelerator(index).uuid)
    judged = checks.judge(seen, HealthPolicy())
    return {one.reason: one.detail for one in judged if one.verdict is checks.Verdict.FAIL}


def resets(found: Bench) -> int:
    """How often the kernel was told to reset anything."""
    return found.kernel.log.count(("reset", "1"))


def test_f11_a_node_outside_the_pci_bus_is_of_the_card_the_topology_names(tmp_path: Path) -> None:
    """F11: who has a node of any part of a card open holds that card, wherever the node stands."""
    found = bench(tmp_path, MI300X, SECOND)
    found.tree.partition(address(0), 143, 144)
    found.tree.process(42, "trainer", "/dev/kfd", "/dev/dri/renderD143")
    found.tree.process(43, "display", "/dev/dri/card16")
    assert held(found, 0) == [42, 43]
    assert held(found, 1) == []
    assert not reset(found).performed
    assert resets(found) == 0


def test_f11_a_node_without_a_known_card_may_be_of_any(tmp_path: Path) -> None:
    """F11: where the card of a node cannot be told, its opener holds every AMD GPU."""
    found = bench(tmp_path, MI300X, SECOND, GAUDI2)
    found.tree.partition(address(0), 143, told=False)
    found.tree.process(42, "trainer", "/dev/kfd", "/dev/dri/renderD143")
    found.tree.process(43, "other", "/dev/dri/renderD129")
    assert [held(found, index) for index in range(3)] == [[42, 43], [42], []]


def test_f11_the_node_of_another_vendor_is_no_sign_where_compute_runs(tmp_path: Path) -> None:
    """F11: only a node known to be of an AMD GPU tells which one a client of /dev/kfd is on."""
    found = bench(tmp_path, MI300X)
    other = found.tree.add("0000:5e:00.0", replace(H100, driver="nouveau"))
    found.tree.node("dev/dri/renderD200", f"{other.path}/drm/renderD200", (226, 200))
    found.tree.link("sys/class/drm/renderD200", f"{other.path}/drm/renderD200")
    found.tree.process(42, "trainer", "/dev/kfd", "/dev/dri/renderD200")
    assert held(found) == [42]


def test_f11_whatever_the_kernel_registers_below_a_card_reaches_it(tmp_path: Path) -> None:
    """F11: a node of another kind below the function, as of a card's own network, holds it too."""
    found = bench(tmp_path, GAUDI2)
    place = f"sys/bus/pci/devices/{address(0)}/habanalabs_ib/infiniband_verbs/uverbs0"
    found.tree.node("dev/infiniband/uverbs0", place, (231, 192))
    found.tree.put(f"{place}/uevent", "MAJOR=231\nMINOR=192\nDEVNAME=infiniband/uverbs0\n")
    found.tree.process(42, "collective", "/dev/infiniband/uverbs0")
    assert held(found) == [42]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("current_compute_partition", "CPX"),
        ("current_compute_partition", "DPX"),
        ("current_compute_partition", ""),
        ("current_memory_partition", "NPS4"),
    ],
)
def test_f11_a_card_in_a_partition_mode_is_refused(tmp_path: Path, name: str, mode: str) -> None:
    """F11: of a card that is not one whole nothing is certified or granted; the sweep says so."""
    found = bench(tmp_path, MI300X)
    found.tree.write(address(0), name, mode)
    told = failing(found)["unusable"]
    assert f"{name} is {mode or 'not readable'}" in told
    assert "write SPX to current_compute_partition" in told
    with pytest.raises(BackendFailed, match="is partitioned"):
        found.backend.grant(found.accelerator().device)
    scrub = reset(found)
    assert not scrub.performed
    assert "is partitioned" in scrub.problem
    assert resets(found) == 0


def test_f11_parts_in_the_topology_are_enough_to_refuse(tmp_path: Path) -> None:
    """F11: an older driver tells no mode; several parts at one place are a partitioned card."""
    found = bench(tmp_path, MI300X, SECOND)
    assert "unusable" not in failing(found, 0)
    found.tree.partition(address(0), 143)
    (found.function(0).path / "current_compute_partition").unlink()
    assert "lists 2 parts" in failing(found, 0)["unusable"]
    assert "unusable" not in failing(found, 1)


@pytest.mark.parametrize(
    "device", [0x1000, 0x1001, 0x1010, 0x1011, 0x1020, 0x1021, 0x1060, 0x1062, 0x1063, 0x1099]
)
def test_f42_every_id_of_a_vendor_that_keeps_memory_needs_its_switch(
    tmp_path: Path, device: int
) -> None:
    """F42: a reset counts for no Gaudi without memory_scrub, whether or not its id is listed."""
    found = bench(tmp_path, replace(GAUDI2, device=device))
    assert found.accelerator().device.attributes["family"] == "gaudi"
    assert reset(found).problem == ""
    found.tree.module("habanalabs", "1", {"memory_scrub": "0"})
    assert "keeps its content through a reset" in reset(found).problem


def test_f42_the_switch_of_a_driver_that_does_not_drive_the_card_is_nothing(
    tmp_path: Path,
) -> None:
    """F42: memory_scrub is on, and the card is another driver's: nothing clears its memory."""
    found = bench(tmp_path, GAUDI2)
    found.tree.unbind(address(0))
    assert "memory_scrub is unknown" in reset(found).problem
    found.tree.bind(address(0), "vfio-pci")
    found.tree.join(address(0), "9")
    assert "memory_scrub is unknown" in reset(found).problem


@pytest.mark.parametrize(("device", "counts"), [(0x1DB6, False), (0x15F8, False), (0x20B5, True)])
def test_f42_chips_whose_reset_clears_nothing_are_not_certified_by_one(
    tmp_path: Path, device: int, counts: bool
) -> None:
    """F42: memory of an NVIDIA GPU before Turing outlives a reset, and only overwriting counts."""
    found = bench(tmp_path, replace(H100, device=device, driver="vfio-pci", group="8"))
    assert (reset(found).problem == "") is counts


@pytest.mark.parametrize("card", [H100, MI300X])
def test_f46_a_window_is_no_measure_of_memory(tmp_path: Path, card: Card) -> None:
    """F46: what nobody tells is not told, however large the card's largest BAR is."""
    found = bench(tmp_path, replace(card, driver="vfio-pci", group="8", bar_bytes=256 * GIB))
    device = found.accelerator().device
    assert (device.memory_bytes, device.attributes["memory_source"]) == (0, "nobody")
    assert "unusable" not in failing(found)
    assert reset(found).performed


def test_f46_a_card_without_bars_is_listed_with_what_is_wrong(tmp_path: Path) -> None:
    """F46: a card the firmware gave no window is there, out of service, and says what to do."""
    found = bench(tmp_path, replace(H100, driver="vfio-pci", group="8", bar_bytes=0))
    told = failing(found)["unusable"]
    assert "BARs have no size" in told
    assert "above 4 GiB" in told


@pytest.mark.parametrize(
    ("place", "card"),
    [
        ("0000:00:02.0", Card(0x8086, 0x4680, 0x038000, driver="i915")),
        ("0000:00:02.0", Card(0x8086, 0x4680, 0x030000, driver="i915")),
        ("0000:0c:00.0", Card(0x1002, 0x164E, 0x030000, driver="amdgpu")),
        ("0000:0c:00.0", Card(0x1002, 0x1638, 0x030000, driver="amdgpu")),
    ],
)
def test_f46_graphics_of_the_processor_are_no_accelerator(
    tmp_path: Path, place: str, card: Card
) -> None:
    """F46: graphics inside the processor are neither listed nor held."""
    found = bench(tmp_path, GAUDI2)
    found.tree.add(place, card)
    assert [one.device.attributes["family"] for one in found.backend.inventory()] == ["gaudi"]


def test_f46_a_card_in_the_place_of_graphics_is_one(tmp_path: Path) -> None:
    """F46: in a virtual machine a card may be where a processor has its graphics."""
    found = bench(tmp_path)
    found.tree.add("0000:00:02.0", Card(0x8086, 0x56C0, 0x038000))
    assert len(found.backend.inventory()) == 1


@pytest.mark.parametrize("other", [SWITCH_OF_GPUS, replace(CONSOLE, group="7")])
def test_f46_everything_else_in_a_group_counts(tmp_path: Path, other: Card) -> None:
    """F46: a VFIO group reaches all of it; a card that shares one with a switch is not granted."""
    found = bench(tmp_path, replace(H100, driver="vfio-pci", group="7"))
    found.tree.add("0000:5e:00.0", other)
    assert "in one IOMMU group with 0000:5e:00.0" in failing(found)["unusable"]
    with pytest.raises(BackendFailed, match=r"in one IOMMU group with 0000:5e:00\.0"):
        found.backend.grant(found.accelerator().device)


def test_f46_ports_and_the_cards_own_functions_are_no_others(tmp_path: Path) -> None:
    """F46: a bridge passes traffic on, and a card's sound function is the card."""
    found = bench(tmp_path, replace(H100, driver="vfio-pci", group="7"))
    found.tree.add("0000:5e:00.0", replace(CONSOLE, class_code=0x060400, group="7"))
    found.tree.add(address(0).replace(".0", ".1"), Card(0x10DE, 0x22BA, 0x040300, group="7"))
    assert "unusable" not in failing(found)
    assert found.backend.grant(found.accelerator().device).nodes


def test_f19_deferred_errors_and_bad_pages_count(tmp_path: Path) -> None:
    """F19: an error nobody has read yet is an error, and every page out of use is one."""
    found = bench(tmp_path, MI300X)
    found.tree.write(address(0), "ras/umc_err_count", "ue: 0\nce: 0\nde: 5")
    pages = "\n".join(f"0x{page:08x} : 0x00001000 : R" for page in range(300))
    found.tree.write(address(0), "ras/gpu_vram_bad_pages", pages)
    seen = found.backend.readings(found.accelerator().uuid)
    assert (seen.ecc_uncorrected_volatile, seen.retired_pages) == (5, 300)
    assert {"ecc-uncorrectable", "retired-pages"} <= failing(found).keys()


@pytest.mark.parametrize("flag", ["P", "F"])
def test_f19_a_page_not_yet_out_of_use_waits(tmp_path: Path, flag: str) -> None:
    """F19: a page that waits for a reset, or could not be taken out, keeps the card out."""
    found = bench(tmp_path, MI300X)
    found.tree.write(address(0), "ras/gpu_vram_bad_pages", f"0x00000001 : 0x00001000 : {flag}")
    assert "retired-pages" in failing(found)


@pytest.mark.parametrize("name", ["umc_err_count", "gpu_vram_bad_pages"])
@pytest.mark.parametrize("text", [None, "no such file, or so\n"])
def test_f19_a_counter_that_cannot_be_read_is_unknown(
    tmp_path: Path, name: str, text: str | None
) -> None:
    """F19: a counter that is there and does not answer blocks as unknown; it is no zero."""
    found = bench(tmp_path, MI300X)
    found.tree.write(address(0), "ras/gfx_err_count", "ue: 0\nce: 0")
    place = found.function().path / "ras" / name
    if text is None:
        place.mkdir()  # a read of it fails
    else:
        place.write_text(text)
    judged = checks.judge(found.backend.readings(found.accelerator().uuid), HealthPolicy())
    assert not checks.passed(judged, HealthPolicy())
    blocked = {one.check for one in judged if one.verdict is checks.Verdict.UNKNOWN}
    assert {"ecc-uncorrected", "retired-pages"} & blocked
