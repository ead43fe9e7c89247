"""The reader of the kernel log: never waits, never takes silence for an empty log."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleet.devices.health import kernel_log
from fleet.devices.health.readings import LogPlace, LogState
from fleet.devices.kmsg import KernelLog

GPU = "0000:3b:00.0"
XID = "4,{0},{0}000000,-;NVRM: Xid (PCI:0000:3b:00): {1}, pid=1, name=x, text\n"


def codes(log: KernelLog) -> tuple[int, ...]:
    found = log.records()
    assert found is not None, log.why
    return kernel_log.codes(found, GPU)


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    """B39: grown, cut or replaced: what stands there now counts, and nothing twice."""
    path = tmp_path / "log"
    path.write_text(XID.format(1, 48) + "4,2,2000000,-;eth0: up\n")
    log = KernelLog(path)
    assert codes(log) == codes(log) == (48,)
    assert log.newest_at_s == 2.0
    with path.open("a") as file:
        file.write(XID.format(3, 94))
    assert codes(log) == (48, 94)
    path.write_text(XID.format(4, 31))
    assert codes(log) == (31,)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    return path


def test_a_stream_is_followed_without_waiting(pipe: Path) -> None:
    """gpus-8.13: what was read stays known, what is new is added, an idle log answers at once."""
    log = KernelLog(pipe)
    assert codes(log) == ()
    writer = os.open(pipe, os.O_WRONLY)
    try:
        assert codes(log) == ()
        os.write(writer, XID.format(1, 48).encode())
        assert codes(log) == (48,)
        assert codes(log) == (48,)
        os.write(writer, XID.format(2, 94).encode())
        assert codes(log) == (48, 94)
        assert log.newest_at_s == 2.0
    finally:
        os.close(writer)
        log.close()


def test_overwritten_records_are_counted_and_reading_goes_on(pipe: Path) -> None:
    """B39: the kernel says once that records are gone; the next read has the oldest left."""
    answers: list[bytes | int] = [
        XID.format(1, 48).encode(), errno.EPIPE, XID.format(9, 94).encode(), errno.EAGAIN,
    ]  # fmt: skip

    def read(_descriptor: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    log = KernelLog(pipe, read=read)
    assert codes(log) == (48, 94)
    assert (log.lost, answers) == (1, [])
    log.close()


def test_a_log_that_may_not_be_read_is_unknown(pipe: Path, tmp_path: Path) -> None:
    """gpus-8.19: refused, absent or not set: unknown with the reason, never an empty log; it is
    asked again the next time.
    """
    allowed = [False, True]

    def read(_descriptor: int, _size: int) -> bytes:
        if not allowed.pop(0):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return b""

    refused = KernelLog(pipe, read=read)
    assert refused.records() is None
    assert refused.why == f"{pipe}: Operation not permitted"
    assert refused.readable()
    assert refused.why == ""
    refused.close()
    absent = KernelLog(tmp_path / "none")
    assert (absent.readable(), absent.why.endswith("No such file or directory")) == (False, True)
    unset = KernelLog("")
    assert (unset.records(), unset.readable(), unset.why) == (None, False, "no kernel log is set")


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    """A storm of records makes the service forget the oldest, not grow."""
    path = tmp_path / "log"
    path.write_text("".join(XID.format(number, number) for number in range(1, 9)))
    assert codes(KernelLog(path, keep=3)) == (6, 7, 8)


def test_our_reset_is_written_down_and_read_again(tmp_path: Path) -> None:
    """gpus-8.21: the driver logs no reset; the mark ends what was open, also for a new reader."""
    path = tmp_path / "log"
    path.write_text(XID.format(1, 48))
    log = KernelLog(path)
    assert codes(log) == (48,)
    assert log.mark_reset("0000:61:00.0")
    assert codes(log) == (48,)
    assert log.mark_reset(GPU)
    assert codes(log) == codes(KernelLog(path)) == ()


def test_a_mark_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    """Best effort: without the mark the faults stay open, which is safe."""
    log = KernelLog(tmp_path / "none")
    assert not log.mark_reset(GPU)
    assert "No such file" in log.why
    assert not KernelLog("").mark_reset(GPU)


def test_b58_how_far_the_log_was_read(pipe: Path) -> None:
    """B58: the first and the newest record by number, of any kind, and how often some were lost;
    an open that comes later begins to count anew.
    """
    answers: list[bytes | int] = [
        XID.format(903, 48).encode(), b"6,904,904000000,-;eth0: up\n", errno.EAGAIN,
        errno.EPIPE, XID.format(2000, 94).encode(), errno.EAGAIN,
        XID.format(2001, 95).encode(), errno.EAGAIN,
    ]  # fmt: skip

    def read(_descriptor: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer

    log = KernelLog(pipe, read=read)
    assert codes(log) == (48,)
    assert log.state(1.0) == LogState(LogPlace(904, 904.0, 1.0), 903, 0)
    assert codes(log) == (48, 94)
    assert log.state(2.0) == LogState(LogPlace(2000, 2000.0, 2.0), 903, 1)
    log.close()
    assert codes(log) == (95,)
    assert log.state(3.0) == LogState(LogPlace(2001, 2001.0, 3.0), 2001, 0)
    log.close()


def test_b58_a_plain_file_has_no_beginning(tmp_path: Path) -> None:
    """B58: a file is cut and rotated as its owner likes: what it begins with is no gap."""
    path = tmp_path / "log"
    path.write_text(XID.format(7, 48) + "[8.5] eth0: up\n")
    log = KernelLog(path)
    assert codes(log) == (48,)
    assert log.state(1.0) == LogState(LogPlace(None, 8.5, 1.0), None, 0)
