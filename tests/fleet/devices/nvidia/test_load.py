"""Readings while the device works: traffic goes on, errors come through, and it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, DriverRefused
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import session

FOUND = Readings(at=1.0, under_load=True)


def test_traffic_runs_before_and_during_the_reading() -> None:
    """gpus-8.23: the reading begins on a busy device and ends only after more work was queued."""
    steps: list[int] = []
    more = threading.Event()

    def traffic() -> Iterator[None]:
        while True:
            steps.append(1)
            if len(steps) > 10:
                more.set()
            yield

    def read() -> Readings:
        assert steps
        assert more.wait(10)
        return FOUND

    assert session.read_under(read, traffic()) is FOUND
    assert len(steps) > 10


@pytest.mark.parametrize("error", [DeviceLost("gone"), ValueError("odd")])
def test_what_the_reading_raises_is_the_callers(error: Exception) -> None:
    """gpus-8.12: a device lost while it is read is lost, and no other error gets lost either."""

    def read() -> Readings:
        raise error

    with pytest.raises(type(error), match=str(error).partition(" ")[0]):
        session.read_under(read, iter(()))


def test_a_device_that_fails_under_load_fails_the_reading() -> None:
    """gpus-8.10: an error of the traffic is told once nothing reads any more."""
    failing, ended = threading.Event(), threading.Event()

    def traffic() -> Iterator[None]:
        yield
        failing.set()
        raise DriverRefused("ECC", code=214)

    def read() -> Readings:
        assert failing.wait(10)
        ended.set()
        return FOUND

    with pytest.raises(DriverRefused):
        session.read_under(read, traffic())
    assert ended.is_set()


def test_b29_a_driver_that_does_not_answer_ends_it() -> None:
    """B29: a reading that hangs is given up after its time limit."""
    release = threading.Event()

    def read() -> Readings:
        release.wait(30)
        return FOUND

    with pytest.raises(BackendFailed, match="did not come within"):
        session.read_under(read, iter(()), limit_s=0.05)
    release.set()
