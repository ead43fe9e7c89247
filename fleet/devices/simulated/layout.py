"""The memory files of a directory: made once, renewed after every wipe, and split where an earlier
release kept one file.

A wipe covers the bytes of a file, but a tenant may leave more than bytes: attributes, a mode, what
it appended, and descriptors and mounts that still lead to the file. So nothing of a file but its
name passes on to the next tenant: a wiped one is replaced by a new inode.

Until partitions had files of their own, a partitionable accelerator's memory was one file. It is
copied unit by unit beside it, then put in place by one rename: a crash leaves the old file whole or
the new ones complete, and the next opening goes on from there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fleet.core.errors import BackendFailed
from fleet.core.model import Accelerator
from fleet.devices.simulated.memory import Memory, UnitFile

_BLOCK_BYTES = 16 << 20


def make(memory: Memory) -> None:
    """Make the files that are missing or too short; what is there keeps its content."""
    for file in memory.files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        with file.path.open("ab") as opened:
            if opened.tell() < file.size_bytes:
                opened.truncate(file.size_bytes)


def renew(file: UnitFile, *, zero: bool) -> None:
    """Put a new inode of the unit's size in the place of a wiped file; with `zero`, a hole.

    Without `zero`, as when the driver kept some memory back from the wipe, the unit's bytes are
    copied: what was not verified must not look so. A crash leaves the old file or the new one,
    alike in content. Raises BackendFailed; the old file is in place then.
    """
    path = file.path
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)  # of a crash
        if zero:
            with new.open("xb") as made:
                made.truncate(file.size_bytes)
        else:
            _copy(path, 0, new, file.size_bytes)
        _synced(new)
        new.replace(path)
        _synced(path.parent)
    except OSError as error:
        raise BackendFailed(
            f"the wiped memory file {path} cannot be replaced by a new one: {error}",
            remedy="free space or repair access to its directory, then wipe again",
        ) from error


def unsplit(directory: Path, accelerator: Accelerator) -> bool:
    """Whether an accelerator with several units still has one file for all of them."""
    return len(accelerator.units) > 1 and _old(directory, accelerator).exists()


def split(directory: Path, accelerator: Accelerator) -> None:
    """Copy the one file into a file per unit, then remove it. Nobody else may have it open.

    Raises BackendFailed when there is no room or no right; the old file is whole then.
    """
    old, new = _old(directory, accelerator), directory / accelerator.uuid
    half = directory / f".{accelerator.uuid}.split"
    try:
        if not new.exists():
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            for file in Memory.of(directory, accelerator).files:
                _copy(old, file.offset_bytes, half / file.path.name, file.size_bytes)
            half.rename(new)
        old.unlink()
    except OSError as error:
        raise BackendFailed(
            f"the memory file {old} cannot be split by partition: {error}",
            remedy="free space or repair access; nothing was lost, opening it again goes on",
        ) from error


def _old(directory: Path, accelerator: Accelerator) -> Path:
    return directory / f"{accelerator.uuid}.bin"


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(source: Path, start: int, target: Path, length: int) -> None:
    """Copy a stretch of a file; what is missing at its end reads as zeros."""
    with source.open("rb") as reading, target.open("wb") as writing:
        reading.seek(start)
        left = length
        while left and (block := reading.read(min(left, _BLOCK_BYTES))):
            # Blocks of zeros stay holes: a sparse memory file must not fill the disk.
            if block.count(0) == len(block):
                writing.seek(len(block), os.SEEK_CUR)
            else:
                writing.write(block)
            left -= len(block)
        writing.truncate(length)
