"""An archive in memory, for the rules of copying alone; and what counts what an archive holds."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.core import errors
from fleet.evidence import archive_names
from fleet.evidence.archive import Archive, Reference, Stored


@dataclass
class MemoryArchive:
    """Keeps what it is given. `away` makes it unreachable, `before` runs before each put."""

    place: str = "s3://memory/fleet"
    away: str = ""
    unfit: str = ""
    name: str = "first"
    """Its identity: another bucket of the same name has another."""
    before: Callable[[str], None] = lambda _key: None
    objects: dict[str, list[tuple[Stored, bytes]]] = field(default_factory=dict)
    puts: Counter[str] = field(default_factory=Counter)

    def _answer(self) -> None:
        if self.away:
            raise errors.LedgerUnavailable(self.away)

    def prove(self) -> None:
        """Unless told otherwise, it keeps."""
        self._answer()
        if self.unfit:
            raise errors.SettingsInvalid(self.unfit)

    def identity(self) -> str:
        """As it was made."""
        self._answer()
        return self.name

    def keep(self, key: str, content: bytes) -> Reference:
        """One version for a name."""
        self._answer()
        if len(content) > archive_names.most_bytes(key):
            raise errors.EvidenceInvalid(f"{key} is too large")
        self.before(key)
        self.puts[key] += 1
        there = self.objects.get(key)
        if there is None:
            self.lay(key, content)
        elif not any(found == content for _, found in there):
            raise errors.EvidenceConflict(f"{key} is another", key=key)
        stored, _ = next(one for one in reversed(self.objects[key]) if one[1] == content)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return Reference(self.place, key, stored.version, digest, there is None)

    def lay(self, key: str, content: bytes, **facts: Any) -> None:
        """A newer version, as whoever has the rights may put it."""
        versions = self.objects.setdefault(key, [])
        versions[:] = [(replace(one, latest=False), found) for one, found in versions]
        version = f"v{len(versions) + 1}"
        stored = Stored(key, version, len(content), time.time(), **facts)
        versions.insert(0, (stored, content))

    def read(self, key: str, version: str = "") -> bytes:
        """A version; the newest without one."""
        self._answer()
        for stored, content in self.objects.get(key, ()):
            fits = len(content) <= archive_names.most_bytes(key) and archive_names.matches(
                key, content
            )
            if version in ("", stored.version) and fits:
                return content
        raise errors.InputInvalid(f"{key} {version} is not there")

    def stored(self, prefix: str) -> Iterator[Stored]:
        """All versions, by name."""
        self._answer()
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield from (stored for stored, _ in self.objects[key])

    def below(self, prefix: str) -> Iterator[str]:
        """Folders and objects there."""
        self._answer()
        rest = {key.removeprefix(prefix) for key in self.objects if key.startswith(prefix)}
        yield from {
            prefix + name.partition("/")[0] + name.partition("/")[1] for name in sorted(rest)
        }


def doubled(archive: Archive) -> list[str]:
    """Names with more than one version."""
    counts = Counter(one.key for one in archive.stored(""))
    return [key for key, count in counts.items() if count > 1]


def certificates(archive: Archive) -> int:
    """How many certificates it holds."""
    return sum(1 for _ in archive.stored(archive_names.CERTIFICATES))
