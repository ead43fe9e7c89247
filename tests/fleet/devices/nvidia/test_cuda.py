"""The CUDA driver as errors of ours and bounded waits, on the stand-in library."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.devices.nvidia import cuda
from tests.fleet.devices.nvidia.one_gpu import MIB, OneGpu

ROOT = Path(__file__).parents[4]
WORDS = {
    34: "stub",
    46: "compute mode",
    214: "ECC",
    218: "not understood",
    220: "NVLink",
    221: "ptxjitcompiler",
    222: "newer driver",
    226: "contained",
    700: "the worker ends",
    702: "the worker ends",
    **dict.fromkeys((709, 710, *range(714, 720), 721), "the worker ends"),
    802: "fabric manager",
    803: "reload the module",
    804: "reload the module",
    805: "MPS",
    806: "MPS",
    807: "MPS",
    808: "MPS",
    809: "MPS",
    810: "MPS",
    911: "the worker ends",
    999: "kernel log",
}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneGpu:
    """A machine with one GPU."""
    return OneGpu(tmp_path, monkeypatch)


@pytest.fixture
def context(bench: OneGpu) -> Iterator[cuda.Context]:
    """A context on it."""
    opened = bench.context()
    yield opened
    opened.close()


def test_gpus_8_1_no_library_is_a_driver_absent() -> None:
    """gpus-8.1: without libcuda all modules load, and the first call says that the driver is
    absent, which is neither "no devices" nor a failed call."""
    program = (
        "from fleet.devices.nvidia import cuda; from fleet.core.errors import DriverAbsent\n"
        "driver = cuda.Driver()\ndriver.preload()\ntry: driver.only_device()\n"
        "except DriverAbsent as error: raise SystemExit(error.detail)"
    )
    clean = {name: text for name, text in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=clean, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (1, "libcuda.so.1 is not installed")


@pytest.mark.parametrize(("code", "word"), WORDS.items())
def test_every_code_has_its_meaning_and_remedy(bench: OneGpu, code: int, word: str) -> None:
    """gpus-8.11: a code is told with what to do, and the ones after which the process is done for
    are marked so."""
    context = bench.context()
    bench.gpu.fault("cuMemGetInfo", f"return {code}")
    with pytest.raises(errors.DriverRefused) as caught:
        context.free_bytes()
    context.close()
    assert caught.value.code == code
    assert caught.value.sticky is (code in cuda.STICKY)
    assert word in str(caught.value)
    assert str(code) in caught.value.detail


def test_f84_a_system_that_is_not_ready_has_two_causes() -> None:
    """F84: error 802 names the fabric manager, and the ready state of confidential computing."""
    remedy = cuda.refused("cuInit", 802).remedy
    assert "fabric manager" in remedy
    assert "`nvidia-smi conf-compute -srs 1`" in remedy


def test_f88_errors_that_end_the_process_are_known_as_such(bench: OneGpu) -> None:
    """F88: after a trap of a kernel, an assertion, a lost context or a leak of tensor memory every
    further call fails, and a new process is what helps."""
    for code in (709, 710, 714, 715, 716, 717, 718, 721):
        with contextlib.closing(bench.context()) as context:
            bench.gpu.fault("cuMemGetInfo", f"times 1 return {code}")
            for _ in range(2):
                with pytest.raises(errors.DriverRefused, match=str(code)) as caught:
                    context.free_bytes()
                assert caught.value.sticky
                assert (
                    "a new process" in caught.value.remedy or "worker ends" in caught.value.remedy
                )


def test_a_code_newer_than_the_binding_is_still_an_error(
    bench: OneGpu, context: cuda.Context
) -> None:
    """A number nobody knows is a refusal like an unexplained one, never a success."""
    bench.gpu.fault("cuMemGetInfo", "return 98765")
    with pytest.raises(errors.DriverRefused, match="98765"):
        context.free_bytes()


def test_out_of_memory_is_a_type_of_its_own(context: cuda.Context) -> None:
    """gpus-8.5: no room of one size is what the allocator goes on from."""
    with pytest.raises(errors.OutOfMemory):
        context.allocate(64 * MIB)
    assert context.allocate(MIB)


def test_after_a_sticky_error_nothing_works_and_closing_does(bench: OneGpu) -> None:
    """gpus-8.11: every further call fails, closing does not raise, and is done once."""
    context = bench.context()
    bench.gpu.fault("cuMemGetInfo", "times 1 return 719")
    for _ in range(2):
        with pytest.raises(errors.DriverRefused) as caught:
            context.free_bytes()
        assert caught.value.sticky
    with pytest.raises(errors.DriverRefused):
        context.allocate(MIB)
    context.close()
    context.close()
    assert list((bench.gpu.path / "contexts").iterdir()) == []


def test_waiting_asks_and_lets_others_work(bench: OneGpu, context: cuda.Context) -> None:
    """gpus-8.14: a wait is a series of questions, between which a deadline can be looked at."""
    bench.gpu.set(bytes_per_s=20 * MIB)
    event = context.event()
    context.set_bytes(context.allocate(MIB), 0, MIB)
    context.record(event)
    asked: list[int] = []
    context.wait(event, lambda: asked.append(1))
    assert len(asked) > 3


def test_a_wait_ends_when_the_one_who_watches_says_so(bench: OneGpu, context: cuda.Context) -> None:
    """gpus-8.14: work that never ends is left by an exception out of the wait."""
    event = context.event()
    context.record(event)
    bench.gpu.fault("cuEventQuery", f"return {cuda.NOT_READY}")

    def enough() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        context.wait(event, enough)


def test_closing_does_not_wait_for_work_that_never_ends(bench: OneGpu) -> None:
    """gpus-8.14: memory that a kernel still uses is left to the end of the process, in bounded
    time: to free it would wait inside the driver."""
    context = bench.context()
    context.allocate(MIB)
    bench.gpu.fault("cuStreamQuery", f"return {cuda.NOT_READY}")
    context.close()
    assert len(list((bench.gpu.path / "contexts").iterdir())) == 1
    bench.gpu.heal("cuStreamQuery")
    cuda.Driver().call("cuDevicePrimaryCtxRelease", context.device.number)


def test_device_time_comes_from_the_device(bench: OneGpu, context: cuda.Context) -> None:
    """The time between two events is that of the memory, which a wait outlasts."""
    bench.gpu.set(bytes_per_s=100 * MIB)
    address = context.allocate(MIB)
    start, end = context.event(timed=True), context.event(timed=True)
    began = time.monotonic()
    context.record(start)
    context.set_bytes(address, 0, MIB)
    context.record(end)
    context.wait(end, lambda: None)
    assert 0.00999 < context.elapsed_s(start, end) <= time.monotonic() - began


@pytest.mark.parametrize("mode", [2, 3])
def test_compute_mode_keeps_us_out(bench: OneGpu, mode: int) -> None:
    """gpus-8.35: a prohibited device, or an exclusive one that somebody has, is named as such."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    start = stat.rpartition(")")[2].split()[19]
    bench.gpu.set(compute_mode=mode)
    (bench.gpu.path / "contexts").mkdir(exist_ok=True)
    other = bench.gpu.path / "contexts" / f"{os.getppid()}-0"
    other.write_text(f"{start} {0xFFFFFFFF} {0xFFFFFFFF}\n")
    with pytest.raises(errors.DriverRefused, match="exclusive or prohibited"):
        bench.context()


def test_two_visible_devices_are_refused(bench: OneGpu) -> None:
    """gpus-8.31, B13: without a choice, or with two, no device is opened."""
    bench.host.add_gpu(total=MIB)
    for text in (None, "0,1"):
        bench.see(text)
        with pytest.raises(errors.BackendFailed, match="sees 2 devices"):
            cuda.Driver().only_device()
