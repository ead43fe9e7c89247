"""Bearer tokens that change under a running process (case B78).

kubelet replaces a service account's token file long before the token in it expires. The file is
read again by period, and at once when the server refuses the token. No token appears in a message,
a representation or a pickle.

A program that gives credentials may hang. `Attempt` bounds the wait for it and ends the program:
left alone, one would stay behind for every renewal.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NoReturn, Protocol, TypeVar

from fleet import errors
from fleet.clock import Clock

PERIOD_S = 60.0
"""Period, s, in which a token file is read again: kubelet renews at 80 % of an hour or more."""

END_S = 1.0
"""Longest wait, s, for a program that was ended to be gone."""

RETRY_S = 1.0
"""Time, s, until a file that could not be read is tried again."""

Found = TypeVar("Found")


class Credential(Protocol):
    """What authenticates us. Safe for threads."""

    def header(self) -> str:
        """Value of the Authorization header; "" when a client certificate stands for us."""
        ...

    def renew(self, used: str) -> str:
        """The server refused `used`: read again if nobody has yet, and give what is there now.

        Raises `ApiUnavailable` when what gives the credential hangs.
        """
        ...


class TokenFile:
    """The token in a file. While the file is missing or unfit, the last good token stays."""

    def __init__(self, path: Path, *, clock: Clock, period_s: float = PERIOD_S) -> None:
        """Reads the file. Raises `SettingsInvalid` when it holds no token now."""
        self._path = path
        self._clock = clock
        self._period_s = period_s
        self._lock = threading.Lock()
        self._header = ""
        self._due = clock.monotonic()
        self._read()
        if not self._header:
            raise errors.SettingsInvalid(
                f"the file {path} holds no token that can be used",
                remedy="check that the service account's token is mounted and readable",
                problems=[str(path)],
            )

    def header(self) -> str:
        """``Bearer`` and the token, at most a period old."""
        with self._lock:
            if self._clock.monotonic() >= self._due:
                self._read()
            return self._header

    def renew(self, used: str) -> str:
        """As `Credential.renew`."""
        with self._lock:
            if self._header == used:
                self._read()
            return self._header

    def _read(self) -> None:
        found = _token(self._path)
        self._due = self._clock.monotonic() + (self._period_s if found else RETRY_S)
        if found:
            self._header = f"Bearer {found}"

    def __repr__(self) -> str:
        return f"TokenFile({str(self._path)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token stays in its process: open the file again in the other one")


class Attempt(Generic[Found]):
    """One run of `load` in a thread of its own, from the start of which on `timeout_s` are waited.

    Any number of threads may wait for the same attempt.
    """

    def __init__(self, load: Callable[[], Found], *, timeout_s: float) -> None:
        """Begins. `load` may start programs, and raise `SettingsInvalid`."""
        self._load = load
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._found: list[Found | errors.SettingsInvalid] = []
        self._cut = False
        self._thread = threading.Thread(target=self._run, name="kubeconfig", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether `load` has not come to an end."""
        return self._thread.is_alive()

    @property
    def overdue(self) -> bool:
        """Whether it hangs: it is running, and nobody waits for it any more."""
        return self.running and time.monotonic() >= self._until

    def result(self) -> Found | None:
        """What `load` returned; raises what it raised. None: not in time, and its programs ended."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self.running:
            self._cut = True
            for process in list(_children("self", str(self._thread.native_id))):
                _end(process)
            self._thread.join(END_S)
        found = self._found[0] if self._found and not self._cut else None
        if isinstance(found, errors.SettingsInvalid):
            raise found
        return found

    def _run(self) -> None:
        try:
            self._found.append(self._load())
        except errors.SettingsInvalid as error:
            self._found.append(error)


def _children(process: str, thread: str) -> Iterator[int]:
    """Processes that a thread of a process started, and theirs in turn; none where unknown."""
    try:
        listed = Path("/proc", process, "task", thread, "children").read_text().split()
    except OSError:
        return
    for child in listed:
        yield int(child)
        try:
            threads = os.listdir(f"/proc/{child}/task")
        except OSError:
            continue
        for found in threads:
            yield from _children(child, found)


def _end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return


def usable(header: str) -> bool:
    """Whether a header value can be sent as it is (a line break in it would be an error text)."""
    return header.isascii() and header.isprintable()


def _token(path: Path) -> str:
    try:
        found = path.read_bytes().strip().decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return found if usable(found) and " " not in found else ""
