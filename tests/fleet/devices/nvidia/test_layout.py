"""Units and devices of a partitioned GPU: exact, stable, and no two alike."""

from __future__ import annotations

import pytest

from fleet.core.model import Accelerator, Uuid
from fleet.devices.nvidia import layout
from fleet.devices.nvidia.layout import Placement, Profile

GPU = Uuid("GPU-00000000-0000-4000-8000-0000000000a0")
TOTAL = 85_520_809_984
"""Not a multiple of eight slices of whole bytes more than it has to be."""


def profile(
    name: str, number: int, compute: int, size: int, *starts: int, total: int = TOTAL
) -> Profile:
    return Profile(
        name=name,
        id=number,
        compute_slices=compute,
        memory_bytes=size * total // 8 - (1 << 20),
        placements=tuple(Placement(start, size) for start in starts),
        engines={"decoders": compute},
    )


TABLE = (
    profile("1g.10gb", 19, 1, 1, 0, 1, 2, 3, 4, 5, 6),
    profile("1g.10gb+me", 20, 1, 1, 0, 1, 2, 3, 4, 5, 6),
    profile("1g.20gb", 15, 1, 2, 0, 2, 4, 6),
    profile("2g.20gb", 14, 2, 2, 0, 2, 4),
    profile("3g.40gb", 9, 3, 4, 0, 4),
    profile("4g.40gb", 5, 4, 4, 0),
    profile("7g.80gb", 0, 7, 8, 0),
)


def cut(table: tuple[Profile, ...] = TABLE, total: int = TOTAL) -> Accelerator:
    return layout.divided(
        GPU, "gpu-a", total_bytes=total, profiles=table, attributes={"serial": "STAND-IN"}
    )


@pytest.mark.parametrize("total", [TOTAL, TOTAL + 1, TOTAL + 7, 8])
def test_units_are_the_memory_slices_and_cover_every_byte_once(total: int) -> None:
    """DESIGN 4, gpus-8.32: one unit per slice, one after the other, no byte left out or doubled."""
    found = cut(total=total)
    assert [unit.id for unit in found.units] == [f"{GPU}/m{i}" for i in range(8)]
    assert sum(unit.size_bytes for unit in found.units) == found.memory_bytes == total
    ends = [unit.offset_bytes + unit.size_bytes for unit in found.units]
    assert [unit.offset_bytes for unit in found.units] == [0, *ends[:-1]]
    assert found.device.units == tuple(unit.id for unit in found.units)


def test_every_placement_is_a_device_of_its_own_units() -> None:
    """KEP-4815: profiles that share memory are offered side by side, all of them."""
    found = cut()
    sizes = {unit.id: unit.size_bytes for unit in found.units}
    parts = [device for device in found.devices if not device.whole]
    assert len(parts) == sum(len(row.placements) for row in TABLE[:-1])
    for device in parts:
        start, size = map(int, device.attributes["placement"].split(":"))
        assert device.units == tuple(f"{GPU}/m{i}" for i in range(start, start + size))
        assert device.memory_bytes == sum(sizes[unit] for unit in device.units)
        assert device.attributes["parent"] == GPU
        assert device.attributes["serial"] == "STAND-IN"
        assert "whole GPU" in device.attributes["memory_health"], "it is on each certificate"
    shared = [device for device in parts if device.attributes["placement"] == "0:4"]
    assert {device.profile for device in shared} == {"3g.40gb", "4g.40gb"}


def test_names_and_uuids_are_unique_and_the_same_for_ever() -> None:
    """B13: the driver's own UUID lives as long as an instance; ours name the place for ever."""
    found, again = cut(), cut(TABLE[::-1])
    assert len({device.uuid for device in found.devices}) == len(found.devices)
    assert len({device.name for device in found.devices}) == len(found.devices)
    assert {d.name: d.uuid for d in found.devices} == {d.name: d.uuid for d in again.devices}
    assert layout.part_uuid(GPU, "1g.10gb", 3) == "PART-9a5267d4-1411-5813-8df1-01e4cba42ccb"
    names = {device.name for device in found.devices}
    assert {"gpu-a-1g-10gb-0", "gpu-a-1g-10gb-me-0", "gpu-a-3g-40gb-4"} <= names


def test_profiles_with_and_without_media_engines_keep_apart() -> None:
    """Profiles of one size differ in what sticks to their names; their devices do too."""
    names = ("1g.24gb", "1g.24gb+me", "1g.24gb-me", "1g.24gb+me.all", "1g.24gb+gfx")
    table = tuple(profile(name, 30 + i, 1, 1, 0) for i, name in enumerate(names))
    found = cut((*table, TABLE[-1]))
    parts = [device for device in found.devices if not device.whole]
    assert {device.profile for device in parts} == set(names)
    assert len({device.name for device in parts}) == len({d.uuid for d in parts}) == len(names)


def test_the_whole_is_reached_through_the_profile_that_takes_everything() -> None:
    """It is the accelerator, not a device beside it; of several the one with most compute."""
    small = profile("4g.80gb", 40, 4, 8, 0)
    found = cut((*TABLE, small))
    assert found.device.attributes["instance_profile"] == "7g.80gb"
    assert "7g.80gb" not in {device.profile for device in found.devices}
    assert "4g.80gb" in {device.profile for device in found.devices}
    place = layout.placed(found.device, (*TABLE, small))
    assert place == (TABLE[-1], Placement(0, 8))
    assert layout.device_of(GPU, 0, Placement(0, 8), TABLE) == GPU


def test_a_table_without_a_profile_for_everything_leaves_the_whole_out_of_reach() -> None:
    """gpus-8.33: what no instance covers cannot be wiped, and nothing says that it was."""
    found = cut(TABLE[:-1])
    assert layout.placed(found.device, TABLE[:-1]) is None
    assert "instance_profile" not in found.device.attributes
    with pytest.raises(ValueError, match="no profile"):
        cut(())


def test_each_device_leads_back_to_its_profile_and_place() -> None:
    """An instance is recognised by profile and place: of all devices, and both ways."""
    for device in cut().devices:
        place = layout.placed(device, TABLE)
        assert place is not None
        assert layout.device_of(GPU, place[0].id, place[1], TABLE) == device.uuid


def test_foreign_shapes_still_lie_in_units() -> None:
    """Promise 4: an instance that fits no device occupies memory all the same."""
    assert layout.device_of(GPU, 99, Placement(1, 2), TABLE) is None
    assert layout.units_of(GPU, Placement(1, 2), 8) == (f"{GPU}/m1", f"{GPU}/m2")
    assert layout.units_of(GPU, Placement(7, 4), 8) == (f"{GPU}/m7",)
    assert len(layout.units_of(GPU, Placement(9, 1), 8)) == 8, "out of every slice: all are meant"


NAMES = [
    ("MIG 1g.10gb+me", 7, 1, 9856, 80, "1g.10gb+me"),
    ("", 0, 1, 9856, 80, "1g.10gb"),
    ("", 7, 1, 9856, 80, "1g.10gb+me"),
    ("", 9, 1, 20096, 80, "1g.20gb"),
    ("", 4, 7, 80384, 80, "7g.80gb"),
    ("", 0, 1, 4864, 40, "1g.5gb"),
]


@pytest.mark.parametrize(("said", "number", "slices", "mib", "gib", "name"), NAMES, ids=str)
def test_a_profile_has_the_driver_s_name_or_the_one_it_would_give(
    said: str, number: int, slices: int, mib: int, gib: int, name: str
) -> None:
    """Old drivers give no names: the name is made as the driver makes it, from eighths."""
    made = layout.profile_name(
        said, number=number, slices=slices, memory_mib=mib, total_bytes=gib << 30
    )
    assert made == name


def test_without_partitions_there_is_one_unit_and_one_device() -> None:
    """DESIGN 4: a whole accelerator is one unit."""
    found = layout.undivided(GPU, "gpu-a", total_bytes=TOTAL, attributes={})
    (device,) = found.devices
    assert device.whole
    assert device.units == (f"{GPU}/all",)
    assert device.attributes["partitionable"] == "false"
