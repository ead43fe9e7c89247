"""Threads that have what their process does not show: descriptors of their own, or its life.

``/proc/<pid>`` shows the first thread's view. A thread may leave the common table of descriptors,
and the first one may end while others live: then it shows no descriptor, memory or command line.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_COMPARE = {"x86_64": 312, "aarch64": 272, "riscv64": 272}
"""Number of the system call that compares what two threads have, by machine."""
_FILES = 2
_KEPT = 2


def views(process: Path) -> tuple[Path, ...]:
    """The process and each further thread of it, as directories that show what that one has.

    One that ends meanwhile has none. Raises OSError where they may not be listed.
    """
    try:
        names = os.listdir(process / "task")  # noqa: PTH208 - runs for every process of a node
    except (FileNotFoundError, ProcessLookupError):
        return (process,)
    if len(names) < 2:
        return (process,)
    others = sorted(int(name) for name in names if name != process.name)
    return (process, *(process / "task" / str(thread) for thread in others))


def tables(threads: tuple[Path, ...], *, comparable: bool) -> Iterator[Path]:
    """Those of a process's `views` that together show all descriptors it has.

    `comparable`: whether the kernel may be asked by these ids (`are_ours`). Without, and where it
    does not tell, each thread is one of them.
    """
    seen: list[int] = []
    for view in threads:
        thread = int(view.name)
        if comparable and any(_share(thread, other) for other in seen):
            continue
        # Comparing with all would take hostile threads' square; most share one of the last.
        seen = [*seen[1 - _KEPT :], thread]
        yield view


def living(threads: tuple[Path, ...], name: str) -> tuple[Path, bytes]:
    """A file that all living threads of a process show alike (``maps``, ``cmdline``): its contents.

    With the directory below proc that shows whoever has it; b"": there is nobody. Raises OSError
    where it may not be read.
    """
    process = threads[0]
    for view in threads:
        with suppress(FileNotFoundError, ProcessLookupError):
            if content := (view / name).read_bytes():
                return process.parent / view.name, content
    return process, b""


def are_ours(proc: Path) -> bool:
    """Whether `proc` counts processes as we do, so that its ids may be given to the kernel."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
    except (OSError, ValueError):
        return False
    return any(line.split() == ["NSpid:", str(os.getpid())] for line in lines)


def _share(one: int, other: int) -> bool:
    """Whether two threads have the same table of descriptors; False as well in doubt."""
    number = _COMPARE.get(platform.machine())
    return number is not None and _call()(number, one, other, _FILES, 0, 0) == 0


@cache
def _call() -> ctypes._NamedFuncPointer:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [ctypes.c_long] * 6
    call.restype = ctypes.c_long
    return call
