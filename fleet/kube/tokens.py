"""Bearer tokens that change under a running process (case B78).

kubelet replaces a service account's token file long before the token in it expires. The file is
read again by period, and at once when the server refuses the token. No token appears in a message,
a representation or a pickle.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn, Protocol

from fleet.core import errors
from fleet.core.clock import Clock

PERIOD_S = 60.0
"""Period, s, in which a token file is read again: kubelet renews at 80 % of an hour or more."""

RETRY_S = 1.0
"""Time, s, until a file that could not be read is tried again."""


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


def usable(header: str) -> bool:
    """Whether a header value can be sent as it is (a line break in it would be an error text)."""
    return header.isascii() and header.isprintable()


def _token(path: Path) -> str:
    try:
        found = path.read_bytes().strip().decode("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    return found if usable(found) and " " not in found else ""
