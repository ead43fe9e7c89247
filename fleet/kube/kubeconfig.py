"""Credentials of a kubeconfig, renewed by reading it again; programs that give them may hang.

Such a program gets a time, and is ended then with all that it started: left alone, one would stay
behind for every renewal. One attempt runs at a time, whoever asks; while none helps, requests go on
with the old credential, and fail at once when the server refuses that.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NoReturn, Protocol, TypeVar

from fleet.core import errors
from fleet.core.clock import Clock

EXPIRY_LEAD_S = 60.0
"""How long, s, before its stated end an exec credential is renewed."""

RENEW_GAP_S = 10.0
"""Shortest time, s, from the end of one renewal to the start of the next."""

END_S = 1.0
"""Longest wait, s, for a program that was ended to be gone."""


class Given(Protocol):
    """What a reading of the configuration gave."""

    @property
    def header(self) -> str:
        """Value of the Authorization header, "" without one."""
        ...

    @property
    def expires_at(self) -> float:
        """When it ends, seconds since the epoch."""
        ...


Loaded = TypeVar("Loaded")
Found = TypeVar("Found", bound=Given)


class RenewedCredential(Generic[Found]):
    """A credential of a kubeconfig: static, or from an exec plugin and read again when it ends."""

    def __init__(
        self, source: Found, load: Callable[[], Found], *, clock: Clock, timeout_s: float
    ) -> None:
        """`load` reads the configuration again; `adopt` may be set to learn what it found."""
        self._source = source
        self._load = load
        self._clock = clock
        self._timeout_s = timeout_s
        self._next = float("-inf")
        self._attempt: Attempt[Found] | None = None
        self._lock = threading.Lock()
        self._hung = False
        self.adopt: Callable[[Found], None] = lambda _: None

    def header(self) -> str:
        """As `Credential.header`. One request renews; others go on with what is still valid."""
        with self._lock:
            left_s = self._source.expires_at - self._clock.now()
            under_way = self._attempt is not None and self._attempt.running
            if left_s > EXPIRY_LEAD_S or (under_way and left_s > 0):
                return self._source.header
            attempt = self._begun()
        return self._renewed(attempt)

    def renew(self, used: str) -> str:
        """As `Credential.renew`."""
        with self._lock:
            if self._source.header != used:
                return self._source.header
            attempt = self._begun()
        renewed = self._renewed(attempt)
        if self._hung and renewed == used:
            raise errors.ApiUnavailable(
                "the credential is refused, and the exec plugin that gives another one hangs: no"
                f" answer in {self._timeout_s:g} s",
                remedy="run the command of the kubeconfig's user by hand and see what it waits for",
                status=401,
                retry_after_s=RENEW_GAP_S,
            )
        return renewed

    def _begun(self) -> Attempt[Found] | None:
        """The attempt to wait for, one at a time; None: it hangs, or the last one was just now."""
        if self._attempt is not None:
            return None if self._attempt.overdue else self._attempt
        if self._clock.monotonic() < self._next:
            return None
        self._attempt = Attempt(self._load, timeout_s=self._timeout_s)
        return self._attempt

    def _renewed(self, attempt: Attempt[Found] | None) -> str:
        """The header once `attempt` has ended; whoever sees that first takes over what it found."""
        found: Found | None = None
        if attempt is None:
            return self._source.header
        hung = False
        try:
            found = attempt.result()
            hung = found is None
        except errors.SettingsInvalid:
            pass  # the credential of before stays, and the server judges it
        with self._lock:
            if self._attempt is attempt:
                self._attempt = attempt if attempt.running else None
                self._next = self._clock.monotonic() + RENEW_GAP_S
                self._hung = hung
                if found is not None:
                    self._source = found
                    self.adopt(found)
            return self._source.header

    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential stays in its process: connect again in the other one")


class Attempt(Generic[Loaded]):
    """One run of `load` in a thread of its own, from the start of which on `timeout_s` are waited.

    Any number of threads may wait for the same attempt.
    """

    def __init__(self, load: Callable[[], Loaded], *, timeout_s: float) -> None:
        """Begins. `load` may start programs, and raise `SettingsInvalid`."""
        self._load = load
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._found: list[Loaded | errors.SettingsInvalid] = []
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

    def result(self) -> Loaded | None:
        """What `load` returned or raises. None: not in time, so its programs were ended."""
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
            threads = [path.name for path in Path("/proc", child, "task").iterdir()]
        except OSError:
            continue
        for found in threads:
            yield from _children(child, found)


def _end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return
