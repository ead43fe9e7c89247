"""What connects a GPU: PCIe with its errors, NVLink, the fabric."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core.clock import ManualClock
from fleet.core.model import Uuid
from fleet.core.settings import HealthPolicy
from fleet.devices.health.checks import Verdict, judge
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import fabric
from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Gpu, Host


def read(backend: NvidiaBackend, gpu: Gpu) -> Readings:
    """Readings of the GPU."""
    return backend.readings(Uuid(gpu.uuid))


def verdict(check: str, now: Readings, load: Readings | None = None) -> Verdict:
    """How one check comes out."""
    found = {one.check: one for one in judge(now, HealthPolicy(), under_load=load)}
    return found[check].verdict


def test_8_23_links_are_judged_under_load(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.23: idle gen 1 x16 is no fault; x8 of x16 and gen 1 under load are."""
    gpu = host.add_gpu()
    idle = read(backend, gpu)
    assert (idle.pcie_gen, idle.pcie_gen_max, idle.pcie_width) == (1, 5, 16)
    assert (idle.pcie_gen_device_max, idle.pstate) == (5, 8)
    assert verdict("link-speed", idle) is Verdict.NOT_APPLICABLE
    gpu.set(pcie_gen=5, pstate=0)
    full = replace(read(backend, gpu), under_load=True)
    assert verdict("link-speed", idle, full) is Verdict.PASS
    assert verdict("link-width", idle, full) is Verdict.PASS
    gpu.set(pcie_width=8)
    assert verdict("link-width", read(backend, gpu)) is Verdict.WARN
    narrow = replace(read(backend, gpu), under_load=True)
    assert verdict("link-width", idle, narrow) is Verdict.FAIL
    gpu.set(pcie_gen=1, pcie_width=16)
    slow = replace(read(backend, gpu), under_load=True)
    assert verdict("link-speed", idle, slow) is Verdict.FAIL


def test_what_nvml_does_not_tell_the_kernel_may(host: Host, backend: NvidiaBackend) -> None:
    """A link reading that the driver refuses is taken from the kernel, else it is unknown."""
    gpu = host.add_gpu()
    gpu.set(pcie_gen="error 999", pcie_replays="error 3", field_94=7)
    host.tree.put(f"sys/bus/pci/devices/{gpu.bus_id}/current_link_speed", "16.0 GT/s PCIe\n")
    found = read(backend, gpu)
    assert (found.pcie_gen, found.pcie_replays) == (4, 7)
    (host.hardware_root / f"sys/bus/pci/devices/{gpu.bus_id}/current_link_speed").unlink()
    assert read(backend, gpu).pcie_gen is None


def test_8_24_the_kernels_totals_count(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.24: AER totals come from the kernel in both spellings; without files, the device's."""
    gpu = host.add_gpu(field_180=0, field_179=4, field_173=5)
    place = f"sys/bus/pci/devices/{gpu.bus_id}"
    host.tree.put(f"{place}/aer_dev_fatal", "DLP 1\nTOTAL_ERR_FATAL 1\n")
    host.tree.put(f"{place}/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 0\n")
    host.tree.put(f"{place}/aer_dev_correctable", "Bad TLP 2\nTOTAL_ERR_COR 3\n")
    found = read(backend, gpu)
    assert (found.aer_fatal, found.aer_nonfatal, found.aer_corrected) == (1, 0, 3)
    for name in ("fatal", "nonfatal", "correctable"):
        (host.hardware_root / place / f"aer_dev_{name}").unlink()
    found = read(backend, gpu)
    assert (found.aer_fatal, found.aer_nonfatal, found.aer_corrected) == (0, 4, 5)


def test_8_24_no_error_reporting_is_no_failed_reading(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.24: neither kernel nor device counts: not applicable where the card is seen."""
    gpu = host.add_gpu(field_180="error 3", field_179="error 3", field_173="error 3")
    place = host.hardware_root / f"sys/bus/pci/devices/{gpu.bus_id}"
    for path in place.glob("aer_dev_*"):
        path.unlink()
    assert "aer_fatal" in read(backend, gpu).not_applicable
    (place / "aer_dev_fatal").write_text("")
    found = read(backend, gpu)
    assert found.aer_fatal is None
    assert "aer_fatal" not in found.not_applicable


def test_8_28_one_link_down_fails(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.28: 17 of 18 links are a fault; links that do not exist are not counted."""
    gpu = host.add_gpu(nvlinks=18, fabric_state=3, fabric_summary=1)
    found = read(backend, gpu)
    assert (found.nvlinks_up, found.nvlinks_expected) == (18, 18)
    assert verdict("nvlink", found) is Verdict.PASS
    gpu.set(nvlink_7_state=0)
    found = read(backend, gpu)
    assert (found.nvlinks_up, found.nvlinks_expected) == (17, 18)
    assert verdict("nvlink", found) is Verdict.FAIL


def unlink(gpu: Gpu) -> None:
    """None of its links leads anywhere any more."""
    gpu.set(**{f"nvlink_{link}_state": 0 for link in range(int(gpu.get("nvlinks")))})


def test_8_28_links_that_lead_nowhere_are_none(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.28: a card without a bridge has links that are down, and always had: not applicable;
    where there is a fabric they are expected all the same."""
    gpu = host.add_gpu(nvlinks=18)
    unlink(gpu)
    found = read(backend, gpu)
    assert (found.nvlinks_up, found.nvlinks_expected) == (None, 0)
    assert {"nvlinks_up", "nvlink_errors"} <= found.not_applicable
    assert verdict("nvlink", found) is Verdict.NOT_APPLICABLE
    gpu.set(fabric_state=3, fabric_summary=1)
    found = read(backend, gpu)
    assert (found.nvlinks_up, found.nvlinks_expected) == (0, 18)
    assert verdict("nvlink", found) is Verdict.FAIL


def test_8_28_a_bridge_that_was_there_is_missed(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.28, B24: fewer links than were ever up on this card are a fault, after a restart of
    the node too; a card of its kind that never had any is judged by its own past."""
    gpu, other = host.add_gpu(nvlinks=4), host.add_gpu(nvlinks=4)
    unlink(other)
    backend.inventory()
    gpu.set(nvlink_3_state=0)
    assert verdict("nvlink", read(backend, gpu)) is Verdict.PASS
    gpu.set(nvlink_3_state=1)
    assert read(backend, gpu).nvlinks_expected == 4
    unlink(gpu)
    again = NvidiaBackend(**backend.settings())
    again.inventory()
    found = read(again, gpu)
    assert (found.nvlinks_up, found.nvlinks_expected) == (0, 4)
    assert verdict("nvlink", found) is Verdict.FAIL
    assert verdict("nvlink", read(again, other)) is Verdict.NOT_APPLICABLE
    again.close()


def test_8_28_a_link_that_saves_power_is_up(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.28: a sleeping link is not active, and not broken either."""
    found = read(backend, host.add_gpu(nvlinks=2, nvlink_1_state=0, field_165_1=2))
    assert (found.nvlinks_up, found.nvlinks_expected) == (2, 2)


def test_8_28_a_link_that_cannot_be_read_makes_the_number_unknown(
    host: Host, backend: NvidiaBackend
) -> None:
    """gpus-8.28: a refused link is neither up nor absent."""
    found = read(backend, host.add_gpu(nvlinks=2, nvlink_1_state="error 999"))
    assert (found.nvlinks_up, found.nvlinks_expected) == (None, None)
    assert verdict("nvlink", found) is Verdict.UNKNOWN


def test_a_card_without_links(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.28: no link exists: not applicable."""
    found = read(backend, host.add_gpu(nvlinks=0))
    assert found.nvlinks_expected == 0
    assert {"nvlinks_up", "nvlink_errors"} <= found.not_applicable
    assert verdict("nvlink", found) is Verdict.NOT_APPLICABLE


def test_link_errors_are_added_up(host: Host, backend: NvidiaBackend) -> None:
    """Errors of all links and kinds are one counter; totals of the GPU are preferred."""
    gpu = host.add_gpu(nvlinks=2, nvlink_0_errors_1=3, nvlink_1_errors_4=4)
    assert read(backend, gpu).nvlink_errors == 7
    gpu.set(field_38=10, field_52=1)
    assert read(backend, gpu).nvlink_errors == 11


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [(1, 0, "not-started"), (2, 0, "in-progress"), (3, 0, "completed"), (3, 999, "failed-999")],
)
def test_8_27_state_of_the_fabric(
    host: Host, backend: NvidiaBackend, state: int, status: int, said: str
) -> None:
    """gpus-8.27: only completed with success is completed; a status counts only then."""
    gpu = host.add_gpu(fabric_state=state, fabric_status=status, fabric_summary=1)
    assert read(backend, gpu).fabric_state == said


def test_8_27_no_fabric_is_not_applicable(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.27: "not supported", in either way, is not applicable; another refusal is unknown."""
    gpu = host.add_gpu(fabric_state=0)
    assert "fabric_state" in read(backend, gpu).not_applicable
    gpu.set(fabric_state="error 3")
    assert "fabric_state" in read(backend, gpu).not_applicable
    gpu.set(fabric_state="error 999")
    found = read(backend, gpu)
    assert found.fabric_state is None
    assert "fabric_state" not in found.not_applicable


def test_8_27_how_long_the_fabric_is_on_its_way(host: Host) -> None:
    """gpus-8.27, gpus-8.44: on its way it has until a deadline, by a clock that never goes back."""
    gpu, clock = host.add_gpu(fabric_state=2), ManualClock(1000.0)
    log = host.root / "kmsg"
    log.touch()
    own = NvidiaBackend(root=str(host.hardware_root), kernel_log=str(log), clock=clock)
    found = read(own, gpu)
    assert found.fabric_waited_s == 0.0
    assert verdict("fabric", found) is Verdict.UNKNOWN
    clock.advance(121.0)
    found = read(own, gpu)
    assert found.fabric_waited_s == 121.0
    assert verdict("fabric", found) is Verdict.FAIL
    gpu.set(fabric_state=3, fabric_summary=1)
    assert read(own, gpu).fabric_waited_s is None
    gpu.set(fabric_state=1)
    assert read(own, gpu).fabric_waited_s == 0.0
    own.close()


def test_8_27_parts_before_the_fabric(host: Host, backend: NvidiaBackend) -> None:
    """gpus-8.27: a driver too old for any form of the call leaves a new part unknown; an old part
    has none."""
    old, new = host.add_gpu("a30"), host.add_gpu()
    for gpu in (old, new):
        gpu.fault("nvmlDeviceGetGpuFabricInfoV", "return 13")
        gpu.fault("nvmlDeviceGetGpuFabricInfo", "return 13")
    assert "fabric_state" in read(backend, old).not_applicable
    assert "fabric_state" not in read(backend, new).not_applicable


def test_f47_the_first_form_of_the_call_is_asked_where_it_is_all_there_is(
    host: Host, backend: NvidiaBackend
) -> None:
    """F47: a library as of R525, without the call with versions, tells the state of an H100's
    fabric by the call it has; no health is told then, and none is missed. A refusal is no older
    driver."""
    gpu = host.add_gpu(fabric_state=3)
    gpu.fault("nvmlDeviceGetGpuFabricInfoV", "return 13")
    found = read(backend, gpu)
    assert (found.fabric_state, found.fabric_healthy) == ("completed", None)
    assert verdict("fabric", found) is Verdict.PASS
    gpu.set(fabric_state=1)
    assert read(backend, gpu).fabric_state == "not-started"
    gpu.set(fabric_state=3, fabric_status=999)
    assert verdict("fabric", read(backend, gpu)) is Verdict.FAIL
    gpu.set(fabric_state=0, fabric_status=0)
    assert verdict("fabric", read(backend, gpu)) is Verdict.NOT_APPLICABLE
    gpu.set(fabric_state=3)
    gpu.fault("nvmlDeviceGetGpuFabricInfoV", "return 999")
    assert verdict("fabric", read(backend, gpu)) is Verdict.UNKNOWN


@pytest.mark.parametrize("state", [0, "error 3"])
@pytest.mark.parametrize("product", ["STAND-IN GB200", "STAND-IN GB300 NVL", "STAND-IN B200"])
def test_f18_hardware_that_has_a_fabric_does_not_lack_one(
    host: Host, backend: NvidiaBackend, product: str, state: object
) -> None:
    """F18: on a product built with a fabric "not supported" is unknown, which blocks; on a card
    without links, or of another product, it is not applicable."""
    gpu = host.add_gpu(nvlinks=18, name=product, fabric_state=state)
    assert verdict("fabric", read(backend, gpu)) is Verdict.UNKNOWN
    gpu.set(nvlinks=0)
    assert verdict("fabric", read(backend, gpu)) is Verdict.NOT_APPLICABLE
    gpu.set(nvlinks=18, name="STAND-IN H100 4-GPU")
    assert verdict("fabric", read(backend, gpu)) is Verdict.NOT_APPLICABLE


def switch(host: Host) -> None:
    """An NVSwitch is on the bus."""
    place = "sys/bus/pci/devices/0000:07:00.0"
    for name, text in (("vendor", "0x10de"), ("device", "0x22a3"), ("class", "0x068000")):
        host.tree.put(f"{place}/{name}", f"{text}\n")


@pytest.mark.parametrize("model", ["h100", "a30"])
def test_f18_switches_without_their_service_are_unknown(
    host: Host, backend: NvidiaBackend, model: str
) -> None:
    """F18: on a node with NVSwitches the fabric manager itself is looked at, for GPUs that tell no
    state too: without it nothing is known of the fabric, and the node says so before any wipe."""
    gpu = host.add_gpu(model, nvlinks=12, fabric_state=3 if model == "h100" else 0)
    gpu.set(fabric_summary=1)
    switch(host)
    found = read(backend, gpu)
    assert (found.fabric_state, "fabric_state" in found.not_applicable) == (None, False)
    assert found.why["fabric_state"] == fabric.NOT_SERVED
    assert verdict("fabric", found) is Verdict.UNKNOWN
    assert [one.detail for one in backend.unfit() if "NVSwitch" in one.detail] == [
        fabric.NOT_SERVED
    ]
    host.tree.process(4100, "nv-fabricmanager")
    expected = Verdict.PASS if model == "h100" else Verdict.NOT_APPLICABLE
    assert verdict("fabric", read(backend, gpu)) is expected
    assert not [one for one in backend.unfit() if "NVSwitch" in one.detail]
    host.tree.put("proc/4100/status", "Name:\tnv-fabricmanage\nUid:\t1000\t1000\t1000\t1000\n")
    assert verdict("fabric", read(backend, gpu)) is Verdict.UNKNOWN, "anybody may take that name"


@pytest.mark.parametrize(
    ("mask", "summary", "healthy"),
    [
        (0b10101010, 1, True),
        (0b10101001, 1, False),
        (0b01101010, 1, False),
        (0x400, 1, False),
        (0x100, 0, True),
        (0b10101010, 2, False),
        (0b10101010, 3, False),
        (0, 0, None),
    ],
)
def test_8_27_health_of_the_fabric(
    host: Host, backend: NvidiaBackend, mask: int, summary: int, healthy: bool | None
) -> None:
    """gpus-8.27: one bad field, a wrong configuration or a bad summary is not healthy."""
    gpu = host.add_gpu(fabric_state=3, fabric_mask=mask, fabric_summary=summary)
    assert read(backend, gpu).fabric_healthy is healthy


def test_an_older_driver_has_no_summary(host: Host, backend: NvidiaBackend) -> None:
    """A driver that knows only the second form of the struct is asked in that."""
    gpu = host.add_gpu(fabric_version=2, fabric_state=3, fabric_mask=1)
    found = read(backend, gpu)
    assert (found.fabric_state, found.fabric_healthy) == ("completed", False)
