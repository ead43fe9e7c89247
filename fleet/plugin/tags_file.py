"""The list of tag keys as a file that somebody else replaces: read again whenever it changed."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from fleet.core.disk import read_regular, shown
from fleet.plugin import tags_list
from fleet.plugin.tags import TagKeys, TagKeysUnreadable


class TagKeyFile:
    """The list in a file, signed by one of these roots (key ids). Safe for threads."""

    def __init__(self, path: Path, roots: Collection[str]) -> None:
        self._path = path
        self._roots = frozenset(roots)
        self._lock = threading.Lock()
        self._content: bytes | None = None
        self._keys = TagKeys()

    def keys(self) -> TagKeys:
        """The list as it is now. Raises `TagKeysUnreadable`.

        A list older than one seen before is refused: it might lack a revocation.
        """
        try:
            content = read_regular(self._path, most_bytes=tags_list.MOST_BYTES, follow_links=True)
        except OSError as error:
            raise TagKeysUnreadable(
                f"the list of tag keys, {shown(self._path)}, cannot be read: {error.strerror}"
            ) from error
        with self._lock:
            if content == self._content:
                return self._keys
            found = tags_list.read(content, self._roots)
            if found.number < self._keys.number:
                raise TagKeysUnreadable(
                    f"the list of tag keys has the number {found.number}, number"
                    f" {self._keys.number} was seen before: it may lack revocations",
                    remedy="put the newest list back; restart the process if it is lost for good",
                )
            self._content, self._keys = content, found
            return found
