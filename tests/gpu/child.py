"""One piece of work on one GPU, in a process of its own: ``python -m tests.gpu.child <what>``.

Reads one JSON order from its input and writes one JSON answer. It sees the one device that its
environment names, opens the product's own session there, and ends.
"""

from __future__ import annotations

import ctypes
import json
import secrets
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.core.clock import SystemClock
from fleet.core.errors import FleetError
from fleet.core.model import UnitId, Uuid
from fleet.devices.base import Mismatch, Progress
from fleet.devices.kmsg import KernelLog
from fleet.devices.nvidia import cuda, kernels
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.nvidia.session import WORD, NvidiaSession
from fleet.devices.wipe import engine
from fleet.devices.wipe.plan import WipeOrder
from tests.gpu.contained import built, held_by_us

LARGEST, SMALLEST = 8 << 30, 64 * 1024
PR_SET_PDEATHSIG = 1
STARTED = time.monotonic()
Act = Callable[[Progress], Sequence[Mismatch] | None]


def silent(_done: int) -> None:
    """Nobody listens."""


def probe(order: Mapping[str, Any]) -> dict[str, Any]:
    """Memory in use on each GPU, whether the kernel log can be read, what a closed NVML holds."""
    backend = NvidiaBackend(**order["settings"])
    used = {}
    library = backend._library
    version = library.constant("nvmlMemory_v2")
    for one in backend.inventory():
        handle = library.ask("nvmlDeviceGetHandleByUUID", one.uuid)
        name = "nvmlDeviceGetMemoryInfo"
        found = library.ask(name, handle, version=version) or library.ask(name, handle)
        used[one.uuid] = int(found.used) if found is not None else 1 << 62  # unknown is not idle
    log = KernelLog(order["settings"]["kernel_log"])
    log.readable()
    backend.close()
    return {"used_bytes": used, "kernel_log": log.why, "held_after_close": held_by_us()}


def jit(_order: Mapping[str, Any]) -> dict[str, Any]:
    """Time, s, to start the driver, to make a context, and to compile our kernels there."""
    began = time.monotonic()
    driver = cuda.Driver()
    device = driver.only_device()
    started = time.monotonic()
    context = cuda.Context(driver, device)
    made = time.monotonic()
    context.load(kernels.text(), kernels.NAMES)
    loaded = time.monotonic()
    context.close()
    return {"driver_s": started - began, "context_s": made - started, "jit_s": loaded - made}


def wipe(order: Mapping[str, Any]) -> dict[str, Any]:
    """What the node's worker does, where only a container's own processes can be seen."""
    given = WipeOrder.from_json(order["order"])
    backend = built(dict(given.settings), contained=True)
    ready = time.monotonic()
    result = engine.run(given, backend, SystemClock(), lambda *_: None)
    return {
        "result": result.as_json(),
        "ready_s": ready - STARTED,
        "wall_s": time.monotonic() - ready,
    }


def _opened(order: Mapping[str, Any]) -> tuple[NvidiaSession, dict[str, float]]:
    """A session over the units of the order, allocated; and how long that took, s."""
    backend = built(order["settings"], contained=order["contained"])
    began = time.monotonic()
    units = [UnitId(unit) for unit in order["units"]]
    session = backend.session(Uuid(order["accelerator"]), units)
    opened = time.monotonic()
    assert isinstance(session, NvidiaSession)
    session.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
    return session, {"open_s": opened - began, "allocate_s": time.monotonic() - opened}


def measure(order: Mapping[str, Any]) -> dict[str, Any]:
    """Each pass and the plain kernels, in turn, `rounds` times after one that is not counted."""
    session, times = _opened(order)
    found: dict[str, list[float]] = {}
    wrong = 0
    for number in range(order["rounds"] + 1):
        for name, act in _in_turn(session, secrets.token_bytes(32)):
            began = time.monotonic()
            wrong += len(act(silent) or ())
            seconds = session.device_seconds() or time.monotonic() - began
            if number:
                found.setdefault(name, []).append(seconds)
    covered, said = session.covered, session.extra()
    session.close()
    passes = {
        name: {
            "seconds": statistics.median(times),
            "least_s": min(times),
            "most_s": max(times),
            "bytes": covered,
            "rounds": len(times),
        }
        for name, times in found.items()
    }
    return {**times, "passes": passes, "wrong": wrong, "session": said}


def _in_turn(session: NvidiaSession, nonce: bytes) -> Sequence[tuple[str, Act]]:
    """One round: every pass once, in the order of a wipe, plain kernels among them."""

    def fill(progress: Progress) -> None:
        session.fill(nonce, progress)

    def verify(progress: Progress) -> Sequence[Mismatch]:
        return session.verify(nonce, progress)

    return (
        ("plain set", session.plain_set),
        ("fill", fill),
        ("plain read", session.plain_read),
        ("verify", verify),
        ("zero", session.zero),
        ("verify-zero", session.verify_zero),
    )


def verifier(order: Mapping[str, Any]) -> dict[str, Any]:
    """Errors put into memory on purpose, one at a time: what a full verify says of each."""
    session, _ = _opened(order)
    nonce = secrets.token_bytes(32)
    session.fill(nonce, silent)
    clean = len(session.verify(nonce, silent))
    words = session.covered // WORD
    places = sorted({0, words // 3 * WORD, words // 2 * WORD + WORD, (words - 1) * WORD})
    seeds: list[dict[str, Any]] = []

    def look(kind: str, offset: int, put_back: Callable[[], None], zero: bool) -> None:
        began = time.monotonic()
        found = session.verify_zero(silent) if zero else session.verify(nonce, silent)
        seconds = time.monotonic() - began
        put_back()
        seeds.append(
            {
                "kind": kind,
                "offset": offset,
                "found": [[one.unit, one.offset_bytes, one.length_bytes] for one in found],
                "at": list(session._unit(offset)),
                "seconds": seconds,
            }
        )

    for offset in places:
        look("word", offset, session.disturb(offset), zero=False)
    for offset in (places[0], places[-1]):
        look("bit", offset, _one_bit(session, offset), zero=False)
    other = secrets.token_bytes(32)
    under_another = sum(one.length_bytes for one in session.verify(other, silent))
    session.zero(silent)
    look("bit after zeros", places[-1], _one_bit(session, places[-1]), zero=True)
    clean += len(session.verify_zero(silent))
    covered = session.covered
    session.close()
    return {"seeds": seeds, "clean": clean, "covered": covered, "under_another": under_another}


def _one_bit(session: NvidiaSession, offset: int) -> Callable[[], None]:
    """Flip the lowest bit of the word at `offset`; the function returned flips it back."""
    (place,) = session._pieces((offset, WORD))
    host = session._word

    def flip() -> None:
        session._moved(lambda: session._context.download(host, place.address))
        host[0] = int(host[0]) ^ 1
        session._moved(lambda: session._context.upload(place.address, host))

    flip()
    return flip


WORK: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    work.__name__: work for work in (probe, jit, wipe, measure, verifier)
}


def _die_with_parent() -> None:
    """Nobody would end us after a check that was ended itself."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(what: str) -> None:
    """Do one piece of work; a refusal of the driver is the answer."""
    _die_with_parent()
    answer: Mapping[str, Any]
    try:
        answer = WORK[what](json.load(sys.stdin))
    except FleetError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
