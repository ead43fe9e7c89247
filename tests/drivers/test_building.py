"""The stand-ins' compiler: built once, for any process, and found by the loader's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.drivers.building import LIBRARIES, libraries
from tests.drivers.caller import Caller
from tests.drivers.host import Host


def test_both_libraries_are_built_once() -> None:
    """One directory holds both, and asking again builds nothing."""
    place = libraries()
    assert sorted(path.name for path in place.iterdir()) == sorted(LIBRARIES)
    before = place.stat().st_mtime_ns
    assert libraries() == place
    assert place.stat().st_mtime_ns == before


def test_without_a_machine_there_is_no_driver(child: Caller, tmp_path: Path) -> None:
    """gpus-8.1: the library alone, with no state to tell of, is a driver that is not loaded."""
    environment = {**Host(tmp_path).environment(), "FLEET_STANDIN": ""}
    line = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)"
    done = subprocess.run(
        [sys.executable, "-c", line],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == "9\n"
