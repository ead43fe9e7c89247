"""The memory session of a simulated device, beyond the contract."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core.errors import InputInvalid
from fleet.devices.base import Mismatch
from fleet.devices.simulated.session import SLABS_PER_PASS, SimulatedSession
from fleet.devices.wipe.result import Failure
from tests.fleet.devices.wipe.orders import break_it, node, order_for, run, whole

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


@pytest.mark.parametrize("partitionable", [0, 1])
def test_a_wipe_leaves_the_next_tenant_nothing_and_the_last_one_no_way_in(
    tmp_path: Path, partitionable: int
) -> None:
    """Promise 1: old descriptors lead to the old inodes, and the new ones hold only zeros."""
    backend = node(tmp_path, partitionable=partitionable)
    device = whole(backend)
    held = backend.memory(device.accelerator)
    kept = []
    for file in held.files:
        with file.path.open("ab") as opened:
            opened.write(b"behind the end")
        os.setxattr(file.path, "user.note", b"secret")
        file.path.chmod(0o4755)
        kept.append(os.open(file.path, os.O_PATH))
    result = run(backend, order_for(backend, device))
    assert result.verified, result.detail
    assert held.read_bytes() == bytes(held.size_bytes)
    for file, descriptor in zip(held.files, kept, strict=True):
        assert os.listxattr(file.path) == []
        assert file.path.stat().st_mode & 0o7111 == 0
        file.path.write_bytes(b"next tenant".ljust(file.size_bytes))
        assert set(Path(f"/proc/self/fd/{descriptor}").read_bytes()[: file.size_bytes]) == {0}
        os.close(descriptor)
    assert [path.name for path in tmp_path.rglob(".*.new")] == []


@pytest.mark.parametrize("fault", ["dirty-word", "dirty-zero", "stale-verifier", "device-lost"])
def test_a_wipe_that_failed_replaces_no_file(tmp_path: Path, fault: str) -> None:
    """Promise 5: what may hold a tenant's data stays where it is until a wipe has verified it."""
    backend = node(tmp_path)
    device = whole(backend)
    (path,) = backend.memory(device.accelerator).paths
    parameters = {"pass": "verify-zero", "at": "0.5"} if fault == "device-lost" else {}
    break_it(backend, device, fault, **parameters)
    before = path.stat().st_ino
    assert not run(backend, order_for(backend, device)).verified
    assert path.stat().st_ino == before


def test_memory_kept_back_keeps_its_content_in_a_new_inode(tmp_path: Path) -> None:
    """Promise 3: a shortfall within the floor is not made to look wiped, yet no way in is left."""
    backend = node(tmp_path, mib=8)
    device = whole(backend)
    (path,) = backend.memory(device.accelerator).paths
    with path.open("r+b") as file:
        file.seek(-6, os.SEEK_END)
        file.write(b"secret")
    break_it(backend, device, "allocation-shortfall", fraction=0.007)
    before = path.stat().st_ino
    result = run(backend, order_for(backend, device))
    assert (result.verified, result.coverage.residual > 0) == (True, True)
    assert path.stat().st_ino != before
    assert path.read_bytes() == b"secret".rjust(path.stat().st_size, b"\0")


@pytest.mark.parametrize("written", ["zero", "fill", "disturb", "put back"])
def test_what_is_written_after_the_last_look_renews_nothing(
    session: SimulatedSession, tmp_path: Path, written: str
) -> None:
    """Promise 3: only zeros that were read back, and nothing since, count as a wipe."""
    files = [path for path in tmp_path.rglob("*.bin") if path.is_file()]
    before = [path.stat().st_ino for path in files]
    session.zero(silent)
    put_back = session.disturb(0)
    if written == "put back":
        put_back()
    assert bool(session.verify_zero(silent)) == (written != "put back")
    put_back()
    assert session.verify_zero(silent) == []
    match written:
        case "zero":
            session.zero(silent)
        case "fill":
            session.fill(NONCE, silent)
        case "disturb":
            session.disturb(8)
        case _:
            put_back()
    session.close()
    assert [path.stat().st_ino for path in files] == before


def test_a_file_that_cannot_be_renewed_fails_the_wipe(tmp_path: Path) -> None:
    """Promise 5: the verdict is no, and nobody is left on the device."""
    backend = node(tmp_path)
    device = whole(backend)
    (path,) = backend.memory(device.accelerator).paths
    path.with_name(f".{path.name}.new").mkdir()
    result = run(backend, order_for(backend, device))
    assert (result.failure, result.verified) == (Failure.BACKEND, False)
    assert "cannot be replaced" in result.detail
    assert backend.processes(device.uuid) == ()


@pytest.mark.parametrize("length", [0, 1 << 20, 5 << 20])
def test_a_file_cut_or_extended_by_its_tenant_is_wiped(tmp_path: Path, length: int) -> None:
    """Promise 2: `truncate` on the device file costs a tenant nothing and nobody the device."""
    backend = node(tmp_path)
    device = whole(backend)
    (path,) = backend.memory(device.accelerator).paths
    os.truncate(path, length)
    result = run(backend, order_for(backend, device))
    assert result.verified, result.detail
    assert path.read_bytes() == bytes(4 << 20)
