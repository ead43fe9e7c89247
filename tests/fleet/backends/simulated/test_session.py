"""The memory session of a simulated device, beyond the contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.backends.base import Mismatch
from fleet.backends.simulated.session import SLABS_PER_PASS, SimulatedSession
from fleet.errors import InputInvalid
from tests.fleet.wipe.orders import node, whole

NONCE = bytes(range(32))
KIB64 = 65536


def silent(_done: int) -> None:
    """Nobody listens."""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SimulatedSession]:
    """All memory of a partitionable device, allocated in chunks of 128 KiB at most."""
    backend = node(tmp_path, partitionable=1)
    device = whole(backend)
    opened = backend.session(device.accelerator, device.units)
    assert type(opened) is SimulatedSession, "a device without faults pays for none"
    opened.allocate(largest_bytes=2 * KIB64, smallest_bytes=KIB64)
    yield opened
    opened.close()


def test_a_mismatch_is_named_by_unit_and_offset_within_it(session: SimulatedSession) -> None:
    """What is wrong in one slice is that slice's, at its own offset."""
    session.fill(NONCE, silent)
    unit = list(session.units.values())[3]
    session.mapping.word(unit.id, unit.offset_bytes + 4096).value ^= 1
    assert session.verify(NONCE, silent) == [Mismatch(unit.id, 4096, 8)]


def test_within_limits_what_is_read(session: SimulatedSession) -> None:
    """One word can be read again without a pass over all of memory."""
    session.fill(NONCE, silent)
    session.disturb(3 * KIB64)
    assert session.verify(NONCE, silent, within=(0, 3 * KIB64)) == []
    assert len(session.verify(NONCE, silent, within=(3 * KIB64, 8))) == 1
    assert session.verify(NONCE, silent, within=(3 * KIB64 + 8, KIB64)) == []
    with pytest.raises(InputInvalid):
        session.verify(NONCE, silent, within=(session.covered, 8))


def test_progress_comes_often_and_ends_with_everything(session: SimulatedSession) -> None:
    """A pass reports many times, never goes back, and ends at the bytes covered."""
    done: list[int] = []
    session.zero(done.append)
    assert done == sorted(done)
    assert done[-1] == session.covered
    assert len(done) >= SLABS_PER_PASS // 2


def test_a_closed_session_leaves_the_list_of_clients(tmp_path: Path) -> None:
    """Closing twice is harmless, and nobody is left on the device."""
    backend = node(tmp_path)
    device = whole(backend)
    opened = backend.session(device.accelerator, device.units)
    assert len(backend.processes(device.uuid)) == 1
    opened.close()
    opened.close()
    assert backend.processes(device.uuid) == ()
