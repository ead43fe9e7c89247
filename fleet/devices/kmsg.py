"""The kernel log of this node, read without ever waiting for it.

Drivers report faults here that none of their libraries tells later, and only here when the device
is gone. The log is read from /dev/kmsg, or from a plain file in any form that
`fleet.devices.health.kernel_log` parses.

A log that may not be read is *unknown*: `records` answers None with the reason in `why`, never an
empty log. Records the kernel overwrote before we came are counted in `lost` and not waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet.core.clock import Clock
from fleet.devices.health import kernel_log
from fleet.devices.health.kernel_log import Fact, Record
from fleet.devices.health.readings import Logged, LogPlace, LogState

RECORD_BYTES = 16384
"""Above the kernel's largest record (8 KiB): a shorter buffer makes its read fail."""
READS_MAX = 200_000
"""Reads in one go: a kernel that logs faster than we read must not keep us here."""
FILE_BYTES_MAX = 16 * 1024 * 1024
KEPT = 20_000
MARK_PRIORITY = 14
"""Facility user, severity informational: what the kernel makes of a program's lines anyway."""


class KernelLog:
    """The log at `path`; "" stands for none. Not safe for threads.

    Keeps the newest `keep` records that may concern a device. `read` is `os.read`.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        keep: int = KEPT,
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self.path = str(path)
        self.why = "" if self.path else "no kernel log is set"
        self.lost = 0
        """Times, since it was opened, that records were overwritten before they were read."""
        self.newest_at_s: float | None = None
        """When the newest record of any kind was logged, by the log's own clock: where a window
        begins for `kernel_log.window`."""
        self.newest: int | None = None
        """Number of that record; None: records have none."""
        self.first: int | None = None
        """Number of the first record there was when the log was opened: what came before it was
        overwritten. None: none was read yet, or it is a plain file, which is never complete."""
        self._read = read
        self._kept: deque[Record] = deque(maxlen=keep)
        self._descriptor: int | None = None

    def readable(self) -> bool:
        """Whether the log can be read now; `why` says why not."""
        return self.records() is not None

    def records(self) -> Sequence[Record] | None:
        """All records kept, in order, newly logged ones included. None: unknown, see `why`."""
        if not self.path:
            return None
        try:
            if self._descriptor is None:
                self._open()
            if self._descriptor is None:
                self._whole_file()
            else:
                self._follow(self._descriptor)
        except OSError as error:
            self.close()
            self.why = f"{self.path}: {error.strerror or error}"
            return None
        self.why = ""
        return tuple(self._kept)

    def state(self, now_s: float) -> LogState:
        """How far the log was read by the last `records`; `now_s`: s since boot."""
        place = LogPlace(self.newest, self.newest_at_s, now_s)
        return LogState(place, self.first, self.lost)

    def mark_reset(self, address: str) -> bool:
        """Write down that we reset the device at this PCI address, which ends its open faults.

        False when the log cannot be written, with the reason in `why`: then faults from before the
        reset stay open until the driver is loaded again.
        """
        if not self.path:
            return False
        line = f"<{MARK_PRIORITY}>{kernel_log.MARK} {address}\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            self.why = f"{self.path}: {error.strerror or error}"
            return False
        try:
            os.write(descriptor, line.encode("ascii", "replace"))
        except OSError as error:
            self.why = f"{self.path}: {error.strerror or error}"
            return False
        finally:
            os.close(descriptor)
        return True

    def close(self) -> None:
        """Let go of the log. It is opened again, and read from its start, when asked again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._kept.clear()
        self.lost, self.first = 0, None

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return
        self._kept.clear()
        self._descriptor = descriptor

    def _whole_file(self) -> None:
        """A file may have been rotated or cut since: it is small enough to be read anew."""
        with Path(self.path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - FILE_BYTES_MAX))
            text = file.read(FILE_BYTES_MAX)
        self._kept.clear()
        self._take(text)

    def _follow(self, descriptor: int) -> None:
        """Every read of the device gives one record, until there is none."""
        chunks: list[bytes] = []
        for _ in range(READS_MAX):
            try:
                chunk = self._read(descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self.lost += 1
                continue
            if not chunk:
                break
            chunks.append(chunk)
        self._take(b"".join(chunks), followed=True)

    def _take(self, text: bytes, *, followed: bool = False) -> None:
        for record in kernel_log.records(text.decode("utf-8", "replace")):
            self.newest = record.sequence
            if followed and self.first is None:
                self.first = record.sequence
            if record.at_s is not None:
                self.newest_at_s = record.at_s
            if kernel_log.relevant(record):
                self._kept.append(record)


def state(log: KernelLog, clock: Clock) -> LogState | None:
    """How far `log` was read, now; None: it cannot be read."""
    return log.state(clock.monotonic()) if log.readable() else None


def logged(found: Sequence[Fact]) -> tuple[Logged, ...]:
    """Facts of the log that have no fault code, as readings have them."""
    return tuple(
        Logged(str(fact.kind), fact.severity, _told(fact), fact.sequence, fact.at_s)
        for fact in found
    )


def _told(fact: Fact) -> str:
    code = f"{fact.code} " if fact.code is not None else ""
    where = f"slot {fact.slot}: " if fact.kind is kernel_log.Kind.SWITCH else ""
    return kernel_log.plain(f"{where}{code}{fact.text}")
