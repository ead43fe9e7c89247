"""Memory written and judged by kernels and by the host: the same bytes, the same verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DriverRefused
from fleet.devices.nvidia import cuda, kernels
from fleet.devices.nvidia.access import ON_CHIP_DONE, Access, HostAccess, KernelAccess, Piece
from tests.fleet.devices.nvidia.one_gpu import MIB, NONCE, OneGpu

SIZE = 48 * 1024


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


def both(context: cuda.Context) -> tuple[Access, Access, Piece]:
    """Kernels, the host, and memory to work on that begins far from zero."""
    return KernelAccess(context), HostAccess(context), Piece(context.allocate(SIZE), 5 << 30, SIZE)


def test_gpus_8_9_what_one_writes_the_other_verifies(context: cuda.Context) -> None:
    """gpus-8.9: host and kernels agree on the pattern, so a fallback proves as much."""
    device, host, piece = both(context)
    for writer, reader in ((device, host), (host, device)):
        writer.fill(piece, NONCE)
        reader.begin()
        reader.compare(piece, NONCE)
        assert reader.found() == kernels.Found(0, (), SIZE)
        reader.compare(piece, bytes(32))
        assert reader.found().count == SIZE // kernels.WORD
        writer.zero(piece)
        reader.begin()
        reader.compare(piece, None)
        assert reader.found() == kernels.Found(0, (), SIZE)


def test_both_name_the_same_places(context: cuda.Context) -> None:
    """gpus-8.7: few places are listed whole by either way, many are counted whole."""
    device, host, piece = both(context)
    device.fill(piece, NONCE)
    context.set_bytes(piece.address + 4096, 0, 16)
    context.set_bytes(piece.address + 40000, 0, 8)
    for access in (device, host):
        access.begin()
        access.compare(piece, NONCE)
        places = [piece.offset + place for place in (4096, 4104, 40000)]
        assert access.found() == kernels.Found(3, tuple(places), SIZE)
    context.set_bytes(piece.address, 0, 2048)
    for access in (device, host):
        access.begin()
        access.compare(piece, NONCE)
        found = access.found()
        assert (found.count, len(found.places)) == (256 + 1 + 2, kernels.LISTED)
        assert (found.places[0], found.compared) == (piece.offset, SIZE)


def test_memory_that_does_not_hold_a_scratch_buffer_opens_nothing(bench: OneGpu) -> None:
    """gpus-8.7: kernels prove themselves before memory is taken; if they cannot, nothing is."""
    bench.gpu.set(dirty="\n".join(str(offset) for offset in range(0, MIB, 512)))
    context = bench.context()
    with pytest.raises(BackendFailed, match="scratch buffer did not read back"):
        KernelAccess(context)
    context.close()


DONE = ON_CHIP_DONE


@pytest.mark.parametrize("code", [2, 1])
def test_b18_a_kernel_for_the_chip_that_cannot_run_only_is_not_run(
    bench: OneGpu, code: int
) -> None:
    """B18, gpus-10.27: it is tried before memory is taken, and without it the wipe goes on: it is
    best effort, and the certificate says that it was not done."""
    context = bench.context()
    bench.gpu.fault("cuFuncSetAttribute", f"times 1 return {code}")
    access = KernelAccess(context)
    assert access.overwrite_on_chip().startswith("not done: cuFuncSetAttribute")
    assert KernelAccess(context).overwrite_on_chip() == DONE
    context.close()


def test_b18_memory_that_runs_out_at_the_end_fails_no_wipe(bench: OneGpu) -> None:
    """B18: it ran once and has no room later: said, and not raised."""
    context = bench.context()
    access = KernelAccess(context)
    bench.gpu.fault("cuLaunchKernel", "times 1 return 2")
    assert access.overwrite_on_chip().startswith("not done: cuLaunchKernel: the device has no room")
    context.close()


def test_gpus_8_10_an_error_that_sticks_is_no_best_effort(bench: OneGpu) -> None:
    """gpus-8.10: after it nothing of this process can be believed."""
    context = bench.context()
    bench.gpu.fault("cuFuncSetAttribute", "times 1 return 700")
    with pytest.raises(DriverRefused, match="700"):
        KernelAccess(context)
    context.close()
