"""A machine with stand-in GPUs for tests that load the vendor's binding in this process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.building import libraries
from tests.drivers.host import Host


@functools.cache
def _loaded(name: str) -> ctypes.CDLL:
    """The stand-in under its soname, so that the binding's own search finds it."""
    return ctypes.CDLL(str(libraries() / name), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """An empty machine; this process's NVML speaks of it."""
    _loaded("libnvidia-ml.so.1")
    _let_go()
    made = Host(tmp_path / "standin")
    monkeypatch.setenv("FLEET_STANDIN", str(made.root))
    return made


def _let_go() -> None:
    """End what earlier tests of this process left open: who is the last client matters (F82)."""
    with contextlib.suppress(pynvml.NVMLError):
        while True:
            pynvml.nvmlShutdown()


@pytest.fixture
def backend(host: Host) -> Iterator[NvidiaBackend]:
    """The back end on that machine, with an empty kernel log and a memory for cards."""
    log = host.root / "kmsg"
    log.touch()
    made = NvidiaBackend(
        root=str(host.hardware_root),
        kernel_log=str(log),
        identities=str(host.root / "cards.json"),
    )
    yield made
    made.close()
