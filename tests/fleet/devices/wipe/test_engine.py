"""The engine: every fault ends in the right verdict, and only a whole wipe is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.core.clock import ManualClock, SystemClock
from fleet.core.errors import BackendFailed, OutOfMemory
from fleet.core.model import Accelerator, Device, Process, ProcessKind, UnitId, UnitSpec, Uuid
from fleet.devices.base import Coverage, Grant, MemorySession, Mismatch, Progress
from fleet.devices.health.readings import Readings
from fleet.devices.simulated import clients, memory
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.devices.simulated.session import SimulatedSession
from fleet.devices.wipe import engine
from fleet.devices.wipe.allocation import take_all
from fleet.devices.wipe.plan import WipeOrder
from fleet.devices.wipe.result import PASSES, Failure
from tests.fleet.devices.wipe.orders import break_it, impatient, node, order_for, run, whole

GIB = 1 << 30


def test_a_healthy_device_is_verified_and_zero(tmp_path: Path) -> None:
    """B3: four passes over every byte, the self-test found its error, and memory is zero."""
    backend = node(tmp_path)
    device = whole(backend)
    path = backend.memory(device.uuid)
    memory.write(path, 12345, b"a tenant's secret")
    result = run(backend, order_for(backend, device))
    assert result.verified, result.detail
    assert tuple(one.name for one in result.passes) == PASSES
    assert result.coverage == Coverage(device.memory_bytes, 0, device.memory_bytes)
    assert not any(path.read_bytes())
    assert result.under_load is not None
    assert result.under_load.pcie_gen == 5


class Clocked(SimulatedSession):
    """Memory with a clock of its own, by which every pass took so many seconds."""

    def __init__(self, backend: SimulatedBackend, device: Device, seconds: float) -> None:
        specs = backend.inventory()[0].units
        memory_of = backend.memory(device.accelerator)
        read = partial(replace, backend.readings(device.accelerator), under_load=True)
        super().__init__(memory_of, specs, read=read, closed=lambda: None)
        self._seconds = seconds

    def device_seconds(self) -> float:
        """By the device's own clock."""
        return self._seconds

    def extra(self) -> Mapping[str, Any]:
        """Of itself."""
        return {"on_chip": "said"}


class ClockedBackend(SimulatedBackend):
    """A back end of such memory."""

    seconds = 0.0

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:  # noqa: ARG002
        """Of the whole device."""
        return Clocked(self, self.inventory()[0].device, self.seconds)


def test_passes_are_judged_and_told_by_the_devices_own_clock(tmp_path: Path) -> None:
    """gpus-4.3, B18: the certificate has the device's time and what the session says of itself."""
    backend = ClockedBackend(node(tmp_path).root)
    device = whole(backend)
    order = replace(order_for(backend, device), device_bytes_per_s=device.memory_bytes * 10.0)
    backend.seconds = 0.25
    result = run(backend, order)
    assert result.verified, result.detail
    assert result.seconds == 4 * 0.25
    assert result.extra["on_chip"] == "said"
    backend.seconds = 1.25
    result = run(backend, order)
    assert result.failure is Failure.SLOW
    assert "on the device" in result.detail


class Telling(Clocked):
    """Memory that notes what was asked of it, and that takes long to compare."""

    def __init__(self, backend: SimulatedBackend, device: Device) -> None:
        super().__init__(backend, device, 0.25)
        self.told: list[str] = []
        self.wrong: Sequence[Mismatch] = ()

    def verify(
        self, nonce: bytes, progress: Progress, *, within: tuple[int, int] | None = None
    ) -> Sequence[Mismatch]:
        self.told.append("verify")
        self._seconds = 1.25
        found = super().verify(nonce, progress, within=within)
        self.told.append("verified")
        return [*found, *self.wrong] if within is None else found

    def readings(self) -> Readings:
        self.told.append("readings")
        return super().readings()


class TellingBackend(SimulatedBackend):
    """A back end of such memory."""

    opened: Telling
    wrong: Sequence[Mismatch] = ()

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:  # noqa: ARG002
        self.opened = Telling(self, self.inventory()[0].device)
        self.opened.wrong = self.wrong
        return self.opened


@pytest.mark.parametrize(("wrong", "failure"), [(True, Failure.MISMATCH), (False, Failure.SLOW)])
def test_what_a_pass_found_comes_before_how_long_it_took(
    tmp_path: Path, wrong: bool, failure: Failure
) -> None:
    """gpus-8.7: to count differences takes time; memory that is wrong is not called slow. Memory
    that is right and slow is."""
    backend = TellingBackend(node(tmp_path).root)
    device = whole(backend)
    backend.wrong = [Mismatch(device.units[0], 0, 4096)] if wrong else []
    order = replace(order_for(backend, device), device_bytes_per_s=device.memory_bytes * 10.0)
    result = run(backend, order)
    assert result.failure is failure, result.detail


def test_gpus_8_23_a_device_with_its_own_clock_is_not_read_within_a_pass(tmp_path: Path) -> None:
    """gpus-8.23: readings take the host long; they come after the pass, and are there."""
    backend = TellingBackend(node(tmp_path).root)
    result = run(backend, order_for(backend, whole(backend)))
    assert result.verified, result.detail
    assert result.under_load is not None
    assert backend.opened.told[:3] == ["verify", "verified", "readings"]
    assert backend.opened.told.count("readings") == 1


class Waiting(SimulatedBackend):
    """A back end where each look at holders takes a minute by the clock it is given."""

    clock: ManualClock
    looks = 0

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        self.clock.advance(60.0)
        self.looks += 1
        return super().processes(accelerator)


def test_gpus_8_18_time_spent_looking_for_holders_is_not_the_memorys(tmp_path: Path) -> None:
    """gpus-8.18: looks are as far apart as intended however long they take, and no pass is slow
    for them."""
    backend = Waiting(node(tmp_path).root)
    backend.clock = ManualClock(1000.0)
    order = order_for(backend, whole(backend))
    result = engine.run(order, backend, backend.clock, lambda *_: None)
    assert result.verified, result.detail
    assert result.seconds == 0.0
    assert backend.looks == 2


def test_a_partition_is_wiped_and_its_neighbours_keep_their_bytes(tmp_path: Path) -> None:
    """Promise 9: wiping one slice touches no other unit of the accelerator."""
    backend = node(tmp_path, partitionable=1)
    accelerator = backend.inventory()[0]
    path = backend.memory(accelerator.uuid)
    memory.write(path, 0, b"\xa5" * accelerator.memory_bytes)
    part = next(device for device in accelerator.devices if device.profile.startswith("2g"))
    result = run(backend, order_for(backend, part))
    assert result.verified, result.detail
    content = path.read_bytes()
    for unit in accelerator.units:
        piece = content[unit.offset_bytes : unit.offset_bytes + unit.size_bytes]
        assert set(piece) == ({0} if unit.id in part.units else {0xA5})


@pytest.mark.parametrize(
    ("fault", "failure", "words"),
    [
        ("allocation-shortfall", Failure.COVERAGE, "not reached"),
        ("dirty-word", Failure.MISMATCH, "did not read back"),
        ("dirty-zero", Failure.MISMATCH, "was not zero"),
        ("stale-verifier", Failure.VERIFIER, "not found by the verifier"),
        ("ecc-uncorrectable", Failure.COUNTERS, "ecc_uncorrected_volatile from 0 to 1"),
        ("device-lost", Failure.LOST, "fell off the bus"),
        ("counter-unread", Failure.BACKEND, "0xffffffff"),
    ],
)
def test_a_fault_fails_the_wipe(tmp_path: Path, fault: str, failure: Failure, words: str) -> None:
    """D4: each fault ends unverified, under its own reason and with the facts."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, fault)
    result = run(backend, order_for(backend, device))
    assert (result.failure, result.verified) == (failure, False)
    assert words in result.detail
    assert not backend.processes(device.uuid), "the session was not closed"


def test_slow_memory_fails_the_wipe(tmp_path: Path) -> None:
    """Memory ten times slower than expected is a fault, told before the pass has ended."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "slow-memory", bytes_per_s=5e6)
    result = run(backend, impatient(order_for(backend, device)))
    assert result.failure is Failure.SLOW
    assert not result.passes


def test_a_foreign_process_that_appears_fails_the_wipe(tmp_path: Path) -> None:
    """gpus-8.18: a holder between check and last verify invalidates the result, and is named."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "foreign-holder", name="intruder")
    try:
        result = run(backend, order_for(backend, device))
    finally:
        backend.clear_fault(device.uuid, "foreign-holder")
    assert result.failure is Failure.HOLDER
    assert [(one.name, one.kind) for one in result.holders] == [("intruder", ProcessKind.FOREIGN)]


def test_listed_infrastructure_may_stay_and_is_named(tmp_path: Path) -> None:
    """A daemon of the list does not fail a wipe, but the result says that it was there."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "infrastructure-holder")
    try:
        result = run(backend, order_for(backend, device))
    finally:
        backend.clear_fault(device.uuid, "infrastructure-holder")
    assert result.verified, result.detail
    assert [one.kind for one in result.holders] == [ProcessKind.INFRASTRUCTURE]


def test_a_tenant_that_is_there_stops_the_wipe_before_it_writes(tmp_path: Path) -> None:
    """Promise 4, gpus-8.16: memory of a device somebody holds is not touched."""
    backend = node(tmp_path)
    device = whole(backend)
    path = backend.memory(device.uuid)
    memory.write(path, 0, b"in use")
    registers = backend.registers(device.uuid)
    clients.start(registers, path, name="tenant", units=device.units, seconds=60.0)
    try:
        result = run(backend, order_for(backend, device))
    finally:
        clients.stop(registers.read().clients)
    assert result.failure is Failure.HOLDER
    assert "tenant" in result.detail
    assert memory.read(path, 0, 6) == b"in use"


@pytest.mark.parametrize("fault", ["remap-pending", "link-degraded", "thermal-slowdown", "xid"])
def test_health_faults_are_recorded_for_the_checks(tmp_path: Path, fault: str) -> None:
    """B1: what only the health checks judge reaches the result's readings unchanged."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, fault)
    result = run(backend, order_for(backend, device))
    assert result.verified
    assert result.after is not None
    assert result.under_load is not None
    seen = {
        "remap-pending": result.after.row_remap_pending is True,
        "link-degraded": result.under_load.pcie_width == 8,
        "thermal-slowdown": result.under_load.thermal_slowdown is True,
        "xid": result.after.xids == (48,),
    }
    assert seen[fault]


def test_b13_the_device_opened_is_the_device_ordered(tmp_path: Path) -> None:
    """B13: units or a device of another accelerator fail before anything is written."""
    backend = node(tmp_path, accelerators=2)
    ours, other = whole(backend, 0), whole(backend, 1)
    path = backend.memory(other.uuid)
    memory.write(path, 0, b"other")
    for wrong in (
        replace(order_for(backend, ours), units=other.units),
        replace(order_for(backend, ours), device=other.uuid),
        replace(order_for(backend, ours), accelerator=other.uuid),
    ):
        result = run(backend, wrong)
        assert result.failure is Failure.BACKEND
        assert "nothing was written" in result.detail
    assert memory.read(path, 0, 5) == b"other"


def test_progress_counts_bytes_of_all_passes(tmp_path: Path) -> None:
    """Progress never goes back, ends at four times the memory, and names each pass."""
    backend = node(tmp_path)
    device = whole(backend)
    told: list[tuple[str, int, int]] = []

    def listen(phase: str, done: int, total: int) -> None:
        told.append((phase, done, total))

    engine.run(order_for(backend, device), backend, SystemClock(), listen)
    figures = [done for _, done, _ in told]
    assert figures == sorted(figures)
    assert told[-1] == ("verify-zero", 4 * device.memory_bytes, 4 * device.memory_bytes)
    assert {phase for phase, _, _ in told} >= set(PASSES)


# --- case B06: an 80 GiB device that exists only as figures --------------------------------------

HOLES = (
    (0, 34359738368),
    (34896609280, 17179869184),
    (52613349376, 17179869184),
    (70330089472, 8589934592),
    (79456894976, 4294967296),
    (84288733184, 536870912),
)
CANARIES = (16, 4294967312, 34896609296, 52613349392, 70330089488, 79456894992, 84825604080)
TOTAL, RESERVED = 85899345920, 734003200
VIRTUAL = Uuid("GPU-00000000-0000-4000-8000-0000000000a0")
UNIT = UnitId(f"{VIRTUAL}/all")


class Virtual:
    """Back end and session in one: memory is the set of places with the wrong content."""

    kind = "virtual"
    simulated = True
    pattern_name = "virtual"

    def __init__(
        self, *, oom_once: bool = False, bad_at: int | None = None, counter: Sequence[int] = (0,)
    ) -> None:
        self.holes = [list(hole) for hole in HOLES]
        self.oom = 1 if oom_once else 0
        self.bad_at = bad_at
        self.counters = list(counter)
        self.chunks: list[tuple[int, int]] = []
        self.wrong = set(CANARIES)
        self.closed = 0
        self.disturbed: set[int] = set()
        self.broken = ""

    def inventory(self) -> Sequence[Accelerator]:
        device = Device(VIRTUAL, "gpu-0", VIRTUAL, (UNIT,), TOTAL)
        return (Accelerator(VIRTUAL, (UnitSpec(UNIT, TOTAL),), (device,)),)

    def readings(self, accelerator: Uuid | None = None) -> Readings:  # noqa: ARG002 - part of the protocol
        value = self.counters.pop(0) if len(self.counters) > 1 else self.counters[0]
        return Readings(at=0.0, ecc_uncorrected_volatile=value)

    def processes(self, accelerator: Uuid) -> Sequence[Process]:  # noqa: ARG002 - part of the protocol
        return ()

    def grant(self, device: Device) -> Grant:  # noqa: ARG002 - part of the protocol
        return Grant()

    def agent_grant(self) -> Grant:
        return Grant()

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> Virtual:  # noqa: ARG002 - part of the protocol
        return self

    def settings(self) -> Mapping[str, Any]:
        return {}

    def _take(self, size: int) -> tuple[int, int]:
        if self.oom:
            self.oom -= 1
            raise OutOfMemory("not now")
        for hole in self.holes:
            if hole[1] >= size:
                chunk = (hole[0], size)
                hole[0], hole[1] = hole[0] + size, hole[1] - size
                return chunk
        raise OutOfMemory("no hole")

    def allocate(self, *, largest_bytes: int, smallest_bytes: int) -> Coverage:
        self.chunks = take_all(
            self._take, largest_bytes=largest_bytes, smallest_bytes=smallest_bytes
        )
        return Coverage(TOTAL, RESERVED, sum(size for _, size in self.chunks))

    def _overwrite(self, progress: Progress) -> None:
        if self.broken:
            raise BackendFailed(self.broken)
        self.wrong = {w for w in self.wrong if not any(a <= w < a + n for a, n in self.chunks)}
        progress(sum(size for _, size in self.chunks))

    def fill(self, nonce: bytes, progress: Progress) -> None:  # noqa: ARG002 - part of the protocol
        self._overwrite(progress)
        if self.bad_at is not None:
            self.wrong.add(self.bad_at)

    def zero(self, progress: Progress) -> None:
        self._overwrite(progress)

    def verify(
        self,
        nonce: bytes,  # noqa: ARG002 - part of the protocol
        progress: Progress,
        *,
        within: tuple[int, int] | None = None,
    ) -> Sequence[Mismatch]:
        progress(sum(size for _, size in self.chunks))
        low, length = (self._address(within[0]), within[1]) if within else (0, TOTAL)
        bad = sorted({w // 8 * 8 for w in self.wrong | self.disturbed if low <= w < low + length})
        return [Mismatch(UNIT, at, 8) for at in bad]

    def verify_zero(self, progress: Progress) -> Sequence[Mismatch]:
        progress(sum(size for _, size in self.chunks))
        return [Mismatch(UNIT, at // 8 * 8, 8) for at in sorted(self.wrong)]

    def disturb(self, offset_bytes: int) -> Callable[[], None]:
        self.disturbed.add(self._address(offset_bytes))
        return self.disturbed.clear

    def _address(self, offset: int) -> int:
        for address, size in self.chunks:
            if offset < size:
                return address + offset
            offset -= size
        raise AssertionError(f"{offset} lies outside of what is allocated")

    def close(self) -> None:
        self.closed += 1


def virtual_order(floor: float = 0.96) -> WipeOrder:
    """An order for the 80 GiB device."""
    return WipeOrder(
        worker_id="ab" * 16,
        backend="virtual",
        settings={},
        accelerator=VIRTUAL,
        device=VIRTUAL,
        units=(UNIT,),
        nonce="0f" * 32,
        deadline_s=1.0,
        coverage_floor=floor,
        chunk_largest_bytes=64 * GIB,
    )


def tell(_phase: str, _done: int, _total: int) -> None:
    """Nobody listens."""


def test_b06_every_hole_of_80_gib_is_covered_and_every_canary_gone() -> None:
    """B06: chunks shrink into all six holes; total, reserved, covered, residual are exact."""
    device = Virtual(oom_once=True)
    result = engine.run(virtual_order(), device, SystemClock(), tell)
    assert result.verified, result.detail
    assert result.coverage.covered == sum(size for _, size in HOLES)
    assert result.coverage.residual == TOTAL - RESERVED - result.coverage.covered
    assert not device.wrong
    assert device.closed == 1


def test_b06_coverage_below_the_floor_fails() -> None:
    """B06: what was not reached fails the wipe before anything is called covered."""
    result = engine.run(virtual_order(0.98), Virtual(), SystemClock(), tell)
    assert result.failure is Failure.COVERAGE
    assert f"{TOTAL - RESERVED - sum(size for _, size in HOLES)} B not reached" in result.detail


def test_b06_one_bad_byte_beyond_4_gib_fails() -> None:
    """B06: the byte at 5 GiB + 3 is found and named with its whole offset."""
    result = engine.run(virtual_order(), Virtual(bad_at=5368709123), SystemClock(), tell)
    assert result.failure is Failure.MISMATCH
    assert result.self_test_passed
    assert result.mismatches == (Mismatch(UNIT, 5368709120, 8),)


@pytest.mark.parametrize(
    ("counter", "failure"),
    [
        ((0xFFFFFFFF,), Failure.BACKEND),
        ((0, 0xFFFFFFFF), Failure.BACKEND),
        ((5, 5, 4), Failure.BACKEND),
        ((0, 0, 1), Failure.COUNTERS),
        ((7, 7, 7), None),
    ],
)
def test_b06_counters_are_read_out_or_the_run_fails(
    counter: tuple[int, ...], failure: Failure | None
) -> None:
    """B06: all ones or a shrinking counter is a failed read-out; a rise is a fault."""
    result = engine.run(virtual_order(), Virtual(counter=counter), SystemClock(), tell)
    assert result.failure is failure


def test_a_failing_driver_is_a_result_and_the_session_is_closed() -> None:
    """The engine raises nothing for device trouble and always gives memory back."""
    device = Virtual()
    device.broken = "call failed"
    result = engine.run(virtual_order(), device, SystemClock(), tell)
    assert (result.failure, result.detail, device.closed) == (Failure.BACKEND, "call failed", 1)


def test_b18_a_context_of_a_daemon_not_on_the_list_blocks(tmp_path: Path) -> None:
    """B18: a helper's context (here: a compute multiplexer) is a holder like any other."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "foreign-holder", name="nvidia-cuda-mps-server")
    try:
        result = run(backend, order_for(backend, device))
    finally:
        backend.clear_fault(device.uuid, "foreign-holder")
    assert result.failure is Failure.HOLDER
    assert "nvidia-cuda-mps-server" in result.detail
