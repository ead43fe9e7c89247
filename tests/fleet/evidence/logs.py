"""Builds logs of segments for tests, reads them, and displaces them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fleet.evidence.dsse import canonical
from fleet.evidence.segments import Damage, Entry, Reader
from fleet.evidence.writer import Writer

FIRST = "000000000001.jsonl"


def fill(directory: Path, count: int, *, segment_bytes: int = 1 << 20, start: int = 0) -> None:
    """Append some entries."""
    writer = Writer(directory, segment_bytes=segment_bytes)
    try:
        for number in range(start, start + count):
            writer.append(canonical({"n": number}))
    finally:
        writer.close()


def read(directory: Path) -> tuple[list[bytes | None], list[str]]:
    """Envelopes that are sound, and the codes of all damages."""
    reader = Reader(directory)
    found = list(reader.poll())
    tail = reader.tail()
    entries = [one.envelope for one in found if isinstance(one, Entry) and one.sound]
    codes = [one.code for one in found if isinstance(one, Damage)]
    return entries, codes + ([tail.code] if tail else [])


def _rename_directory(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))


def _replace_directory(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))
    shutil.copytree(directory.with_name("moved"), directory)


def _replace_segment(directory: Path) -> None:
    content = (directory / FIRST).read_bytes()
    (directory / FIRST).unlink()
    (directory / FIRST).write_bytes(content)


DISPLACED: dict[str, Callable[[Path], object]] = {
    "directory removed": shutil.rmtree,
    "directory renamed": _rename_directory,
    "directory replaced by a copy": _replace_directory,
    "segment removed": lambda d: (d / FIRST).unlink(),
    "segment renamed": lambda d: (d / FIRST).rename(d / "000000000009.jsonl"),
    "segment replaced by a copy": _replace_segment,
    "segment cut": lambda d: os.truncate(d / FIRST, 0),
    "lock removed": lambda d: (d / "writer.lock").unlink(),
}
