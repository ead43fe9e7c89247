"""What evidence asks of an archive: keep objects for years, give them back, never take one away.

An archive adds only. What it holds under a name stays the answer to that name: a second, other
content is an error of whoever offers it, and is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reference:
    """Where something is kept, exactly: one version of one object."""

    place: str
    """Of the archive, such as ``s3://bucket/prefix``."""
    key: str
    """Name below it (`fleet.evidence.archive_names`)."""
    version: str
    digest: str
    """``sha256:<hex>`` of the content."""
    fresh: bool = True
    """False: it was there before."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object, as a listing tells it."""

    key: str
    version: str
    size: int
    """Bytes."""
    at: float
    """When it was stored, by the archive's clock, seconds since the epoch."""
    latest: bool = True
    marker: bool = False
    """A deletion: it hides what is below and has no content."""


class Archive(Protocol):
    """Keeps evidence. Safe for threads.

    All methods raise `LedgerUnavailable` when the archive does not answer in time, and
    `SettingsInvalid` when it is not there, a right is missing or it cannot keep evidence.
    """

    @property
    def place(self) -> str:
        """How people name it."""
        ...

    def prove(self) -> None:
        """Prove that what is put here is kept, by what is read back. Raises `SettingsInvalid`."""
        ...

    def identity(self) -> str:
        """What tells this archive from any other of the same name; made when it is asked first."""
        ...

    def keep(self, key: str, content: bytes) -> Reference:
        """Store `content` under `key` and read it back. Repeating it changes nothing.

        What was there before without a retention gets one. Raises `EvidenceConflict` when something
        else is kept under this name, `EvidenceInvalid` when it is too large for it.
        """
        ...

    def read(self, key: str, version: str = "") -> bytes:
        """The content of one version; the newest without one.

        Raises `InputInvalid`: there is none, or it cannot be what is kept under this name.
        """
        ...

    def below(self, prefix: str) -> Iterator[str]:
        """Names of what lies directly there: folders end with a slash, objects do not."""
        ...

    def stored(self, prefix: str) -> Iterator[Stored]:
        """Every version of every object whose name begins so, by name, newest version first."""
        ...


Opener = Callable[[], Archive]
"""Opens the archive that the settings name; asks it nothing."""
