"""What the kernel log has of a GPU beyond fault codes, and how far it was read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fleet.core.model import Uuid
from fleet.core.settings import HealthPolicy
from fleet.devices.health.checks import Finding, Verdict, judge, passed
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Gpu, Host

CORPUS = Path(__file__).parents[3] / "corpus"
POLICY = HealthPolicy()
XID = "4,{0},{0}000000,-;NVRM: Xid (PCI:{1}): {2}, pid=1, name=x, text\n"


def findings(backend: NvidiaBackend, gpu: Gpu) -> dict[str, Finding]:
    """What is found of the GPU, by check."""
    return {one.check: one for one in judge(backend.readings(Uuid(gpu.uuid)), POLICY)}


def logged(host: Host, case: str) -> None:
    """A case's log is the machine's."""
    shutil.copyfile(CORPUS / case / "dmesg.txt", host.root / "kmsg")


@pytest.mark.parametrize("links", [0, 18])
def test_f04_a_gpu_behind_a_switch_with_a_fatal_fault_is_not_certified(
    host: Host, backend: NvidiaBackend, links: int
) -> None:
    """F04: every GPU with links is behind the switch, also one whose links were never up; one
    without has nothing to do with it. The node is told in any case.
    """
    gpu = host.add_gpu(nvlinks=links)
    for link in range(links):
        gpu.set(**{f"nvlink_{link}_state": 0})
    logged(host, "F04-nvswitch-sxid")
    found = findings(backend, gpu)
    assert found["switch"].verdict is (Verdict.FAIL if links else Verdict.PASS)
    assert passed(found.values(), POLICY) is not bool(links)
    if links:
        assert found["switch"].reason == "switch-fault"
        assert "slot 0000:84:00: 20034 Fatal, Link 30 LTSSM Fault Up" in found["switch"].detail
    assert any("20034 of a switch in slot 0000:84:00" in told for told in backend.strays())


def test_f04_a_fault_that_is_not_fatal_is_shown(host: Host, backend: NvidiaBackend) -> None:
    """F04: a switch's milder faults are a warning."""
    gpu = host.add_gpu(nvlinks=18)
    (host.root / "kmsg").write_text(
        "[1.0] nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 12028, Non-fatal, x"
    )
    found = findings(backend, gpu)
    assert (found["switch"].verdict, found["switch"].reason) == (Verdict.WARN, "")
    assert passed(found.values(), POLICY)


def test_f06_a_gpu_that_could_not_be_started_needs_a_reset(
    host: Host, backend: NvidiaBackend
) -> None:
    """F06: what the driver logs without a code about a slot is that GPU's, and asks for a reset."""
    gpu, other = host.add_gpu(), host.add_gpu()
    line = f"[9.0] NVRM: GPU {gpu.bus_id}: RmInitAdapter failed! (0x62:0x40:2142)\n"
    (host.root / "kmsg").write_text(line)
    found = findings(backend, gpu)["driver-needs"]
    assert (found.verdict, found.reason, found.action) == (Verdict.FAIL, "reset-required", "reset")
    assert "RmInitAdapter failed" in found.detail
    assert findings(backend, other)["driver-needs"].verdict is Verdict.PASS


def uncounted(host: Host, gpu: Gpu) -> Path:
    """Neither the kernel nor the device counts errors of the bus; its sysfs directory."""
    gpu.set(field_180="error 3", field_179="error 3", field_173="error 3")
    place = host.hardware_root / f"sys/bus/pci/devices/{gpu.bus_id}"
    for path in place.glob("aer_dev_*"):
        path.unlink()
    return place


def test_f20_nothing_counted_is_unknown(host: Host, backend: NvidiaBackend) -> None:
    """F20: a card that can report errors, of which nobody keeps totals, is unknown and blocked; a
    record that names its slot counts; only a card known to have no error reporting has none.
    """
    gpu = host.add_gpu()
    place = uncounted(host, gpu)
    head = (place / "config").read_bytes()[:64].ljust(256, b"\0")
    (place / "config").write_bytes(head + (0x0001).to_bytes(4, "little") + bytes(4096 - 260))
    found = findings(backend, gpu)
    assert (found["aer-fatal"].verdict, found["aer-fatal"].reason) == (
        Verdict.UNKNOWN, "health-unknown",
    )  # fmt: skip
    assert not passed(found.values(), POLICY)
    (place / "config").write_bytes(head[:64])
    assert findings(backend, gpu)["aer-fatal"].verdict is Verdict.UNKNOWN
    (place / "config").write_bytes(head)
    assert findings(backend, gpu)["aer-fatal"].verdict is Verdict.NOT_APPLICABLE
    (place / "config").write_bytes(head + bytes(4096 - 256))
    assert findings(backend, gpu)["aer-fatal"].verdict is Verdict.NOT_APPLICABLE
    text = (CORPUS / "F20-firmware-first-pcie-errors/dmesg.txt").read_text()
    (host.root / "kmsg").write_text(text.replace("0000:3b:00.0", gpu.bus_id))
    found = findings(backend, gpu)
    assert (found["aer-fatal"].verdict, found["aer-fatal"].reason) == (Verdict.FAIL, "aer-fatal")
    assert found["aer-corrected"].verdict is Verdict.NOT_APPLICABLE


def test_f20_totals_that_stay_at_zero_hide_no_record(host: Host, backend: NvidiaBackend) -> None:
    """F20: the kernel keeps totals at zero where firmware takes the errors; the log counts more."""
    gpu = host.add_gpu()
    text = (CORPUS / "F20-firmware-first-pcie-errors/dmesg.txt").read_text()
    (host.root / "kmsg").write_text(text.replace("0000:3b:00.0", gpu.bus_id))
    assert backend.readings(Uuid(gpu.uuid)).aer_fatal == 0
    assert findings(backend, gpu)["aer-fatal"].detail == "aer_fatal is 1, allowed 0"


def test_b58_readings_say_where_their_faults_stand(host: Host, backend: NvidiaBackend) -> None:
    """B58: number and time of each record, when the driver's own events came, how far was read."""
    gpu = host.add_gpu()
    place = gpu.bus_id.rpartition(".")[0]
    (host.root / "kmsg").write_text(XID.format(901, place, 48) + "6,905,905000000,-;eth0: up\n")
    backend.readings(Uuid(gpu.uuid))
    gpu.xid(62)
    found = backend.readings(Uuid(gpu.uuid))
    assert (found.xids, found.xid_sequences) == ((48, 62), (901, None))
    assert (found.xid_times, found.xid_heard[0]) == ((901.0, None), None)
    assert found.log is not None
    assert (found.log.place.sequence, found.log.place.at_s) == (905, 905.0)
    heard, now = found.xid_heard[1], found.log.place.heard_s
    assert heard is not None
    assert now is not None
    assert heard <= now
    state = backend.log_state()
    assert state is not None
    assert state.place.sequence == 905


def test_b58_what_the_driver_said_counts_where_the_log_is_not_read(
    host: Host, backend: NvidiaBackend
) -> None:
    """B58: without a log history is unknown, and a fault the driver told by itself still fails."""
    gpu = host.add_gpu()
    backend.readings(Uuid(gpu.uuid))
    (host.root / "kmsg").unlink()
    found = findings(backend, gpu)
    assert (found["xid"].verdict, found["driver-needs"].verdict) == (Verdict.UNKNOWN,) * 2
    assert backend.log_state() is None
    gpu.xid(13)
    found = findings(backend, gpu)
    assert found["xid"].verdict is Verdict.UNKNOWN
    assert "the kernel log is not read" in found["xid"].detail
    gpu.xid(48)
    assert findings(backend, gpu)["xid"].verdict is Verdict.FAIL
