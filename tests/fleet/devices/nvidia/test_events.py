"""Fault codes the driver reports by itself."""

from __future__ import annotations

from fleet.core.model import Uuid
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import nvml
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.nvidia.events import KEPT, EventStream, unlogged
from tests.drivers.host import Gpu, Host


def log(host: Host, gpu: Gpu, code: int, *, at_us: int = 1_000_000) -> None:
    """The driver writes a fault code into the kernel log."""
    with (host.root / "kmsg").open("a") as kernel:
        place = gpu.bus_id.rpartition(".")[0]
        kernel.write(f"4,1,{at_us},-;NVRM: Xid (PCI:{place}): {code}, pid=1, name=x, said\n")


def test_8_13_codes_of_this_gpu_from_both_sources(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.13: the log's history and events since opening are one list; others' are not in it."""
    gpu, other = host.add_gpu(), host.add_gpu()
    log(host, gpu, 63)
    assert backend.readings(Uuid(gpu.uuid)).xids == (63,)
    gpu.xid(48)
    other.xid(79)
    log(host, other, 79)
    for _ in range(2):
        found = backend.readings(Uuid(gpu.uuid))
        assert (found.xids, found.xid_severities) == ((63, 48), ("", ""))


def test_one_fault_seen_twice_counts_once(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.13: an event that is in the log too is one fault, in the log's order."""
    gpu = host.add_gpu()
    backend.readings(Uuid(gpu.uuid))
    gpu.xid(31)
    gpu.xid(31)
    log(host, gpu, 31)
    assert backend.readings(Uuid(gpu.uuid)).xids == (31, 31)


def test_without_the_log_codes_are_unknown(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.19: events have no history: without the kernel log fault codes are unknown."""
    gpu = host.add_gpu()
    (host.root / "kmsg").unlink()
    assert backend.readings(Uuid(gpu.uuid)).xids is None


def test_without_events_the_log_is_enough(host: Host, backend: NvidiaBackend) -> None:
    """A GPU that reports no such events, or refuses to register, still has its log."""
    mute, refusing = host.add_gpu(events_supported=0), host.add_gpu()
    refusing.fault("nvmlDeviceRegisterEvents", "return 3")
    for gpu in (mute, refusing):
        log(host, gpu, 94)
        assert backend.readings(Uuid(gpu.uuid)).xids == (94,)


def test_other_events_are_no_fault_codes(host: Host, backend: NvidiaBackend) -> None:
    """Only critical errors carry a fault code: other kinds of events are not registered for."""
    gpu = host.add_gpu()
    backend.readings(Uuid(gpu.uuid))
    gpu.event(0x4, 8)
    assert backend.readings(Uuid(gpu.uuid)).xids == ()


def test_a_storm_neither_stops_nor_fills_us(host: Host) -> None:
    """At most so many events are taken at once, and so many codes are kept."""
    gpu, library = host.add_gpu(), nvml.Library()
    stream = EventStream(library)
    assert stream.heard(Uuid(gpu.uuid)) is None
    handle = library.call("nvmlDeviceGetHandleByUUID", gpu.uuid)
    assert stream.listen(Uuid(gpu.uuid), handle)
    (gpu.path / "events").write_text(f"8 13 {0xFFFFFFFF} {0xFFFFFFFF}\n" * (KEPT + 10))
    assert len(stream.heard(Uuid(gpu.uuid)) or ()) == KEPT
    gpu.xid(79)
    assert (stream.heard(Uuid(gpu.uuid)) or ())[-1] == (79, None)
    stream.forget(Uuid(gpu.uuid))
    assert stream.heard(Uuid(gpu.uuid)) is None
    library.close()


def test_a_set_does_not_outlive_its_library(host: Host) -> None:
    """gpus-8.13: what was registered before the library was closed is void; the stand-in ends a
    process that names it. It is registered anew, and what was heard before stays."""
    gpu, library = host.add_gpu(), nvml.Library()
    stream, uuid = EventStream(library), Uuid(gpu.uuid)
    assert stream.listen(uuid, library.call("nvmlDeviceGetHandleByUUID", gpu.uuid))
    gpu.xid(79)
    assert stream.heard(uuid) == ((79, None),)
    library.close()
    assert stream.heard(uuid) == ((79, None),)
    handle = library.call("nvmlDeviceGetHandleByUUID", gpu.uuid)
    gpu.xid(31)  # nobody listens: the kernel log has it
    assert stream.listen(uuid, handle)
    gpu.xid(48)
    assert stream.heard(uuid) == ((79, None), (48, None))
    library.close()
    library.open()
    stream.forget(uuid)
    assert stream.heard(uuid) is None
    library.close()


def test_what_is_logged_already_is_not_counted_again() -> None:
    """gpus-8.13: of what was heard only that stays which the log does not have."""
    assert unlogged((79, 31), None) == ()
    assert unlogged((), ((48, None), (13, 2))) == ((48, None), (13, 2))
    assert unlogged((31, 48), ((48, 1), (31, None), (31, 3), (79, None))) == ((31, 3), (79, None))


def test_b70_codes_name_their_instance_in_both_sources(host: Host, backend: NvidiaBackend) -> None:
    """B70, gpus-8.42: which instance a code is about is read from log and events, never made up."""
    gpu = host.add_gpu()
    with (host.root / "kmsg").open("a") as kernel:
        place = gpu.bus_id.rpartition(".")[0]
        said = "94, pid=1, name=x, said"
        kernel.write(f"4,1,7000000,-;NVRM: Xid (PCI:{place} GPU-I:02 GPU-CI:00): {said}\n")
        kernel.write(f"4,2,8000000,-;NVRM: Xid (PCI:{place}): 63, pid=1, name=x, said\n")
    backend.readings(Uuid(gpu.uuid))
    (gpu.path / "events").write_text(f"8 45 5 0\n8 48 {0xFFFFFFFF} {0xFFFFFFFF}\n")
    found = backend.readings(Uuid(gpu.uuid))
    assert found.xids == (94, 63, 45, 48)
    assert found.xid_instances == (2, None, 5, None)
    assert found.xid_times == (7.0, 8.0, None, None)
    assert Readings.from_json(found.as_json()) == found
