"""Resetting one PCI function by the kernel's own means: sysfs, no vendor tool.

The write that resets may block for about a minute, and one that unbinds a driver for ever. All of
it therefore happens in the calling process, which somebody else must be able to kill. What a killed
one leaves behind (a narrowed list of methods, a driver not bound) is undone by `recover`, from a
note written before the first change.

Decisions:

1. Nothing is done while a process, infrastructure included, has the device open. The kernel itself
   resets under anybody's feet.
2. A bound driver is left in place only where the caller says that it stands a reset; else it is
   unbound first and bound again, or the reset is refused.
3. One method at a time is offered to the kernel, so that the one that worked is known and none that
   policy leaves out is ever a fallback.
4. Done means: it answers, and its link is as wide as before.
5. The nvidia driver's unbind never returns while anybody uses the device, the kernel included,
   whom no list of processes shows. Only on hosts of virtual GPUs does it offer a lock that tells;
   without one we do not unbind it.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.core.errors import BackendFailed, DeviceLost
from fleet.core.model import Process
from fleet.devices.base import ResetOutcome
from fleet.devices.sysfs import PCI_DEVICES, Function, Ids, Life, read_text

NOTES = "run/fleetscrub/pci-reset"
"""Where changes to a function are noted, below the root: gone after a reboot, as they are."""
BUS_METHODS = frozenset({"bus", "cxl_bus"})
LINK_WAIT_S = 5.0
"""Time a link gets to train again after the kernel says that the reset is over."""
LINK_STEP_S = 0.05
NVIDIA = 0x10DE
NVIDIA_DRIVER = "nvidia"
_NO_LOCK = (
    "driver nvidia is bound and offers no unbind lock, so that unbinding it could block for ever:"
    " reset the GPU by nvidia-smi (setting hardware.reset_tool), or unload the driver first"
)

Write = Callable[[Path, str], None]
"""Writes one attribute of the kernel; raises OSError as the kernel does."""
Holders = Callable[[], Sequence[Process]]


def write_attribute(path: Path, text: str) -> None:
    """Write an attribute that exists, in one write: the kernel acts on each.

    Raises OSError; FileNotFoundError where the kernel offers no such attribute.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which conditions a function may be reset."""

    methods: Sequence[str]
    """Methods of the kernel that policy allows, tried in this order."""
    standing: frozenset[str] = frozenset({"vfio-pci"})
    """Drivers that stand a reset while they are bound."""
    unbinds: bool = False
    """Whether any other driver may be unbound for it and bound again."""
    settle_s: float = LINK_WAIT_S


class _Refused(Exception):
    """Nothing was done; why."""

    def __init__(self, detail: str, holders: Sequence[Process] = ()) -> None:
        super().__init__(detail)
        self.outcome = ResetOutcome(done=False, method="", detail=detail, holders=tuple(holders))


def reset(
    function: Function, terms: Terms, holders: Holders, *, write: Write = write_attribute
) -> ResetOutcome:
    """Reset `function`. An outcome that is not done says why nothing was done.

    Raises `BackendFailed` where every method failed or the link did not come back as it was, and
    `DeviceLost` where the function does not answer, before or after.
    """
    recover(function, write=write)
    try:
        _refuse_dead(function)
        methods = _methods(function, terms)
        _refuse_held(holders)
        _refuse_driven(function, terms)
    except _Refused as refused:
        return refused.outcome
    width = function.link().width
    try:
        with _noted(function, write):
            _unbind(function, terms, write)
            _refuse_held(holders)
            used = _strike(function, methods, write)
            _prove_back(function, width, terms.settle_s)
    except _Refused as refused:
        return refused.outcome
    return ResetOutcome(done=True, method=used)


def recover(function: Function, *, write: Write = write_attribute) -> bool:
    """Undo what a reset that was killed left changed; whether there was anything.

    Raises `BackendFailed` where it cannot be undone; it is tried again by the next call.
    """
    note = _note(function)
    text = read_text(note)
    if text is None:
        return False
    try:
        found = json.loads(text)
        methods, driver = str(found["methods"]), str(found["driver"])
    except (ValueError, KeyError, TypeError):
        methods, driver = "default", ""  # torn: the kernel at least has its own list
    if function.present:
        _restore(function, methods, driver, write)
    note.unlink(missing_ok=True)
    return True


def quirk(ids: Ids | None) -> frozenset[str]:
    """Methods that must not be used on this function although the kernel may list them.

    NVIDIA functions whose bus reset leaves them dead; the kernel has the same list.
    """
    if ids is None or ids.vendor != NVIDIA:
        return frozenset()
    bad = ids.device & 0xFFC0 == 0x2340 or ids.device in (0x22CE, 0x22D0)
    return BUS_METHODS if bad else frozenset()


# --- preconditions --------------------------------------------------------------------------------


def _refuse_dead(function: Function) -> None:
    life = function.life()
    if life in (Life.DEAD, Life.GONE):
        raise DeviceLost(f"{function.address} is {life}: a reset needs a function that answers")


def _methods(function: Function, terms: Terms) -> tuple[str, ...]:
    if not function.resettable:
        raise _Refused("not supported: the kernel offers no reset of this function")
    offered = function.reset_methods()
    if offered is None:
        raise _Refused(
            "not supported: the kernel does not tell by which method it would reset this function"
        )
    banned = quirk(function.ids)
    found = tuple(name for name in terms.methods if name in offered and name not in banned)
    if not found:
        raise _Refused(
            f"not supported: the kernel offers {', '.join(offered) or 'no method'},"
            f" policy allows {', '.join(terms.methods) or 'none'}"
            + (f", and {', '.join(sorted(banned))} would kill this part" if banned else "")
        )
    return found


def _refuse_held(holders: Holders) -> None:
    found = tuple(holders())
    if found:
        names = ", ".join(f"{one.name} (pid {one.pid})" for one in found)
        raise _Refused(f"held by {names}", found)


def _refuse_driven(function: Function, terms: Terms) -> None:
    if function.virtual_functions:
        raise _Refused(
            f"{function.virtual_functions} virtual functions of it are switched on: guests may be"
            " using them"
        )
    driver = function.driver
    if driver is None or driver in terms.standing:
        return
    if not terms.unbinds:
        raise _Refused(f"driver {driver} is bound, and a reset pulls the device from under it")
    if driver == NVIDIA_DRIVER and not _lock(function).exists():
        raise _Refused(_NO_LOCK)


def _unbind(function: Function, terms: Terms, write: Write) -> None:
    driver = function.driver
    if driver is None or driver in terms.standing:
        return
    if driver == NVIDIA_DRIVER:
        _lock_nvidia(function, write)
    _act(write, function.path / "driver/unbind", function.address, f"unbinding {driver}")
    if function.driver is not None:
        raise BackendFailed(f"{function.address} is still bound to {function.driver} after unbind")


def _lock_nvidia(function: Function, write: Write) -> None:
    """Its unbind never returns while anybody uses the device: only with its lock taken (10.13)."""
    lock = _lock(function)
    try:
        write(lock, "1")
    except FileNotFoundError:
        raise _Refused(_NO_LOCK) from None
    except OSError as error:
        raise BackendFailed(
            f"taking the driver's unbind lock failed at {lock}: {_errno(error)}"
        ) from error
    if read_text(lock) != "1":
        raise _Refused("the nvidia driver says the device is in use (unbindLock stays 0)")


def _unlock_nvidia(function: Function, write: Write) -> None:
    """Give the lock back where the driver is still bound: it would let nobody open the device."""
    if function.driver == NVIDIA_DRIVER and read_text(_lock(function)) == "1":
        _act(write, _lock(function), "0", "giving the driver's unbind lock back")


def _lock(function: Function) -> Path:
    return function.root / "proc/driver/nvidia/gpus" / function.address / "unbindLock"


# --- the reset itself -----------------------------------------------------------------------------


@contextmanager
def _noted(function: Function, write: Write) -> Iterator[None]:
    """Write down how the function is, and put it back to that at the end."""
    methods, driver = " ".join(function.reset_methods() or ()), function.driver or ""
    note = _note(function)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_suffix(".draft")
        draft.write_text(json.dumps({"methods": methods, "driver": driver}))
        draft.replace(note)
    except OSError as error:
        raise BackendFailed(
            f"{function.address} is not reset: what a killed reset would leave cannot be noted at"
            f" {note}: {error.strerror}",
            remedy=f"make {note.parent} writable for the node service",
        ) from error
    try:
        yield
    finally:
        if function.present:
            _restore(function, methods, driver, write)
        note.unlink(missing_ok=True)


def _restore(function: Function, methods: str, driver: str, write: Write) -> None:
    _unlock_nvidia(function, write)
    if " ".join(function.reset_methods() or ()) != methods:
        _act(write, function.path / "reset_method", methods, "restoring its reset methods")
    if driver and function.driver is None:
        bind = function.root / PCI_DEVICES.replace("devices", "drivers") / driver / "bind"
        _act(write, bind, function.address, f"binding {driver} again")


def _strike(function: Function, methods: Sequence[str], write: Write) -> str:
    """Reset by the first method that works; its name."""
    failed = []
    for method in methods:
        try:
            write(function.path / "reset_method", method)
            write(function.path / "reset", "1")
        except OSError as error:
            failed.append(f"{method}: {_errno(error)}")
            continue
        return method
    raise BackendFailed(f"the reset of {function.address} failed ({'; '.join(failed)})")


def _prove_back(function: Function, width: int | None, settle_s: float) -> None:
    """It answers, at the width it had."""
    deadline = time.monotonic() + settle_s
    while True:
        life, now = function.life(), function.link().width
        if life is Life.ALIVE and (width is None or (now or 0) >= width):
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(LINK_STEP_S)
    if life is not Life.ALIVE:
        raise DeviceLost(f"{function.address} is {life} after its reset")
    raise BackendFailed(
        f"the link of {function.address} came back x{now or '?'} and was x{width} before its reset"
    )


def _act(write: Write, path: Path, text: str, what: str) -> None:
    try:
        write(path, text)
    except OSError as error:
        raise BackendFailed(f"{what} failed at {path}: {_errno(error)}") from error


def _errno(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    return f"{name} {error.strerror}".strip()


def _note(function: Function) -> Path:
    return function.root / NOTES / f"{function.address}.json"
