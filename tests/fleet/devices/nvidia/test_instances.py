"""What the driver says of profiles and instances, as it says it: holes, ends and gaps included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.core import errors
from fleet.core.model import Uuid
from fleet.devices.nvidia import layout
from tests.drivers.host import Host
from tests.fleet.devices.nvidia.bench import Bench


@pytest.fixture
def bench(host: Host) -> Iterator[Bench]:
    made = Bench(host.add_gpu(mig_current=1))
    yield made
    made.library.close()


def test_the_table_is_walked_to_its_end_over_its_holes(bench: Bench) -> None:
    """gpus-1.9: rows that a GPU lacks are skipped, calls want the id and not the row's number."""
    table = bench.mig.profiles(bench.handle, bench.uuid)
    assert [(row.name, row.id) for row in table] == [
        ("1g.4mb", 19),
        ("2g.8mb", 14),
        ("3g.16mb", 9),
        ("4g.16mb", 5),
        ("7g.32mb", 0),
        ("1g.8mb", 15),
    ]
    assert [row.memory_slices for row in table] == [1, 2, 4, 4, 8, 2]
    assert table[0].engines["multiprocessors"] == 16
    assert layout.slices(table) == 8


def test_a_driver_without_the_newer_call_is_asked_the_older_way(bench: Bench) -> None:
    """B18: an old driver names no profiles; they get the name a newer one would give them."""
    bench.gpu.fault("nvmlDeviceGetGpuInstanceProfileInfoV", "return 13")
    bench.gpu.fault("nvmlGpuInstanceGetComputeInstanceProfileInfoV", "return 13")
    table = bench.mig.profiles(bench.handle, bench.uuid, total_bytes=32 << 20)
    assert [row.id for row in table] == [19, 14, 9, 5, 0, 15]
    assert len({row.name for row in table}) == 6, "no two devices of one name"


def test_shapes_of_somebody_else_are_told_with_their_units(bench: Bench) -> None:
    """gpus-8.29: half made and half removed instances, and shapes no device has, are all listed."""
    whole, _ = bench.gpu.instance("1g.4mb", 3)
    half, _ = bench.gpu.instance("2g.8mb", 4)
    odd, _ = bench.gpu.instance("1g.4mb", 7)  # the last slice is in no placement of this profile
    ci = bench.gpu.path / "gi" / str(half) / "ci" / "0"
    for path in (*ci.iterdir(), ci):
        path.unlink() if path.is_file() else path.rmdir()
    found = {instance.ids["gi"]: instance for instance in bench.instances()}
    assert found[whole].device == bench.device("1g.4mb", 3).uuid
    assert (found[half].uuid, "ci" in found[half].ids) == ("", False)
    assert found[half].units == bench.device("2g.8mb", 4).units
    assert (found[odd].device, found[odd].units) == (None, (f"{bench.uuid}/m7",))


def test_without_the_right_to_list_nothing_is_taken_for_empty(bench: Bench) -> None:
    """gpus-8.19: NO_PERMISSION on the list of instances is unknown, never "no instances"."""
    bench.gpu.fault("nvmlDeviceGetGpuInstances", "return 4")
    with pytest.raises(errors.DriverRefused, match=r"\(4\)"):
        bench.instances()


def test_the_table_of_a_gpu_is_read_once(bench: Bench) -> None:
    """It is fixed for a GPU: looking at instances, often, costs no walk."""
    first = bench.mig.profiles(bench.handle, bench.uuid)
    bench.gpu.fault("nvmlDeviceGetGpuInstanceProfileInfoV", "return 999")
    assert bench.mig.profiles(bench.handle, bench.uuid) is first
    with pytest.raises(errors.DriverRefused):
        bench.mig.profiles(bench.handle, Uuid("GPU-another"))


def test_a_uuid_the_compute_instance_does_not_tell_is_found_among_the_devices(bench: Bench) -> None:
    """gpus-1.9: holes in the numbering of MIG devices are passed over."""
    made = dict(bench.gpu.instance("1g.4mb", start) for start in (0, 1, 2))
    bench.gpu.instance_gone(min(made))
    del made[min(made)]
    bench.gpu.host.fault("nvmlDeviceGetUUID", "times 1 return 3")
    assert {instance.ids["gi"]: instance.uuid for instance in bench.instances()} == made


def test_a_gpu_instance_of_several_compute_instances_has_no_uuid_of_its_own(bench: Bench) -> None:
    """gpus-8.31: a worker could not be shown all of its memory through one of them."""
    gi, _ = bench.gpu.instance("2g.8mb", 0)
    second = bench.gpu.path / "gi" / str(gi) / "ci" / "1"
    second.mkdir()
    (second / "profile").write_text("0")
    (second / "uuid").write_text("MIG-00000000-0000-4000-8000-000000000001")
    (found,) = bench.instances()
    assert (found.uuid, dict(found.ids)) == ("", {"gi": gi})
