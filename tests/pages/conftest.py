"""Chromium, where it can be had, and where its pictures go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import debian

PICTURES = "FLEET_PICTURES"
"""Set, what is seen is also written to docs/pictures."""
LARGEST_BYTES = 150_000
"""Of a picture that is kept with the sources."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """How the browser is started."""

    command: tuple[str, ...]
    environment: dict[str, str]


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    """Debian's Chromium."""
    try:
        found = debian.find("chromium", "chromium", dependencies=True)
    except debian.Unavailable as error:
        pytest.skip(f"SKIPPED: chromium cannot be had: {error}")
    environment = {"PATH": os.environ.get("PATH", os.defpath), **found.environment}
    root = debian.CACHE / "chromium"
    if not found.path.is_relative_to(root):
        return Chromium((str(found.path),), environment)
    # What /usr/bin has is a script for an installed package; some libraries sit a level deeper.
    libraries = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    deeper = [str(Path(one) / "pulseaudio") for one in libraries]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, *deeper])
    return Chromium((str(root / "usr" / "lib" / "chromium" / "chromium"),), environment)


def keep(name: str, picture: bytes) -> None:
    """Check a picture, and keep it with the documents where that is asked for."""
    assert picture.startswith(b"\x89PNG")
    if os.environ.get(PICTURES):
        assert len(picture) <= LARGEST_BYTES, f"{name} has {len(picture)} bytes"
        target = Path(__file__).parent.parent.parent / "docs" / "pictures" / f"{name}.png"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(picture)
