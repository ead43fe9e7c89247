"""How the content of device memory is written and judged: by our kernels, or else by the host.

Both queue their work in order and say what they found when asked; the session decides which memory,
in which order, and whose units it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleet.core.errors import BackendFailed, DriverRefused, OutOfMemory
from fleet.devices.nvidia import cuda, kernels
from fleet.devices.nvidia.kernels import Found

SCRATCH_BYTES = 64 * 1024
"""Device memory of our own, which no pass covers: one frame, overwritten whole before a wipe."""
ROOM_FOR_RESULT = 1024
ON_CHIP_DONE = (
    "registers and the shared memory a block can have overwritten, best effort, not verified; not"
    " tensor memory (Blackwell), L1 beyond that shared memory, and other caches"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of what is allocated: its device address, its offset in order of allocation."""

    address: int
    offset: int
    length: int


class Access(Protocol):
    """How the content of memory is written and judged: by kernels, or by the host."""

    name: str
    """Added to the pattern's name."""
    how: str
    step_bytes: int
    """Largest piece that `fill` and `compare` take."""
    ahead: int
    """Pieces that a pass may queue before it asks how far they are."""

    meanwhile: Callable[[], None]
    """Called again and again while the device is waited for."""

    def fill(self, piece: Piece, nonce: bytes) -> None:
        """Queue the pattern."""

    def zero(self, piece: Piece) -> None:
        """Queue zeros."""

    def read(self, piece: Piece) -> None:
        """Queue reading and nothing else."""

    def begin(self) -> None:
        """Forget what was found."""

    def compare(self, piece: Piece, nonce: bytes | None) -> None:
        """Queue a comparison with the pattern, or with zero."""

    def found(self) -> Found:
        """What the comparisons since `begin` found."""


class KernelAccess:
    """Memory written and compared on the device, by our own kernels."""

    name = ""
    how = "device kernels"
    step_bytes = kernels.SLAB_LARGEST
    ahead = 480
    """With its marks, about what the driver queues before it makes a caller wait; 960 GiB of large
    pieces."""

    def __init__(self, context: cuda.Context) -> None:
        """Compile, and run every kernel once. A refusal of a code in `cuda.NO_KERNELS` is final."""
        self.meanwhile = _nothing
        self._context = context
        self._multiprocessors = context.device.multiprocessors
        context.load(kernels.text(), kernels.NAMES)
        self._host = context.pinned(kernels.RESULT_BYTES)
        self._event = context.event()
        scratch = Piece(context.allocate(SCRATCH_BYTES), 0, SCRATCH_BYTES - ROOM_FOR_RESULT)
        self._result = scratch.address + scratch.length
        context.exercise(scratch.address, self._host)
        nonce = bytes(16)
        self.begin()
        self.fill(scratch, nonce)
        self.compare(scratch, nonce)
        self.read(scratch)
        self.zero(scratch)
        self.compare(scratch, None)
        found = self.found()
        self._cannot = self._on_chip()  # now, for its first run may need memory that is taken later
        if found.count:
            raise BackendFailed(
                f"{found.count} words of a scratch buffer did not read back as written",
                remedy="reset the device, then scrub it",
            )

    def fill(self, piece: Piece, nonce: bytes) -> None:
        """Queue the pattern."""
        values = (piece.address, piece.length, piece.offset, *kernels.words(nonce))
        self._launch(kernels.FILL, piece, values)

    def zero(self, piece: Piece) -> None:
        """Queue zeros."""
        self._launch(kernels.ZERO, piece, (piece.address, piece.length))

    def read(self, piece: Piece) -> None:
        """Queue reading and nothing else: the yardstick of a pass."""
        values = (piece.address, piece.length, self._result, kernels.UNLIKELY)
        self._launch(kernels.READ, piece, values)

    def begin(self) -> None:
        """Forget what was found."""
        self._host[:] = kernels.empty_result()
        self._context.upload(self._result, self._host)
        self._finish()  # the buffer is needed again

    def compare(self, piece: Piece, nonce: bytes | None) -> None:
        """Queue a comparison with the pattern, or with zero."""
        place = (piece.address, piece.length, piece.offset)
        if nonce is None:
            self._launch(kernels.VERIFY_ZERO, piece, (*place, self._result))
        else:
            values = (*place, *kernels.words(nonce), self._result)
            self._launch(kernels.VERIFY, piece, values)

    def found(self) -> Found:
        """What the comparisons since `begin` found."""
        self._context.download(self._host, self._result)
        self._finish()
        return kernels.result(self._host)

    def overwrite_on_chip(self) -> str:
        """Zero shared memory and registers; what was done, in words for the certificate."""
        problem = self._cannot or self._on_chip()
        return f"not done: {problem}" if problem else ON_CHIP_DONE

    def _on_chip(self) -> str:
        """Run that kernel; why it cannot be run, or "". Raises only what ends the process."""
        size = self._context.device.shared_bytes
        shape = kernels.on_chip_shape(self._multiprocessors, size)
        values = (size, kernels.ON_CHIP_ROUNDS, self._result, kernels.UNLIKELY)
        try:
            self._context.allow_shared(kernels.ON_CHIP, size)
            self._context.launch(kernels.ON_CHIP, shape, values, kernels.WIDTHS[kernels.ON_CHIP])
            self._finish()
        except OutOfMemory as error:
            return error.detail
        except DriverRefused as error:
            if error.sticky:
                raise
            return error.detail
        return ""

    def _launch(self, name: str, piece: Piece, values: Sequence[int]) -> None:
        shape = kernels.shape(self._multiprocessors, piece.length)
        self._context.launch(name, shape, values, kernels.WIDTHS[name])

    def _finish(self) -> None:
        self._context.record(self._event)
        self._context.wait(self._event, self.meanwhile)


class HostAccess:
    """Memory written from the host and read back to it, for want of a compiler. Slow, and whole."""

    name = "/host-readback"
    how = "host read-back"
    step_bytes = 16 << 20
    ahead = 1

    def __init__(self, context: cuda.Context) -> None:
        """Takes two buffers of `step_bytes` in host memory."""
        from fleet.devices.wipe import device_pattern  # numpy: wanted here alone

        self.meanwhile = _nothing
        self._context = context
        self._pattern = device_pattern
        self._expected = context.pinned(self.step_bytes)
        self._seen = context.pinned(self.step_bytes)
        self._event = context.event()
        scratch = context.allocate(SCRATCH_BYTES)
        context.exercise(scratch, self._seen[:ROOM_FOR_RESULT])
        context.set_bytes(scratch, 0, SCRATCH_BYTES)
        self._finish()
        self._count = self._compared = 0
        self._places: list[int] = []

    def fill(self, piece: Piece, nonce: bytes) -> None:
        """Write the pattern; returns when it is written."""
        content = self._expected[: piece.length]
        self._pattern.write(content, piece.offset, kernels.words(nonce))
        self._context.upload(piece.address, content)
        self._finish()

    def zero(self, piece: Piece) -> None:
        """Queue zeros, by the driver's own fill."""
        self._context.set_bytes(piece.address, 0, piece.length)

    def read(self, piece: Piece) -> None:
        """Queue reading and nothing else."""
        self._context.download(self._seen[: piece.length], piece.address)

    def begin(self) -> None:
        """Forget what was found."""
        self._count, self._places, self._compared = 0, [], 0

    def compare(self, piece: Piece, nonce: bytes | None) -> None:
        """Read back and compare; returns when that is done."""
        seen, expected = self._seen[: piece.length], None
        self._context.download(seen, piece.address)
        if nonce is not None:
            expected = self._expected[: piece.length]
            self._pattern.write(expected, piece.offset, kernels.words(nonce))
        self._finish()
        most = kernels.LISTED - len(self._places)
        count, places = self._pattern.differences(seen, expected, most)
        self._count += count
        self._compared += seen.nbytes
        self._places += [piece.offset + place for place in places]

    def found(self) -> Found:
        """What the comparisons since `begin` found."""
        return Found(self._count, tuple(self._places), self._compared)

    def _finish(self) -> None:
        self._context.record(self._event)
        self._context.wait(self._event, self.meanwhile)


def _nothing() -> None:
    """Nobody else has anything to do meanwhile."""
