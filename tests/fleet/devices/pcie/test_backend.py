"""The whole back end on a fake machine, and the wipe engine with it."""

from __future__ import annotations

import os
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.clock import ManualClock
from fleet.core.errors import BackendFailed, DeviceLost, DeviceUnfit, InputInvalid
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimOrder
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.core.settings import HardwareKind, HardwareSettings, Settings, WipePolicy
from fleet.devices import registry
from fleet.devices.base import CanReset, CanScrubByReset
from fleet.devices.pcie.backend import PcieBackend
from fleet.devices.wipe import engine, plan
from fleet.devices.wipe.result import Failure, Kind, WipeResult
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from fleet.wiring import adapters
from tests.drivers.pci_tree import GAUDI2, MI300X, TPU_V4, TPU_V5E
from tests.fleet.devices.pcie.benches import Bench, address, bench


def wipe(found: Bench) -> WipeResult:
    """The wipe engine over the first card."""
    accelerator = found.accelerator()
    target = plan.Target(
        "pcie",
        found.backend.settings(),
        accelerator.uuid,
        accelerator.uuid,
        accelerator.device.units,
        accelerator.memory_bytes,
    )
    order = plan.order(target, WipePolicy(), worker_id=uuid.uuid4().hex, nonce="5a" * 32)
    return engine.run(order, found.backend, ManualClock(1000.0), lambda *_: None)


def test_it_can_reset_and_scrub_by_it(tmp_path: Path) -> None:
    """Issue 5: the engine and the node find the abilities by their protocols."""
    backend = bench(tmp_path, TPU_V5E).backend
    assert isinstance(backend, CanReset)
    assert isinstance(backend, CanScrubByReset)


def test_memory_cannot_be_opened(tmp_path: Path) -> None:
    """Promise 8: there is no session that could pretend to read memory."""
    found = bench(tmp_path, TPU_V5E)
    one = found.accelerator()
    with pytest.raises(BackendFailed, match="cannot be reached"):
        found.backend.session(one.uuid, one.device.units)


def test_unknown_settings_are_refused() -> None:
    """Issue 5: a worker rebuilds the back end from exactly the settings there are."""
    with pytest.raises(InputInvalid, match="typo"):
        registry.build("pcie", {"root": "/", "typo": 1})


def test_a_gaudi_is_unbound_reset_and_bound_again(tmp_path: Path) -> None:
    """gpus-8.36, 8.35: reset by the method allowed; the driver and the list are as before."""
    found = bench(tmp_path, GAUDI2)
    outcome = found.backend.reset(found.accelerator().uuid)
    assert (outcome.done, outcome.method) == (True, "flr")
    assert found.function().driver == "habanalabs"
    assert found.function().reset_methods() == ("flr", "bus")


def test_an_unbound_driver_is_bound_again_after_a_failure(tmp_path: Path) -> None:
    """gpus-8.35: restored after failure, too."""
    found = bench(tmp_path, GAUDI2)
    found.kernel.failing = {"flr", "device_specific"}
    with pytest.raises(BackendFailed, match="ENOTTY"):
        found.backend.reset(found.accelerator().uuid)
    assert found.function().driver == "habanalabs"
    assert found.function().reset_methods() == ("flr", "bus")


def test_an_older_tpus_driver_is_not_unbound(tmp_path: Path) -> None:
    """gpus-8.36: a driver that is not known to stand it refuses the reset."""
    found = bench(tmp_path, TPU_V4)
    outcome = found.backend.reset(found.accelerator().uuid)
    assert not outcome.done
    assert "driver gasket is bound" in outcome.detail


def test_a_neighbour_of_the_hive_holds_it_back(tmp_path: Path) -> None:
    """gpus-1.11: whoever uses another GPU of the hive refuses the reset, by name."""
    found = bench(tmp_path, MI300X, replace(MI300X, serial=5))
    for index in (0, 1):
        found.tree.write(address(index), "xgmi_hive_info/xgmi_hive_id", "77")
    found.tree.process(42, "trainer", "/dev/dri/renderD130")
    outcome = found.backend.reset(found.accelerator().uuid)
    assert not outcome.done
    assert "trainer (pid 42)" in outcome.detail


def test_one_group_is_never_granted_in_parts(tmp_path: Path) -> None:
    """Promise 9, gpus-5.5: a group's node reaches both functions, so neither is granted."""
    found = bench(tmp_path, TPU_V5E, TPU_V5E)
    with pytest.raises(BackendFailed, match="one IOMMU group with 0000:3c"):
        found.backend.grant(found.accelerator().device)


def test_a_dead_card_is_granted_to_nobody(tmp_path: Path) -> None:
    """gpus-8.25: its nodes are still there, and the card is not."""
    found = bench(tmp_path, GAUDI2)
    device = found.accelerator().device
    found.tree.die(address(0))
    with pytest.raises(DeviceLost):
        found.backend.grant(device)


def test_a_wipe_is_a_reset_and_says_so(tmp_path: Path) -> None:
    """Issue 5, promise 8: reset, nobody there, counters read; no byte covered, no pass made."""
    found = bench(tmp_path, TPU_V5E)
    result = wipe(found)
    assert result.verified, result.detail
    assert result.kind is Kind.RESET
    assert (result.coverage.total, result.coverage.covered) == (16 << 30, 0)
    assert (result.passes, result.self_test_passed, result.pattern) == ((), False, "")
    assert result.scrub is not None
    assert (result.scrub.method, result.scrub.vendor_scrub) == ("flr", "none")
    assert result.before is not None
    assert result.after is not None


def test_a_gaudi_with_its_switch_off_is_not_wiped(tmp_path: Path) -> None:
    """gpus-5.5, 10.28: memory_scrub off: the reset is done and does not count."""
    found = bench(tmp_path, GAUDI2)
    found.tree.module("habanalabs", "1", {"memory_scrub": "0"})
    result = wipe(found)
    assert (result.failure, result.verified) == (Failure.BACKEND, False)
    assert "memory_scrub is off" in result.detail


def test_a_holder_ends_it_before_anything_is_touched(tmp_path: Path) -> None:
    """gpus-8.16, 8.17: a process with the group open is named, and no reset happens."""
    found = bench(tmp_path, TPU_V5E)
    found.tree.process(42, "tpu-runtime", "/dev/vfio/7")
    result = wipe(found)
    assert result.failure is Failure.HOLDER
    assert "tpu-runtime (pid 42" in result.detail
    assert found.kernel.log == []


def test_a_holder_that_comes_with_the_reset_ends_it(tmp_path: Path) -> None:
    """gpus-8.18: whoever opens it between reset and end makes the result invalid."""
    found = bench(tmp_path, TPU_V5E)
    found.kernel.struck = lambda _: found.tree.process(42, "quick", "/dev/vfio/7")
    result = wipe(found)
    assert result.failure is Failure.HOLDER
    assert [holder.pid for holder in result.holders] == [42]


def test_a_card_lost_in_its_reset_is_lost(tmp_path: Path) -> None:
    """gpus-8.12: outcome lost, no retry on the device."""
    found = bench(tmp_path, TPU_V5E)
    found.kernel.struck = lambda _: found.tree.die(address(0))
    assert wipe(found).failure is Failure.LOST


def test_fatal_errors_counted_during_it_fail_it(tmp_path: Path) -> None:
    """gpus-8.24: a rise of fatal errors fails it, corrected ones are left to policy."""
    found = bench(tmp_path, TPU_V5E)
    total = "aer_dev_fatal", "TOTAL_ERR_FATAL"
    found.tree.write(address(0), total[0], f"{total[1]} 0")
    found.tree.write(address(0), "aer_dev_correctable", "TOTAL_ERR_COR 0")

    def struck(_method: str) -> None:
        found.tree.write(address(0), "aer_dev_correctable", "TOTAL_ERR_COR 4")

    def struck_harder(_method: str) -> None:
        found.tree.write(address(0), total[0], f"{total[1]} 1")

    found.kernel.struck = struck
    assert wipe(found).verified
    found.kernel.struck = struck_harder
    result = wipe(found)
    assert result.failure is Failure.COUNTERS
    assert "aer_fatal from 0 to 1" in result.detail


def test_holders_nobody_can_see_fail_it(tmp_path: Path) -> None:
    """gpus-8.17: without the host's processes there is no proof, and no wipe."""
    found = bench(tmp_path, TPU_V5E)
    (found.tree.root / "proc/1/ns/pid").unlink()
    result = wipe(found)
    assert result.failure is Failure.BACKEND
    assert "is unknown" in result.detail
    assert found.kernel.log == []


def test_only_the_methods_of_the_settings_are_used(tmp_path: Path) -> None:
    """Issue 5: the method policy allows."""
    found = bench(tmp_path, replace(TPU_V5E, methods="flr bus"), reset_methods=["bus"])
    assert found.backend.reset(found.accelerator().uuid).method == "bus"
    other = PcieBackend(root=str(found.tree.root), reset_methods=("pm",))
    assert not other.reset(found.accelerator().uuid).done


def test_a_neighbour_in_its_reset_holds_up_nobody(tmp_path: Path) -> None:
    """B29: the kernel lets readers of a card in reset wait; other cards are read all the same."""
    found = bench(tmp_path, GAUDI2, replace(GAUDI2, serial=2))
    first, second = found.backend.inventory()
    config = found.function(1).path / "config"
    config.unlink()
    os.mkfifo(config)  # a read of it would never end
    assert found.backend.readings(first.uuid).present is True
    assert found.backend.processes(first.uuid) == ()
    assert found.backend.grant(first.device).nodes
    assert found.backend.reset(first.uuid).done
    assert second.uuid != first.uuid


def test_a_node_certifies_it_and_keeps_it_from_strict_claims(tmp_path: Path) -> None:
    """Issue 5: child, worker, certificate and evidence end to end; a claim is refused in words."""
    found = bench(tmp_path, TPU_V5E)
    found.tree.errors(address(0))
    root, run = str(found.tree.root), str(tmp_path / "run")
    hardware = HardwareSettings(kind=HardwareKind.PCIE, root=root, run_directory=run)
    settings = Settings(hardware=hardware)
    state = str(tmp_path / "state")
    stores = adapters.CoordinatorPlan(state=state, settings=settings)
    coordinator = adapters.open_coordinator(stores)
    plan = adapters.NodePlan(node="n1", state=state, hardware="pcie", settings=settings)
    with closing(adapters.open_node(plan)) as node:
        (view,) = node.adopt(operator="test")
        wanted = AcquireRequest(
            frozenset(map(UnitId, view.units)), Holder(HolderKind.CLAIM, "c"), None
        )
        (lease,) = coordinator.acquire([wanted])
        assert isinstance(lease, Lease)
        order = ClaimOrder(
            uid="c", node="n1", devices=(view.uuid,), token=str(lease.token), consumers=("p",)
        )
        with pytest.raises(DeviceUnfit, match="memory not read back"):
            node.prepare(order, budget_s=30.0)
        assert [one.state for one in node.view().devices] == ["CLEAN"]
    report = verify(collect(Path(state)))
    assert (report.ok, report.certificates, report.simulated) == (True, 1, 0)
