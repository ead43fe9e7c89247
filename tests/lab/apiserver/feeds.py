"""A watch: the changes of one kind that a selection sees, in order, from a version on."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass

from fleet.core.clock import SystemClock
from fleet.kube.base import Change, Object, Selection
from tests.lab.apiserver.history import Entry
from tests.lab.apiserver.kinds import Kind
from tests.lab.apiserver.selectors import Match, field_match, label_match
from tests.lab.apiserver.shelf import Shelf


def matching(kind: Kind, selection: Selection) -> Match:
    """Whether an object is selected. Raises `Refusal` 400 for a selector nobody understands."""
    fields = field_match(selection.fields, kind.resource, kind.selectable)
    labels = label_match(selection.labels)
    namespace = selection.namespace

    def match(found: Object) -> bool:
        place = found.get("metadata", {}).get("namespace", "")
        return (not namespace or place == namespace) and fields(found) and labels(found)

    return match


@dataclass(frozen=True, slots=True)
class Seen:
    """One change as a watch reports it; `text` is the object as JSON."""

    change: Change
    text: str


class Feed:
    """The changes after a version. Made by the engine; one reader."""

    def __init__(
        self, changed: threading.Condition, shelf: Shelf, kind: Kind, match: Match, version: int
    ) -> None:
        """`changed` is the engine's lock and signal."""
        self._changed = changed
        self._shelf = shelf
        self._kind = kind
        self._match = match
        self.version = version
        """Everything up to here was delivered."""

    def poll(self, timeout_s: float) -> list[Seen]:
        """The next changes, waiting up to `timeout_s` seconds for one; maybe none.

        Raises `Refusal` 410 when history was forgotten that this feed has not delivered.
        """
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_s
        with self._changed:
            while True:
                entries = self._shelf.since(self._kind.resource, self.version)
                self.version = max(self.version, self._shelf.version)
                seen = [found for entry in entries if (found := self._seen(entry)) is not None]
                left = deadline - clock.monotonic()
                if seen or left <= 0:
                    return seen
                self._changed.wait(left)

    def _seen(self, entry: Entry) -> Seen | None:
        now = not entry.deleted and self._match(json.loads(entry.after))
        then = bool(entry.before) and self._match(json.loads(entry.before))
        if now:
            return Seen(Change.MODIFIED if then else Change.ADDED, entry.after)
        return Seen(Change.DELETED, entry.after) if then else None
