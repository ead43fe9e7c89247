"""What is never used, and so is not in the image: both builders remove it by one list.

Run as a program, it removes below the root that is named: `python3 left_out.py /`. It needs
nothing but Python.
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("left-out.toml")
SITE = "opt/fleetscrub/lib/python3.*/site-packages"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One entry of the list."""

    why: str
    patterns: tuple[str, ...]
    """Below the root."""
    keep: tuple[str, ...]
    """What the patterns name and stays."""


def entries(file: Path = LIST) -> list[LeftOut]:
    """The list."""
    told = tomllib.loads(file.read_text())["left_out"]
    return [
        LeftOut(
            entry["why"],
            (*entry.get("paths", []), *(f"{SITE}/{one}" for one in entry.get("python", []))),
            tuple(f"{SITE}/{one}" for one in entry.get("keep", [])),
        )
        for entry in told
    ]


def remove(root: Path) -> dict[str, int]:
    """Remove it all below `root`: reason -> B that it took. What is not there is no error."""
    done = {}
    for entry in entries():
        kept = {path for pattern in entry.keep for path in root.glob(pattern)}
        found = {path for pattern in entry.patterns for path in root.glob(pattern)}
        done[entry.why] = sum(_remove(path) for path in sorted(found - kept, reverse=True))
    for record in root.glob(f"{SITE}/*.dist-info/RECORD"):
        _correct(record)
    return done


def _remove(path: Path) -> int:
    if not os.path.lexists(path):
        return 0  # gone with its directory, or by another name of it
    if path.is_dir() and not path.is_symlink():
        size = sum(
            (Path(directory) / name).lstat().st_size
            for directory, _, names in os.walk(path)
            for name in names
        )
        shutil.rmtree(path)
        return size
    size = path.lstat().st_size
    path.unlink()
    if path.suffix == ".py":
        size += sum(_remove(made) for made in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"))
    return size


def _correct(record: Path) -> None:
    """Take out of a package's own list of files what is no longer there."""
    site = record.parent.parent
    lines = record.read_text().splitlines(keepends=True)
    there = [line for line in lines if (site / next(csv.reader([line]))[0]).exists()]
    if there != lines:
        record.write_text("".join(there))


if __name__ == "__main__":
    print(f"{sum(remove(Path(sys.argv[1])).values()) / 1e6:.0f} MB left out")
