"""Wiping an NVIDIA GPU or MIG device end to end, with the real binding on the stand-in library."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.core.clock import SystemClock
from fleet.core.errors import BackendFailed, DeviceLost, DriverRefused, InputInvalid, OutOfMemory
from fleet.core.model import UnitId, UnitSpec, Uuid
from fleet.devices.base import Mismatch
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import cuda, kernels, nvml
from fleet.devices.nvidia.access import ON_CHIP_DONE, SCRATCH_BYTES, KernelAccess, Piece
from fleet.devices.nvidia.session import NvidiaSession, open_session
from fleet.devices.wipe import engine
from fleet.devices.wipe.result import Failure, WipeResult
from tests.drivers.building import libraries
from tests.fleet.devices.nvidia.one_gpu import (
    LARGEST,
    MIB,
    NONCE,
    SMALLEST,
    OneGpu,
    OneGpuBackend,
    silent,
)

HOLES = (
    (0, 34359738368),
    (34896609280, 17179869184),
    (52613349376, 17179869184),
    (70330089472, 8589934592),
    (79456894976, 4294967296),
    (84288733184, 536870912),
)
"""Offset and size of what is free in the allocator of B06, of 80 GiB in all."""
VISIBLE = (
    None,
    "",
    "3,1",
    "GPU-00000000-0000-4000-8000-0000000000a3,GPU-00000000-0000-4000-8000-0000000000a1",
    "GPU-00000000",
    "MIG-00000000-0000-5000-8000-00000000b001",
    "-1",
    "1,1",
)
"""CUDA_VISIBLE_DEVICES as B13 has it."""
SECRET = b"a tenant's secret"
KIB = 1024


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneGpu:
    """A machine with one GPU of 4 MiB."""
    return OneGpu(tmp_path, monkeypatch)


@pytest.fixture
def session(bench: OneGpu) -> Iterator[NvidiaSession]:
    """All of its memory, allocated."""
    opened = bench.session()
    yield opened
    opened.close()


def wiped(backend: OneGpuBackend, **changes: Any) -> WipeResult:
    """Run the engine over a back end."""
    return engine.run(backend.order(**changes), backend, SystemClock(), lambda *_: None)


def refused(bench: OneGpu, text: str, **changes: Any) -> None:
    """Opening is refused with `text`, and no byte of memory changes."""
    bench.gpu.set(scrub_on_free=0)
    bench.gpu.write_memory(0, SECRET)
    before = bench.gpu.memory()
    with pytest.raises(BackendFailed, match=text):
        open_session(bench.target(**changes))
    assert bench.gpu.memory() == before
    assert not (bench.gpu.path / "contexts").exists() or not any(
        (bench.gpu.path / "contexts").iterdir()
    )


# --- a whole wipe -----------------------------------------------------------


def test_gpus_8_3_a_clean_idle_gpu_is_wiped(bench: OneGpu) -> None:
    """gpus-8.3: chunks from large to small until the smallest fails, everything verified, nothing
    left of a tenant (by our doing: the driver's scrubber is off), and everything given back."""
    bench.gpu.set(scrub_on_free=0)
    bench.gpu.write_memory(MIB, SECRET * 100)
    backend = OneGpuBackend(bench)
    result = wiped(backend)
    assert result.failure is None, result.detail
    assert result.verified
    assert (result.self_test_passed, result.pattern) == (True, kernels.NAME)
    assert [done.name for done in result.passes] == ["fill", "verify", "zero", "verify-zero"]
    coverage = result.coverage
    assert (coverage.total, coverage.reserved) == (4 * MIB, 64 * KIB)
    assert coverage.residual == 64 * KIB + SCRATCH_BYTES
    assert bench.gpu.memory()[coverage.residual :] == bytes(4 * MIB - coverage.residual)
    assert (bench.gpu.path / "allocations").read_bytes() == b""


def test_gpus_8_4_memory_of_another_client_is_a_shortfall(bench: OneGpu) -> None:
    """gpus-8.4: what somebody else holds is not covered, is not touched, and fails the wipe with
    the bytes named."""
    bench.gpu.write_memory(MIB, SECRET)
    bench.hold((MIB, MIB))
    result = wiped(OneGpuBackend(bench))
    assert result.failure is Failure.COVERAGE
    assert result.coverage.residual >= MIB
    assert str(result.coverage.residual) in result.detail
    assert bench.gpu.memory()[MIB : MIB + len(SECRET)] == SECRET


def test_gpus_8_4_a_memory_limit_is_a_shortfall(bench: OneGpu) -> None:
    """gpus-8.4: a limit on what one process gets leaves the rest uncovered."""
    bench.gpu.set(allocation_limit=2 * MIB)
    result = wiped(OneGpuBackend(bench))
    assert result.failure is Failure.COVERAGE
    assert result.coverage.covered <= 2 * MIB


def test_gpus_8_5_sizes_are_halved_and_the_end_is_no_error(bench: OneGpu) -> None:
    """gpus-8.5: a size that fails is halved, and the smallest that fails ends the loop."""
    opened = open_session(bench.target())
    coverage = opened.allocate(largest_bytes=3 * MIB, smallest_bytes=SMALLEST)
    sizes = [chunk.length for chunk in opened._chunks]
    opened.close()
    assert sizes[0] == 3 * MIB
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= SMALLEST
    assert coverage.covered == sum(sizes)


def test_gpus_8_6_free_memory_that_cannot_be_had_ends_too(bench: OneGpu) -> None:
    """gpus-8.6: holes too small for any chunk are free and stay so; coverage is what is judged."""
    bench.hold(*((start, 24 * KIB) for start in range(0, 3 * MIB, 64 * KIB)))
    result = wiped(OneGpuBackend(bench))
    assert result.failure is Failure.COVERAGE
    assert MIB // 2 < result.coverage.covered < MIB


def test_b06_every_hole_is_wiped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B06: six holes in memory of 80 GiB (here scaled down), a canary in each: all gone, though the
    first request fails by accident; what is outside of every hole is untouched."""
    scale = 1 << 13
    holes = [(offset // scale, size // scale) for offset, size in HOLES]
    total = (80 << 30) // scale
    bench = OneGpu(tmp_path, monkeypatch, total=total, reserved=0)
    taken, last = [], 0
    for offset, size in [*holes, (total, 0)]:
        if offset > last:
            taken.append((last, offset - last))
        last = offset + size
    bench.hold(*taken)
    for offset, size in holes:
        bench.gpu.write_memory(offset, SECRET)
        bench.gpu.write_memory(offset + size - len(SECRET), SECRET)
    for offset, size in taken:
        bench.gpu.write_memory(offset + size // 2, b"another tenant")
    backend = OneGpuBackend(bench)
    bench.gpu.set(context_bytes=0, scrub_on_free=0)
    bench.gpu.fault("cuMemAlloc", "after 3 times 1 return 2")
    result = wiped(backend, coverage_floor=0.5)
    assert result.failure is None, result.detail
    assert result.coverage.residual >= sum(size for _, size in taken)
    assert SECRET not in bench.gpu.memory()
    assert bench.gpu.memory().count(b"another tenant") == len(taken)


# --- what is wrong is found ---------------------------------------------------


def test_gpus_8_7_one_dirty_word_fails_the_wipe(bench: OneGpu) -> None:
    """gpus-8.7, B06: all calls succeed and one bit is wrong: failed, with the word's place."""
    opened = bench.session()
    opened.fill(NONCE, silent)
    first = bench.gpu.memory().index(struct.pack("<2I", *kernels.words(NONCE)[:2]))
    opened.close()
    bench.gpu.set(dirty=2 * MIB + 3)
    result = wiped(OneGpuBackend(bench))
    assert result.failure is Failure.MISMATCH
    assert not result.verified
    unit = UnitId(f"{bench.gpu.uuid}/all")
    assert result.mismatches == (Mismatch(unit, 2 * MIB - first, 8),)


def test_many_dirty_words_add_up(session: NvidiaSession) -> None:
    """Neighbouring words are one stretch; more places than are listed still count, byte by byte."""
    session.fill(NONCE, silent)
    base = session._chunks[0].address
    session._moved(lambda: session._context.set_bytes(base + 4096, 0, 32))
    unit = UnitId(session._target.units[0].id)
    assert session.verify(NONCE, silent) == [Mismatch(unit, 4096, 32)]
    session._moved(lambda: session._context.set_bytes(base + 65536, 0, 8 * KIB))
    found = session.verify(NONCE, silent)
    assert sum(each.length_bytes for each in found) == 32 + 8 * KIB
    assert found[0].offset_bytes == 4096


def test_mismatches_are_named_by_unit(bench: OneGpu) -> None:
    """What was allocated is laid out over the units in order, and no stretch crosses a border."""
    units = tuple(UnitSpec(UnitId(f"{bench.gpu.uuid}/m{k}"), MIB, k * MIB) for k in range(4))
    opened = bench.session(units=units)
    opened.fill(NONCE, silent)
    (piece,) = opened._pieces((MIB - 16, 32))
    opened._moved(lambda: opened._context.set_bytes(piece.address, 0, 32))
    found = opened.verify(NONCE, silent)
    opened.close()
    assert found == [Mismatch(units[0].id, MIB - 16, 16), Mismatch(units[1].id, 0, 16)]


def test_a_stretch_is_compared_to_the_word(session: NvidiaSession) -> None:
    """`within` knows words, though kernels compare vectors; outside of memory there is nothing."""
    session.fill(NONCE, silent)
    for word in (0, 1, 6, 7):
        put_back = session.disturb(word * 8)
        for start in range(0, 64, 8):
            for size in range(8, 64 - start + 8, 8):
                found = session.verify(NONCE, silent, within=(start, size))
                assert bool(found) is (start <= word * 8 < start + size), (word, start, size)
        put_back()
    assert session.verify(NONCE, silent) == []
    with pytest.raises(InputInvalid):
        session.verify(NONCE, silent, within=(session.covered, 8))


def test_gpus_8_8_a_blind_verifier_fails_closed(bench: OneGpu) -> None:
    """gpus-8.8: a comparison that finds nothing does not find the seeded word either."""

    class Unseeing(KernelAccess):
        def compare(self, piece: Piece, nonce: bytes | None) -> None:
            """Looks at nothing."""

    class Blind(OneGpuBackend):
        def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> NvidiaSession:
            opened = super().session(accelerator, units)
            opened._access = Unseeing(opened._context)
            return opened

    result = wiped(Blind(bench))
    assert result.failure is Failure.VERIFIER
    assert not result.self_test_passed


def skipping(skips: Callable[[Piece, bytes | None], bool]) -> type[KernelAccess]:
    """Kernels that leave out the pieces that `skips` names."""

    class Skipping(KernelAccess):
        def compare(self, piece: Piece, nonce: bytes | None) -> None:
            if not skips(piece, nonce):
                super().compare(piece, nonce)

    return Skipping


@pytest.mark.parametrize("zero", [False, True])
def test_f85_a_slab_that_is_skipped_is_noticed(bench: OneGpu, *, zero: bool) -> None:
    """F85: a comparison that leaves one of many slabs out fails the wipe for its own count, whether
    or not the seeded word was in it, in either of the passes that compare."""

    class Lazy(OneGpuBackend):
        def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> NvidiaSession:
            opened = super().session(accelerator, units)
            kind = skipping(
                lambda piece, nonce: piece.offset == 2 * MIB and (nonce is None) is zero
            )
            opened._access = kind(opened._context)
            return opened

    result = wiped(Lazy(bench))
    assert result.failure is Failure.VERIFIER
    assert "the verifier looked at" in result.detail
    assert str(result.coverage.covered) in result.detail


def test_f85_memory_that_is_wrong_all_over_is_a_mismatch(bench: OneGpu) -> None:
    """F85: more wrong words than can be listed are memory's fault, though the seeded word may be
    among those not listed; how much differs is told whole."""
    offsets = range(MIB, MIB + 4096, 8)
    bench.gpu.set(dirty="\n".join(str(offset) for offset in offsets))
    result = wiped(OneGpuBackend(bench))
    assert result.failure is Failure.MISMATCH
    assert result.mismatched_bytes // kernels.WORD in (len(offsets), len(offsets) + 1)


@pytest.mark.parametrize("compiler", [True, False])
def test_f83_what_a_driver_sets_up_late_is_set_up_before_memory_is_taken(
    bench: OneGpu, *, compiler: bool
) -> None:
    """F83: a driver that takes memory for the first fill and the first copies still has it."""
    bench.gpu.set(lazy_bytes=65536)
    if not compiler:
        bench.gpu.fault("cuModuleLoadData", "return 221")
    result = wiped(OneGpuBackend(bench))
    assert result.failure is None, result.detail


def test_f86_threads_get_no_stack(bench: OneGpu) -> None:
    """F86: the driver is asked for a small stack before kernels are loaded: it keeps one for every
    thread that can run, which is memory no wipe reaches."""
    opened = open_session(bench.target())
    opened.close()
    assert int(bench.gpu.get("stack_bytes")) == cuda.STACK_BYTES


def test_f86_what_was_free_and_is_not_covered_is_told(bench: OneGpu) -> None:
    """F86: the coverage says how much was free before anything was taken."""
    opened = open_session(bench.target())
    coverage = opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
    opened.close()
    assert coverage.free == 4 * MIB - 64 * KIB - 64 * KIB
    assert coverage.free - coverage.covered == SCRATCH_BYTES


# --- without kernels ----------------------------------------------------------


@pytest.mark.parametrize("code", [221, 222])
def test_gpus_8_9_the_host_reads_back(bench: OneGpu, code: int) -> None:
    """gpus-8.9: without a compiler, or with one too old, the host does it, and that is recorded."""
    bench.gpu.write_memory(MIB, SECRET)
    bench.gpu.fault("cuModuleLoadData", f"return {code}")
    backend = OneGpuBackend(bench)
    result = wiped(backend)
    assert result.failure is None, result.detail
    assert result.pattern == "fleetscrub-vector-1/host-readback"
    extra = backend.opened[0].extra()
    assert extra["verify"] == "host read-back"
    assert extra["on_chip"].startswith("not done: ")
    assert SECRET not in bench.gpu.memory()


def test_gpus_8_9_dirty_words_are_found_by_the_host(bench: OneGpu) -> None:
    """gpus-8.9, gpus-8.7: the fallback reads every byte back as well."""
    bench.gpu.fault("cuModuleLoadData", "return 221")
    bench.gpu.set(dirty=2 * MIB + 1)
    result = wiped(OneGpuBackend(bench))
    assert (result.failure, result.mismatched_bytes) == (Failure.MISMATCH, 8)


def test_gpus_8_9_a_forbidden_fallback_fails_closed(bench: OneGpu) -> None:
    """gpus-8.9: where only kernels are allowed, their absence is a failure with a remedy."""
    bench.gpu.fault("cuModuleLoadData", "return 221")
    refused(bench, "not allowed", fallback=False)


def test_kernels_that_are_refused_otherwise_are_no_reason_for_the_host(bench: OneGpu) -> None:
    """gpus-8.9: only a missing or too old compiler leads to the fallback, no other failure does."""
    bench.gpu.fault("cuModuleLoadData", "return 218")
    refused(bench, "not understood")


# --- a device in trouble --------------------------------------------------------


@pytest.mark.parametrize("code", [214, 700, 702, 719])
def test_gpus_8_10_errors_come_with_the_end_of_work(bench: OneGpu, code: int) -> None:
    """gpus-8.10, gpus-8.11: queueing succeeded, the end did not: failed, nothing half believed, and
    the worker can still close and report."""
    bench.gpu.fault("cuEventQuery", f"after 12 times 1 return {code}")
    result = wiped(OneGpuBackend(bench))
    assert result.failure is Failure.BACKEND
    assert f"({code})" in result.detail
    assert ("ECC" in result.detail) is (code == 214)
    assert result.after is not None
    bench.gpu.heal("cuEventQuery")
    assert wiped(OneGpuBackend(bench)).verified


def test_gpus_8_12_a_lost_gpu_is_lost(bench: OneGpu) -> None:
    """gpus-8.12: CUDA's unexplained error is a lost device where the readings say so, and stays
    unexplained where they do not."""
    bench.gpu.fault("cuEventQuery", "after 12 return 999")
    result = wiped(OneGpuBackend(bench))
    assert result.failure is Failure.BACKEND

    class Leaving(OneGpuBackend):
        def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> NvidiaSession:
            opened = super().session(accelerator, units)
            bench.present = False
            return opened

    bench.gpu.fault("cuEventQuery", "after 12 return 999")
    assert wiped(Leaving(bench)).failure is Failure.LOST


def test_slow_memory_ends_the_pass_while_it_is_waited_for(bench: OneGpu) -> None:
    """gpus-8.14: whoever watches progress hears of a slow device between two ends of work, with
    the same figure, and can end the pass."""
    opened = bench.session()
    bench.gpu.set(bytes_per_s=MIB)
    told: list[int] = []

    def watch(done: int) -> None:
        told.append(done)
        if len(told) > 5:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        opened.fill(NONCE, watch)
    assert set(told) == {0}
    bench.gpu.set(bytes_per_s=None)
    opened._context._drain_s = 0.01
    opened.close()


def test_whoever_watches_a_pass_hears_of_no_other(bench: OneGpu, session: NvidiaSession) -> None:
    """While a comparison is prepared and its result fetched, its own watcher is the one told."""
    filled: list[int] = []
    session.fill(NONCE, filled.append)
    before = len(filled)
    bench.gpu.fault("cuEventQuery", "times 3 return 600")
    told: list[int] = []
    session.verify(NONCE, told.append)
    assert len(filled) == before
    assert told[:3] == [0, 0, 0]
    assert told == sorted(told)


def test_memory_slower_than_a_tenth_fails_the_wipe(bench: OneGpu) -> None:
    """A pass ten times slower than expected is a fault, found before the pass is over."""
    bench.gpu.set(bytes_per_s=16 * MIB)
    backend = OneGpuBackend(bench)
    result = wiped(backend, expected_bytes_per_s=1e9, slow_allowance_s=0.01)
    assert result.failure is Failure.SLOW


# --- what the host does meanwhile -------------------------------------------------


@pytest.fixture
def slow_driver(bench: OneGpu) -> Callable[[], None]:
    """A call of NVML that takes 20 ms."""
    ctypes.CDLL(str(libraries() / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    library = nvml.Library()
    bench.gpu.set(scrub_on_free=0)
    bench.host.fault("nvmlSystemGetDriverVersion", "sleep 0.02")
    return lambda: library.call("nvmlSystemGetDriverVersion")


def test_gpus_8_14_what_the_host_does_is_no_device_time(
    bench: OneGpu, slow_driver: Callable[[], None]
) -> None:
    """gpus-8.14: a pass over many small chunks takes the device as long when whoever watches it
    asks a slow driver each time as when he does not."""
    opened = open_session(bench.target())
    opened.allocate(largest_bytes=64 * KIB, smallest_bytes=SMALLEST)
    assert len(opened._chunks) > 50
    bench.gpu.set(bytes_per_s=64 * MIB)
    opened.zero(silent)
    alone = opened.device_seconds()
    began = time.monotonic()
    opened.zero(lambda _: slow_driver())
    took, watched = time.monotonic() - began, opened.device_seconds()
    opened.close()
    assert alone is not None
    assert watched is not None
    assert took > 50 * 0.02
    assert watched < alone + 0.5


def test_a_pass_of_more_than_can_be_queued_is_timed_in_parts(
    bench: OneGpu, slow_driver: Callable[[], None]
) -> None:
    """gpus-8.14: what is waited for between two lots is in no time either, and nothing is lost."""

    class Narrow(KernelAccess):
        ahead = 8

    opened = open_session(bench.target())
    opened._access = Narrow(opened._context)
    opened._events = opened._events[: Narrow.ahead]
    opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
    told: list[int] = []
    bench.gpu.set(bytes_per_s=64 * MIB)

    def watch(done: int) -> None:
        told.append(done)
        slow_driver()

    opened.fill(NONCE, watch)
    seconds = opened.device_seconds()
    assert seconds is not None
    assert opened.covered / (64 * MIB) * 0.9 < seconds < len(told) * 0.02
    assert told[-1] == opened.covered
    assert opened.verify(NONCE, silent) == []
    opened.close()


def test_gpus_8_23_readings_are_taken_while_memory_is_read(
    bench: OneGpu, slow_driver: Callable[[], None]
) -> None:
    """gpus-8.23: however long they take, the device is kept busy, and is idle afterwards."""
    reads: list[int] = []

    class Counting(KernelAccess):
        def read(self, piece: Piece) -> None:
            reads.append(piece.offset)
            super().read(piece)

    seen: list[int] = []

    def read() -> Readings:
        for _ in range(10):
            slow_driver()
            seen.append(len(reads))
        return bench.read()

    opened = open_session(bench.target(read=read))
    opened._access = Counting(opened._context)
    opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
    reads.clear()
    bench.gpu.set(bytes_per_s=64 * MIB)
    assert opened.readings().present is True
    assert seen[0] > 0
    assert seen[-1] > seen[0]
    assert len(set(reads)) > 1
    opened.close()


# --- which device ---------------------------------------------------------------


def test_b13_only_the_whole_uuid_opens_a_device(
    bench: OneGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13, gpus-8.31: whatever else is visible, by index, prefix or list, is refused unwritten."""
    for number in range(1, 4):
        bench.host.add_gpu(total=MIB, uuid=f"GPU-00000000-0000-4000-8000-0000000000a{number}")
    for text in VISIBLE:
        bench.see(text)
        refused(bench, "CUDA_VISIBLE_DEVICES is .* nothing was written")
    bench.see(bench.gpu.uuid)
    open_session(bench.target()).close()


def test_gpus_8_31_another_device_behind_the_name_is_refused(bench: OneGpu) -> None:
    """gpus-8.31, gpus-8.26: the device opened is asked for its UUID before the first write."""
    other = bench.host.add_gpu(total=MIB)
    bench.see("1")
    refused(bench, "instead of 1", visible="1")
    bench.see(bench.gpu.uuid[:12])
    refused(bench, "instead of GPU-", visible=bench.gpu.uuid[:12])
    bench.see(other.uuid)
    with pytest.raises(BackendFailed, match="should be"):
        open_session(bench.target())


def test_gpus_8_32_a_slice_is_wiped_and_its_neighbours_are_not(bench: OneGpu) -> None:
    """gpus-8.31, gpus-8.32: a MIG device is opened by its own UUID, covers its slice, and leaves
    all memory outside of it as it was."""
    bench.gpu.set(mig_current=1, reserved=256 * KIB)
    _, uuid = bench.gpu.instance("2g", 2)
    slices = 4 * MIB // 8
    canary = bytes(range(1, 256)) * (4 * MIB // 255)
    bench.gpu.write_memory(0, canary)
    bench.see(uuid)
    units = tuple(UnitSpec(UnitId(f"{bench.gpu.uuid}/m{k}"), slices, k * slices) for k in (2, 3))
    reserved = 64 * KIB
    backend = OneGpuBackend(
        bench, visible=uuid, units=units, total_bytes=2 * slices, reserved_bytes=reserved
    )
    result = wiped(backend, coverage_floor=0.8)
    assert result.failure is None, result.detail
    assert result.coverage.total == 2 * slices
    memory = bench.gpu.memory()
    assert memory[: 2 * slices] == canary[: 2 * slices]
    assert memory[4 * slices : len(canary)] == canary[4 * slices :]
    assert memory[2 * slices : 4 * slices - reserved].strip(b"\0") == b""


def test_gpus_8_33_mig_without_an_instance_cannot_be_wiped(bench: OneGpu) -> None:
    """gpus-8.33: partitioned and no partition: no device, said as that, and not "0 bytes, ok"."""
    bench.gpu.set(mig_current=1)
    refused(bench, "no device is visible")


def test_gpus_8_34_an_mps_daemon_does_not_take_the_wiper_in(bench: OneGpu) -> None:
    """gpus-8.34: a daemon at the usual place limits whoever attaches; the wiper refuses to start
    where it could, and covers everything where it cannot."""
    daemon = bench.host.hardware_root / "tmp" / "nvidia-mps"
    daemon.mkdir(parents=True)
    (daemon / "control").touch()
    (daemon / "memory_limit").write_text(f"{MIB}\n")
    assert wiped(OneGpuBackend(bench)).verified
    bench.pipes(None)
    refused(bench, "MPS daemon could take this process in")
    bench.pipes(daemon)
    refused(bench, "MPS daemon could take this process in")
    context = bench.context()  # what would have happened: a client, limited
    with pytest.raises(OutOfMemory):
        context.allocate(2 * MIB)
    context.close()


# --- what the certificate says ----------------------------------------------------


def test_b18_the_on_chip_step_is_named_for_what_it_is(bench: OneGpu) -> None:
    """B18: shared memory and registers are overwritten and nobody can read that back: the record
    says "best effort", or that it was not done, and never that they are clean."""
    backend = OneGpuBackend(bench)
    assert wiped(backend).verified
    extra = backend.opened[0].extra()
    assert extra["on_chip"] == ON_CHIP_DONE
    assert extra["verify"] == "device kernels"
    assert extra["chunks"] > 1
    assert 0 < extra["context_bytes"] <= 64 * KIB
    bench.gpu.fault("cuFuncSetAttribute", "return 1")
    backend = OneGpuBackend(bench)
    assert wiped(backend).verified
    assert backend.opened[0].extra()["on_chip"].startswith("not done: cuFuncSetAttribute")


def test_the_yardsticks_move_all_memory(session: NvidiaSession) -> None:
    """Plain set and plain read go over everything and leave zeros."""
    session.fill(NONCE, silent)
    told: list[int] = []
    session.plain_read(told.append)
    assert told[-1] == session.covered
    assert session.verify(NONCE, silent) == []
    session.plain_set(told.append)
    assert session.verify_zero(silent) == []


def test_after_a_sticky_error_the_session_closes(bench: OneGpu) -> None:
    """gpus-8.11: closing after it does not raise, twice neither, and leaves nothing behind."""
    opened = bench.session()
    bench.gpu.fault("cuLaunchKernel", "times 1 return 700")
    with pytest.raises(DriverRefused):
        opened.zero(silent)
    opened.close()
    opened.close()
    assert (bench.gpu.path / "allocations").read_bytes() == b""


def test_a_lost_device_is_told_while_memory_is_taken(bench: OneGpu) -> None:
    """gpus-8.12: also outside of the passes."""
    opened = open_session(bench.target())
    bench.gpu.set(lost=1)
    bench.present = False
    with pytest.raises(DeviceLost):
        opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
    opened.close()
