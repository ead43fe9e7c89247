"""Wiping the memory of one NVIDIA GPU or MIG device: the memory session of a worker.

Before the first write it is certain that this process sees exactly the device it was started for
and that no MPS daemon stands in between. Kernels are compiled and have run once before memory is
taken, for that needs memory itself. Then all there is is taken. A pass is queued whole before
anybody hears of its progress: what the host does meanwhile (it reads lists and counters, for
seconds on a sick driver) never keeps the device waiting, and is no part of the time measured. The
end of each slab is asked for, so that whoever watches progress can end a pass.

Addresses on a device are virtual: what is allocated has an order, but no known place. A mismatch
is therefore named by its offset in that order, and by the unit into which that offset falls when
the units are laid out one after the other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from fleet.core.errors import BackendFailed, DeviceLost, DriverRefused, FleetError, InputInvalid
from fleet.core.model import UnitId, UnitSpec, Uuid
from fleet.devices.base import Coverage, Mismatch, Progress
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import cuda, kernels
from fleet.devices.nvidia.access import Access, HostAccess, KernelAccess, Piece
from fleet.devices.nvidia.cuda import POLL_S
from fleet.devices.nvidia.kernels import Found
from fleet.devices.wipe.allocation import take_all

# Readings taken while the device works: link speed, clocks and limits show only then.
#
# A device that waits for the host is idle within microseconds, and reading counters takes the host
# far longer. So whoever reads does that in a thread of its own, while this one keeps work queued.

LIMIT_S = 30.0
"""Time, s, that readings under load may take: a driver that needs longer does not answer."""


def read_under(
    read: Callable[[], Readings], traffic: Iterator[None], *, limit_s: float = LIMIT_S
) -> Readings:
    """What `read` gives while `traffic`, whose steps keep the device busy, goes on.

    The first step comes before the reading. Raises what `read` or a step raises, and
    `BackendFailed` after `limit_s`; in every other case nothing reads any more on return.
    """
    answer: Future[Readings] = Future()

    def reading() -> None:
        try:
            answer.set_result(read())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
            answer.set_exception(error)

    next(traffic, None)
    limit = time.monotonic() + limit_s
    reader = threading.Thread(target=reading, name="readings under load", daemon=True)
    reader.start()
    try:
        while not answer.done():
            if time.monotonic() > limit:
                break
            next(traffic, None)
            time.sleep(POLL_S)
    finally:
        reader.join(max(limit - time.monotonic(), 0.0))
    if not answer.done():
        raise BackendFailed(
            f"readings under load did not come within {limit_s:g} s",
            remedy="check the kernel log for the driver; reset the device or reboot",
        )
    return answer.result()


VISIBILITY = "CUDA_VISIBLE_DEVICES"
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
SLABS_PER_PASS = 16
AHEAD = 16
"""Slabs queued ahead while readings are taken: enough for a thread that waits for its turn."""
ALIGNMENT = 512
"""Chunks begin and end at multiples of this many bytes."""
WORD = kernels.WORD
VECTOR = kernels.VECTOR
UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Target:
    """What a worker is to wipe. Sizes are bytes, as NVML has them for the GPU or the MIG device."""

    visible: str
    """UUID as CUDA takes it: ``GPU-...`` or ``MIG-...``."""
    accelerator: Uuid
    units: tuple[UnitSpec, ...]
    total_bytes: int
    reserved_bytes: int
    read: Callable[[], Readings]
    """Health readings now."""
    fallback: bool = True
    """Whether memory may be written and read back by the host where kernels cannot be compiled."""


class NvidiaSession:
    """All memory of one GPU or MIG device (see `MemorySession`). Made by `open_session`."""

    def __init__(self, target: Target, context: cuda.Context) -> None:
        self._target = target
        self._context = context
        self._free = free = context.free_bytes()
        self._compared_bytes = 0
        self._taken_before = max(target.total_bytes - target.reserved_bytes - free, 0)
        self._access = _access(context, fallback=target.fallback)
        self._events = [context.event() for _ in range(self._access.ahead)]
        self._marks = context.event(timed=True), context.event(timed=True)
        self._seconds: float | None = None
        self._chunks: list[Piece] = []
        self._word = context.pinned(WORD)
        self._on_chip = "not done"
        self.pattern_name = kernels.NAME + self._access.name

    @property
    def covered(self) -> int:
        """Bytes allocated."""
        return sum(chunk.length for chunk in self._chunks)

    def allocate(self, *, largest_bytes: int, smallest_bytes: int) -> Coverage:
        """Take all chunks there are, from large to small."""
        offset = self.covered

        def take(size: int) -> Piece:
            nonlocal offset
            length = max(size // ALIGNMENT, 1) * ALIGNMENT
            piece = Piece(self._context.allocate(length), offset, length)
            offset += length
            return piece

        with self._told_if_lost():
            self._chunks += take_all(
                take, largest_bytes=largest_bytes, smallest_bytes=smallest_bytes
            )
        return Coverage(
            total=self._target.total_bytes,
            reserved=self._target.reserved_bytes,
            covered=self.covered,
            free=self._free,
        )

    def fill(self, nonce: bytes, progress: Progress) -> None:
        """Write the pattern."""
        self._pass(lambda piece: self._access.fill(piece, nonce), progress)

    def verify(
        self, nonce: bytes, progress: Progress, *, within: tuple[int, int] | None = None
    ) -> Sequence[Mismatch]:
        """Compare memory with the pattern, all of it or the stretch `within`."""
        return self._compared(nonce, progress, within or (0, self.covered))

    def compared_bytes(self) -> int:
        """Bytes that the last `verify` or `verify_zero` looked at, as it counted them itself."""
        return self._compared_bytes

    def zero(self, progress: Progress) -> None:
        """Write zeros, then overwrite what the multiprocessors keep."""
        self._pass(self._access.zero, progress)
        with self._told_if_lost():
            if isinstance(self._access, KernelAccess):
                self._on_chip = self._access.overwrite_on_chip()
            else:
                self._on_chip = "not done: kernels cannot be compiled on this node"

    def verify_zero(self, progress: Progress) -> Sequence[Mismatch]:
        """Compare memory with zero."""
        return self._compared(None, progress, (0, self.covered))

    def plain_set(self, progress: Progress) -> None:
        """Zero everything by the driver's own fill: the yardstick of the passes that write."""
        self._pass(lambda piece: self._context.set_bytes(piece.address, 0, piece.length), progress)

    def plain_read(self, progress: Progress) -> None:
        """Read everything and judge nothing: the yardstick of the passes that compare.

        Without kernels there is none, and this returns at once.
        """
        if isinstance(self._access, KernelAccess):
            self._pass(self._access.read, progress)

    def disturb(self, offset_bytes: int) -> Callable[[], None]:
        """Flip all bits of the word at an offset into what was allocated."""
        (place,) = self._pieces((offset_bytes, WORD))
        host = self._word
        self._moved(lambda: self._context.download(host, place.address))
        before = bytes(host)
        host[:] = bytes(byte ^ 0xFF for byte in before)
        self._moved(lambda: self._context.upload(place.address, host))

        def put_back() -> None:
            host[:] = before
            self._moved(lambda: self._context.upload(place.address, host))

        return put_back

    def device_seconds(self) -> float | None:
        """Time, s, of the last pass on the device; None where the host moved the memory."""
        return self._seconds

    def readings(self) -> Readings:
        """Readings while memory traffic runs: everything is read again and again meanwhile."""
        with self._told_if_lost():
            found = read_under(self._target.read, self._traffic())
            self._settle()
            return found

    def extra(self) -> dict[str, Any]:
        """What the certificate says beyond the figures of the passes."""
        return {
            "on_chip": self._on_chip,
            "verify": self._access.how,
            "cuda": self._context.device.driver,
            "chunks": len(self._chunks),
            "context_bytes": self._taken_before,
            "visible": self._target.visible,
        }

    def close(self) -> None:
        """Free everything and let go of the device; again: nothing."""
        self._context.close()

    # --- passes -------------------------------------------------------------

    def _pass(
        self,
        queue: Callable[[Piece], None],
        progress: Progress,
        within: tuple[int, int] | None = None,
    ) -> None:
        """Queue work on piece after piece; `progress` hears of each end, and while it waits.

        Pieces come in lots, nearly always one (`Access.ahead`). A lot is queued and marked whole
        before anybody hears of it, and what the host does between two lots is in no time.
        """
        slabs, done, seconds = self._slabs(within), 0, 0.0
        start, end = self._marks

        def meanwhile() -> None:
            progress(done)

        self._access.meanwhile = meanwhile
        self._seconds = None
        with self._told_if_lost():
            while lot := list(islice(slabs, len(self._events))):
                self._context.record(start)
                for piece, event in zip(lot, self._events, strict=False):
                    queue(piece)
                    self._context.record(event)
                self._context.record(end)
                for piece, event in zip(lot, self._events, strict=False):
                    self._context.wait(event, meanwhile)
                    done += piece.length
                    progress(done)
                self._context.wait(end, meanwhile)
                if isinstance(self._access, KernelAccess):
                    seconds += self._context.elapsed_s(start, end)
        self._seconds = seconds or None

    def _traffic(self) -> Iterator[None]:
        """Read everything again and again, a step at a time; a step never waits for the device."""
        pending: deque[Any] = deque()
        free = deque(self._events[:AHEAD])
        for piece in cycle(tuple(self._slabs(None))):
            while not free:
                if self._context.finished(pending[0]):
                    free.append(pending.popleft())
                yield
            self._access.read(piece)
            pending.append(free.popleft())
            self._context.record(pending[-1])

    def _compared(
        self, nonce: bytes | None, progress: Progress, within: tuple[int, int]
    ) -> list[Mismatch]:
        """Mismatches `within`. Where a stretch begins or ends inside of a vector, that vector is
        compared whole, and what is found outside of the stretch is not the question."""
        low, high = within[0], within[0] + within[1]
        count = self._compared_bytes = 0
        places: list[int] = []
        for edge in sorted({end // VECTOR * VECTOR for end in (low, high) if end % VECTOR}):
            seen = self._compare(nonce, _ignored, (edge, VECTOR))
            mine = [place for place in seen.places if low <= place < high]
            count, places = count + len(mine), places + mine
        inner_low, inner_high = -(-low // VECTOR) * VECTOR, high // VECTOR * VECTOR
        if inner_low < inner_high:
            seen = self._compare(nonce, progress, (inner_low, inner_high - inner_low))
            self._compared_bytes = seen.compared
            count, places = count + seen.count, [*places, *seen.places]
        return self._mismatches(count, sorted(places))

    def _compare(self, nonce: bytes | None, progress: Progress, within: tuple[int, int]) -> Found:
        self._access.meanwhile = lambda: progress(0)
        with self._told_if_lost():
            self._access.begin()
        self._pass(lambda piece: self._access.compare(piece, nonce), progress, within)
        with self._told_if_lost():
            return self._access.found()

    def _pieces(self, within: tuple[int, int] | None = None) -> Iterator[Piece]:
        """What is allocated, or the part of it that lies `within` (offset, length)."""
        low, length = within or (0, self.covered)
        high = low + length
        if low < 0 or high > self.covered:
            raise InputInvalid(f"{length} B at {low} lie outside of {self.covered} B allocated")
        for chunk in self._chunks:
            start, end = max(low, chunk.offset), min(high, chunk.offset + chunk.length)
            if start < end:
                yield Piece(chunk.address + start - chunk.offset, start, end - start)

    def _slabs(self, within: tuple[int, int] | None) -> Iterator[Piece]:
        """Pieces small enough to report progress between them."""
        share = max(self.covered // SLABS_PER_PASS // kernels.TILE, 1) * kernels.TILE
        slab = min(share, self._access.step_bytes)
        for piece in self._pieces(within):
            for start in range(0, piece.length, slab):
                length = min(slab, piece.length - start)
                yield Piece(piece.address + start, piece.offset + start, length)

    # --- what was found -----------------------------------------------------

    def _mismatches(self, count: int, places: Sequence[int]) -> list[Mismatch]:
        """Stretches of neighbouring words; words that were counted and not located are one more
        stretch at the lowest place, so that the lengths add up to all that differs."""
        stretches: list[list[int]] = []
        for place in places:
            if stretches and sum(stretches[-1]) == place and self._unit(place)[1] != 0:
                stretches[-1][1] += WORD
            else:
                stretches.append([place, WORD])
        found = [Mismatch(*self._unit(start), length) for start, length in stretches]
        if count > len(places):
            rest = (count - len(places)) * WORD
            found.append(Mismatch(*self._unit(places[0]), rest, located=False))
        return found

    def _unit(self, offset: int) -> tuple[UnitId, int]:
        """The unit that an offset into what was allocated counts for, and the offset within it."""
        for unit in self._target.units[:-1]:
            if offset < unit.size_bytes:
                return unit.id, offset
            offset -= unit.size_bytes
        return self._target.units[-1].id, offset

    # --- the driver ---------------------------------------------------------

    def _moved(self, queue: Callable[[], None]) -> None:
        """Queue one small copy and wait until it is done."""
        with self._told_if_lost():
            queue()
            self._settle()

    def _settle(self) -> None:
        """Wait until all that is queued is done."""
        self._context.record(self._events[0])
        self._context.wait(self._events[0], _nothing)

    @contextmanager
    def _told_if_lost(self) -> Iterator[None]:
        """CUDA has no word for a lost device, NVML has: ask it what an unexplained error was."""
        try:
            yield
        except DriverRefused as error:
            if error.code == cuda.UNKNOWN and self._lost():
                raise DeviceLost(error.detail) from error
            raise

    def _lost(self) -> bool:
        try:
            return self._target.read().present is False
        except DeviceLost:
            return True
        except FleetError:
            return False  # not known, so the error stays what CUDA called it


def open_session(target: Target) -> NvidiaSession:
    """Open all memory of `target`. Writes nothing unless this process sees exactly that device.

    Raises `DriverAbsent`, `BackendFailed`, `DeviceLost`.
    """
    _check_environment(target)
    driver = cuda.Driver()
    device = driver.only_device()
    if device.uuid != _bytes(target.visible):
        raise BackendFailed(
            f"CUDA opened {device.uuid.hex()} instead of {target.visible}; nothing was written",
            remedy="report this: a worker must see the device of its order alone",
        )
    context = cuda.Context(driver, device)
    try:
        return NvidiaSession(target, context)
    except BaseException:
        context.close()
        raise


def _check_environment(target: Target) -> None:
    seen = os.environ.get(VISIBILITY)
    if seen != target.visible:
        raise BackendFailed(
            f"{VISIBILITY} is {seen!r} and should be {target.visible!r}; nothing was written",
            remedy="a worker is started with the UUID of its device: report this",
        )
    pipes = os.environ.get(MPS_PIPES, "")
    if not pipes or (Path(pipes) / "control").exists():
        raise BackendFailed(
            f"{MPS_PIPES} is {pipes!r}, where an MPS daemon could take this process in;"
            " nothing was written",
            remedy=f"set {MPS_PIPES} to a directory without a daemon",
        )


def _bytes(visible: str) -> bytes:
    """The 16 bytes of a UUID as printed; b"" for anything else."""
    kind, _, digits = visible.partition("-")
    try:
        found = bytes.fromhex(digits.replace("-", ""))
    except ValueError:
        return b""
    return found if kind in ("GPU", "MIG") and len(found) == UUID_BYTES else b""


def _access(context: cuda.Context, *, fallback: bool) -> Access:
    """Kernels, or where they cannot be compiled and that is allowed, the host."""
    try:
        return KernelAccess(context)
    except DriverRefused as error:
        if error.code not in cuda.NO_KERNELS:
            raise
        if not fallback:
            raise BackendFailed(
                f"{error.detail}, and reading back by the host is not allowed",
                remedy=error.remedy,
            ) from error
        return HostAccess(context)


def _nothing() -> None:
    """Nobody waits for what takes milliseconds."""


def _ignored(_done: int) -> None:
    """Nobody waits for one vector."""
