"""Programs that tests need and that come as Debian packages: found, or fetched without being root.

A program on PATH is used as it is. Otherwise the package (and on request what it depends on and the
machine lacks) is downloaded with apt-get and unpacked below .venv/debian; nothing is installed.

`python -m tests.debian PROGRAM [PACKAGE]` prints where the program is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".venv" / "debian"
FETCH_S = 300.0
"""Time, s, one call of apt-get may take."""
PLACES = ("usr/bin", "usr/sbin", "usr/lib/chromium", "bin")
LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib")


class Unavailable(Exception):
    """The program is not there and cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be started."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)
    """To be added to that of its process."""


def find(program: str, package: str, *, dependencies: bool = False) -> Program:
    """The program, fetched with its package where it is not on PATH. Raises `Unavailable`."""
    there = shutil.which(program)
    if there is not None:
        return Program(Path(there))
    root = CACHE / package
    if not root.is_dir():
        _fetch(package, root, dependencies=dependencies)
    found = next(
        (root / place / program for place in PLACES if (root / place / program).is_file()), None
    )
    if found is None:
        raise Unavailable(f"the package {package} has no program {program}")
    libraries = [str(root / place) for place in LIBRARIES if (root / place).is_dir()]
    return Program(found, {"LD_LIBRARY_PATH": os.pathsep.join(libraries)} if dependencies else {})


def _fetch(package: str, root: Path, *, dependencies: bool) -> None:
    """Unpack below `root`, all or nothing."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(
                f"{package} is not installed, and there is no {tool} to fetch it with"
            )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as made:
        downloads, unpacked = Path(made) / "downloads", Path(made) / "unpacked"
        downloads.mkdir()
        options = _options(package)
        names = _missing(package, options) if dependencies else [package]
        _run(["apt-get", *options, "download", *names], cwd=downloads)
        for archive in sorted(downloads.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(archive), str(unpacked)], cwd=downloads)
        unpacked.rename(root)


def _options(package: str) -> list[str]:
    """Options by which apt-get knows the package: none, or with lists of our own."""
    if _knows(package, []):
        return []
    lists = CACHE / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    private = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={CACHE / 'apt'}"]
    private += ["-o", "Debug::NoLocking=1"]
    (CACHE / "apt" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    _run(["apt-get", *private, "update"], cwd=CACHE)
    if not _knows(package, private):
        raise Unavailable(f"the sources of apt have no package {package}")
    return private


def _knows(package: str, options: list[str]) -> bool:
    asked = ["apt-get", *options, "--print-uris", "download", package]
    done = subprocess.run(asked, check=False, capture_output=True, timeout=FETCH_S)
    return done.returncode == 0


def _missing(package: str, options: list[str]) -> list[str]:
    """The package and what it needs that is not installed here."""
    asked = ["apt-get", *options, "--simulate", "--no-install-recommends", "install", package]
    return re.findall(r"^Inst (\S+)", _run(asked, cwd=CACHE), re.MULTILINE)


def _run(command: list[str], *, cwd: Path) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            cwd=cwd,
            env=environment,
            timeout=FETCH_S,
        )
    except subprocess.CalledProcessError as error:
        why = (error.stderr or "").strip().splitlines()[-1:] or ["no word why"]
        raise Unavailable(f"{' '.join(command[:1])} failed: {why[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} failed: {error}") from error
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find(sys.argv[1], sys.argv[-1]).path}\n")
    except Unavailable as error:
        sys.exit(f"{sys.argv[1]} cannot be had: {error}")
