"""Speed of a verified wipe against libc: ``python -m tests.lab.bench.wipe``.

The yardstick makes four passes over the same kind of mapping (a shared file mapping, faulted in
beforehand, in as many processes): memset, memcmp against a tile that stays in cache, memset,
memcmp. Nothing that writes and reads back all of memory twice can be faster. Of several tile sizes
the one that is fastest here is used. Wipe and yardstick take turns; medians are compared.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.core.clock import SystemClock
from fleet.devices.simulated.backend import SimulatedBackend, create
from fleet.devices.wipe import engine
from fleet.devices.wipe.plan import PASSES_OVER_MEMORY, WipeOrder

GIB = 1 << 30
TILES = (256 * 1024, 1024 * 1024)
"""Sizes of the yardstick's comparison tile, bytes: both fit a second-level cache."""
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured. Rates are bytes per second over four passes, summed over devices."""

    gib_per_device: float
    devices: int
    runs: int
    wipe_bytes_per_s: float
    libc_bytes_per_s: float
    ratio: float
    wipe_runs: tuple[float, ...]
    libc_runs: tuple[float, ...]


def measure(*, gib: float = 1.0, devices: int = 1, runs: int = 5) -> Figures:
    """Measure; needs `gib` x `devices` of memory in /dev/shm (or the temporary directory).

    Raises OSError when there is too little room, RuntimeError when a wipe is not verified.
    """
    size = max(int(gib * GIB) // (1 << 20), 1) << 20
    folder = _room(size * devices)
    try:
        backend = create(folder, node="bench", accelerators=devices, memory_bytes=size)
        names = [accelerator.uuid for accelerator in backend.inventory()]
        wipes, yardsticks = [], []
        tile = max(TILES, key=lambda size: _together("yardstick", folder, names, tile=size))
        for _ in range(runs):
            yardsticks.append(_together("yardstick", folder, names, tile=tile))
            wipes.append(_together("wipe", folder, names))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wipe, libc = statistics.median(wipes), statistics.median(yardsticks)
    return Figures(
        gib_per_device=size / GIB,
        devices=devices,
        runs=runs,
        wipe_bytes_per_s=wipe,
        libc_bytes_per_s=libc,
        ratio=wipe / libc,
        wipe_runs=tuple(wipes),
        libc_runs=tuple(yardsticks),
    )


def _room(needed: int) -> Path:
    """A fresh directory on memory if there is room for it, else on disk."""
    for parent in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # noqa: S108 - mapped memory is what is measured
        if parent.is_dir() and shutil.disk_usage(parent).free > needed + needed // 8:
            return Path(tempfile.mkdtemp(prefix="fleet-bench-", dir=parent))
    raise OSError(f"no directory has room for {needed} B")


def _together(part: str, folder: Path, names: Sequence[str], *, tile: int = TILES[0]) -> float:
    """Run one process per device at once; the sum of their rates, bytes per second."""
    command = [
        sys.executable,
        "-m",
        "tests.lab.bench.wipe",
        "--part",
        part,
        "--folder",
        str(folder),
    ]
    command += ["--tile", str(tile)]
    running = [
        subprocess.Popen([*command, "--name", name], stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    rates = []
    for process in running:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        if process.returncode != 0:
            raise RuntimeError(f"the {part} of the benchmark failed")
        rates.append(float(output))
    return sum(rates)


def _wipe(folder: Path, name: str) -> float:
    backend = SimulatedBackend(folder)
    accelerator, device = backend.device(name)
    order = WipeOrder(
        worker_id=uuid.uuid4().hex,
        backend=backend.kind,
        settings=backend.settings(),
        accelerator=accelerator.uuid,
        device=device.uuid,
        units=device.units,
        nonce=secrets.token_hex(32),
        deadline_s=TIMEOUT_S,
    )
    result = engine.run(order, backend, SystemClock(), lambda _phase, _done, _total: None)
    if not result.verified:
        raise RuntimeError(f"{result.failure}: {result.detail}")
    return result.rate


def _yardstick(folder: Path, name: str, tile: int) -> float:
    (path,) = SimulatedBackend(folder).memory(SimulatedBackend(folder).device(name)[0].uuid).paths
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    first = ctypes.c_char.from_buffer(mapped)
    seconds = _libc_seconds(ctypes.addressof(first), size, tile)
    del first
    mapped.close()
    return PASSES_OVER_MEMORY * size / seconds


def _libc_seconds(target: int, size: int, tile: int) -> float:
    """Seconds of memset, memcmp, memset, memcmp over all of it."""
    libc = ctypes.CDLL(None)
    memset, memcmp = libc.memset, libc.memcmp
    memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    memset.restype = None
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    seconds = 0.0
    for value in (0xA5, 0):
        same = ctypes.create_string_buffer(bytes([value]) * tile, tile)
        started = time.perf_counter()
        memset(target, value, size)
        for place in range(target, target + size, tile):
            if memcmp(place, same, min(tile, target + size - place)):
                raise RuntimeError("memory did not hold what memset wrote")
        seconds += time.perf_counter() - started
    return seconds


def _render(found: Figures) -> str:
    return (
        f"verified wipe  {found.wipe_bytes_per_s / 1e9:7.2f} GB/s\n"
        f"libc           {found.libc_bytes_per_s / 1e9:7.2f} GB/s\n"
        f"ratio          {found.ratio:7.2f}   (medians of {found.runs}, four passes,"
        f" {found.devices} x {found.gib_per_device:g} GiB)\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 0 unless the benchmark cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.wipe", description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="GiB per device")
    parser.add_argument("--devices", type=int, default=1, help="devices wiped at once")
    parser.add_argument("--runs", type=int, default=5, help="runs; medians are compared")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--part", choices=("wipe", "yardstick"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--tile", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.part == "wipe":
        sys.stdout.write(f"{_wipe(chosen.folder, chosen.name)}\n")
        return 0
    if chosen.part == "yardstick":
        sys.stdout.write(f"{_yardstick(chosen.folder, chosen.name, chosen.tile)}\n")
        return 0
    try:
        found = measure(gib=chosen.gib, devices=chosen.devices, runs=chosen.runs)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"the benchmark cannot run: {error}\n")
        return 2
    sys.stdout.write(json.dumps(asdict(found), indent=2) + "\n" if chosen.json else _render(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
