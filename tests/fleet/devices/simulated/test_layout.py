"""One file per unit, also in directories that an earlier release made, whatever crashes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.core.model import Accelerator
from fleet.devices.simulated import layout, topology
from fleet.devices.simulated.memory import Memory, UnitFile

SIZE = 2 << 20


@pytest.fixture
def accelerator() -> Accelerator:
    """A partitionable accelerator."""
    shape = topology.Shape("n0", 1, SIZE, 1, 0)
    return topology.build(shape).accelerators[0]


@pytest.fixture
def wiped(tmp_path: Path, accelerator: Accelerator) -> UnitFile:
    """The file of one unit, with a secret in its bytes and one behind its end."""
    memory = Memory.of(tmp_path, accelerator)
    layout.make(memory)
    file = memory.files[0]
    with file.path.open("r+b") as opened:
        opened.write(b"secret")
        opened.seek(file.size_bytes)
        opened.write(b"behind the end")
    file.path.chmod(0o4777)
    return file


def test_a_renewed_file_has_nothing_of_the_old_one_but_its_name(wiped: UnitFile) -> None:
    """Promise 1: bytes behind the end, attributes and mode stay with the old inode."""
    os.setxattr(wiped.path, "user.note", b"secret")
    with wiped.path.open("rb") as before:
        layout.renew(wiped, zero=True)
        assert before.read(6) == b"secret"
        assert os.fstat(before.fileno()).st_ino != wiped.path.stat().st_ino
    assert wiped.path.read_bytes() == bytes(wiped.size_bytes)
    assert (os.listxattr(wiped.path), wiped.path.stat().st_mode & 0o7111) == ([], 0)
    assert len(list(wiped.path.parent.iterdir())) == 9, "nothing else may stay behind"


def test_a_file_not_wiped_whole_is_renewed_with_its_bytes(wiped: UnitFile) -> None:
    """Promise 3: what no wipe verified is never made to look clean."""
    layout.renew(wiped, zero=False)
    content = wiped.path.read_bytes()
    assert content == b"secret".ljust(wiped.size_bytes, b"\0")
    assert wiped.path.stat().st_mode & 0o7111 == 0


def test_a_crash_before_the_rename_is_made_good(wiped: UnitFile) -> None:
    """Promise 7: until the rename the old file counts; what a crash left is thrown away."""
    left = wiped.path.with_name(f".{wiped.path.name}.new")
    left.write_bytes(b"half" * wiped.size_bytes)
    layout.renew(wiped, zero=True)
    assert wiped.path.read_bytes() == bytes(wiped.size_bytes)
    assert not left.exists()


def test_what_cannot_be_renewed_is_told(wiped: UnitFile) -> None:
    """Promise 5: without a new inode the wipe has failed, and the old file is still there."""
    wiped.path.with_name(f".{wiped.path.name}.new").mkdir()
    with pytest.raises(BackendFailed, match="cannot be replaced"):
        layout.renew(wiped, zero=True)
    assert wiped.path.read_bytes().startswith(b"secret")


def old(directory: Path, accelerator: Accelerator, length: int = SIZE) -> bytes:
    """One file for all units, with content in some of them."""
    content = bytes(SIZE // 2) + random.Random(0).randbytes(length - SIZE // 2)
    (directory / f"{accelerator.uuid}.bin").write_bytes(content)
    return content


def test_making_keeps_what_is_there(tmp_path: Path, accelerator: Accelerator) -> None:
    """A second opening changes no byte, and makes good a file that a crash left short."""
    memory = Memory.of(tmp_path, accelerator)
    layout.make(memory)
    memory.write_bytes(b"kept")
    memory.paths[-1].write_bytes(b"short")
    layout.make(memory)
    assert memory.read_bytes()[:4] == b"kept"
    assert memory.paths[-1].read_bytes().rstrip(b"\0") == b"short"
    assert len(memory.read_bytes()) == SIZE
    assert not layout.unsplit(tmp_path, accelerator)


def test_splitting_keeps_every_byte_in_its_place(tmp_path: Path, accelerator: Accelerator) -> None:
    """The old file is gone, the new ones hold its content unit by unit."""
    content = old(tmp_path, accelerator)
    assert layout.unsplit(tmp_path, accelerator)
    layout.split(tmp_path, accelerator)
    assert Memory.of(tmp_path, accelerator).read_bytes() == content
    assert not layout.unsplit(tmp_path, accelerator)
    assert [path.name for path in tmp_path.iterdir()] == [accelerator.uuid]


def test_a_crash_while_copying_starts_again(tmp_path: Path, accelerator: Accelerator) -> None:
    """Promise 7: what was copied half is thrown away, the old file is still whole."""
    content = old(tmp_path, accelerator)
    half = tmp_path / f".{accelerator.uuid}.split"
    half.mkdir()
    (half / "m0.bin").write_bytes(b"half")
    (half / "m7.bin").write_bytes(b"wrong")
    layout.split(tmp_path, accelerator)
    assert Memory.of(tmp_path, accelerator).read_bytes() == content


def test_a_crash_after_the_rename_only_removes_the_old(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    """Promise 7: the new files count from the rename on, also when they were written to since."""
    old(tmp_path, accelerator)
    layout.split(tmp_path, accelerator)
    memory = Memory.of(tmp_path, accelerator)
    memory.write_bytes(b"newer")
    old(tmp_path, accelerator)
    layout.split(tmp_path, accelerator)
    assert memory.read_bytes()[:5] == b"newer"
    assert not layout.unsplit(tmp_path, accelerator)


def test_a_short_old_file_reads_as_zeros_behind_its_end(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    """A file that a crash left short is completed, not refused."""
    content = old(tmp_path, accelerator, SIZE - 100_000)
    layout.split(tmp_path, accelerator)
    assert Memory.of(tmp_path, accelerator).read_bytes() == content.ljust(SIZE, b"\0")


def test_what_cannot_be_split_stays_whole(tmp_path: Path, accelerator: Accelerator) -> None:
    """Promise 5: an error is told, and the old file is untouched."""
    content = old(tmp_path, accelerator)
    (tmp_path / f".{accelerator.uuid}.split").write_text("in the way")
    with pytest.raises(BackendFailed):
        layout.split(tmp_path, accelerator)
    assert (tmp_path / f"{accelerator.uuid}.bin").read_bytes() == content


def test_an_accelerator_of_one_unit_is_never_split(tmp_path: Path) -> None:
    """One unit is one file: there is nothing to keep apart."""
    (plain,) = topology.build(topology.Shape("n0", 1, SIZE, 0, 0)).accelerators
    layout.make(Memory.of(tmp_path, plain))
    assert not layout.unsplit(tmp_path, plain)
