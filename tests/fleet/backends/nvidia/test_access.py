"""Memory written and judged by kernels and by the host: the same bytes, the same verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.backends.nvidia import cuda, kernels
from fleet.backends.nvidia.access import Access, HostAccess, KernelAccess, Piece
from fleet.errors import BackendFailed
from tests.fleet.backends.nvidia.one_gpu import MIB, NONCE, OneGpu

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
        assert reader.found() == (0, [])
        reader.compare(piece, bytes(32))
        assert reader.found()[0] == SIZE // kernels.WORD
        writer.zero(piece)
        reader.begin()
        reader.compare(piece, None)
        assert reader.found() == (0, [])


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
        assert access.found() == (3, places)
    context.set_bytes(piece.address, 0, 2048)
    for access in (device, host):
        access.begin()
        access.compare(piece, NONCE)
        count, places = access.found()
        assert (count, len(places), places[0]) == (256 + 1 + 2, kernels.LISTED, piece.offset)


def test_memory_that_does_not_hold_a_scratch_buffer_opens_nothing(bench: OneGpu) -> None:
    """gpus-8.7: kernels prove themselves before memory is taken; if they cannot, nothing is."""
    bench.gpu.set(dirty="\n".join(str(offset) for offset in range(0, MIB, 512)))
    context = bench.context()
    with pytest.raises(BackendFailed, match="scratch buffer did not read back"):
        KernelAccess(context)
    context.close()
