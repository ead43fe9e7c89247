"""The coordinator's part of an archive: countersignatures, campaign runs as they ended, key lists.

Runs that ended are taken as they end (`take`), and all that the store still has when the archive is
opened (`look`): a coordinator may have died in between. A run that is resumed and ends again has
another record, which is kept besides the first. The list of keys is looked for at every turn, since
another process signs it, and goes first: countersignatures name it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.model import Digest
from fleet.evidence import archive_names, dsse, heads, kept_list, layout
from fleet.evidence.archive import Archive
from fleet.evidence.keys import SHORT_ID, KeyRing
from fleet.evidence.log_feed import LogFeed, Whole
from fleet.stores.base import RunRecord, RunState

RUNS_KEPT = 1000
"""Runs and lists whose copying is remembered: more than any store keeps."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run, or a list of keys, to be copied."""

    name: str
    key: str
    content: bytes
    at: float


class CoordinatorFeed(LogFeed):
    """What of the coordinator's word is still to be copied."""

    def __init__(self, state: Path, runs: Callable[[], Iterable[RunRecord]], *, place: str) -> None:
        """`runs` reads those that the store still has; `place` is the archive's."""
        directory, cursor = layout.heads_directory(state), layout.archive_cursor(state)
        super().__init__(directory, cursor, place=place)
        self._state = state
        self._runs = runs
        self._copied: dict[str, None] = {}
        self._lists: dict[str, Ended] = {}
        self._list_seen: tuple[int, ...] = ()
        self._ended: dict[str, Ended] = {}
        self._refused: dict[str, str] = {}

    def look(self) -> None:
        """Find all runs that ended, also by other processes. Raises as the store does."""
        self.take(self._runs())

    def take(self, records: Iterable[RunRecord]) -> None:
        """Take those of `records` that ended."""
        found = [_ended(one) for one in records if one.state is not RunState.RUNNING]
        with self._guard:
            self._follow()
            for one in found:
                if one.key not in self._copied:
                    self._ended.setdefault(one.key, one)

    def begin(self) -> None:
        """Offer the coordinator's keys, and all runs that ended. Raises as the store does."""
        keys = layout.coordinator_keys_directory(self._state)
        self.offer(
            Whole(f"key {key.key_id[:SHORT_ID]}", archive_names.public_key(key.key_id), key.pem())
            for key in KeyRing.owned(keys, layout.COORDINATOR_STEM)
        )
        self.look()

    def next(self) -> Any:
        """The list of keys, the next countersignature, then the next run."""
        with self._guard:
            follows = super().next()
            self._look_for_list()
            lists, runs = (
                next((one for key, one in found.items() if key not in self._refused), None)
                for found in (self._lists, self._ended)
            )
            return lists or follows or runs

    def send(self, archive: Archive, item: Any) -> None:
        """Copy one."""
        if isinstance(item, Ended | Whole):
            archive.keep(item.key, item.content)
            return
        archive.keep(archive_names.head(item.number, item.digest), self.envelope(item))

    def done(self, item: Any, refused: str = "") -> None:
        """It is copied, or the archive has something else in its place."""
        with self._guard:
            if not isinstance(item, Ended):
                super().done(item, refused)
            elif refused:
                self._refused[item.key] = refused
            else:
                self._ended.pop(item.key, None)
                self._lists.pop(item.key, None)
                self._refused.pop(item.key, None)
                self._copied[item.key] = None

    def again(self) -> None:
        """Offer what was set aside once more."""
        with self._guard:
            self._refused.clear()
            super().again()

    def waiting(self) -> tuple[int, float]:
        """How much is not copied, and of when the oldest is."""
        with self._guard:
            count, oldest_at = super().waiting()
            self._look_for_list()
            ended = [*self._lists.values(), *self._ended.values()]
            times = [one.at for one in ended] + ([oldest_at] if oldest_at else [])
            return count + len(ended), min(times, default=0.0)

    def aside(self) -> list[str]:
        """Why each was set aside."""
        with self._guard:
            return [*super().aside(), *self._refused.values()]

    def forget(self) -> None:
        """Offer everything again."""
        super().forget()
        self._copied = {}
        self._list_seen = ()

    def as_json(self) -> dict[str, Any]:
        """What the file says."""
        return {**super().as_json(), "runs": list(self._copied)[-RUNS_KEPT:]}

    def load(self) -> dict[str, Any]:
        """Read the file."""
        found = super().load()
        runs = found.get("runs", ())
        self._copied = dict.fromkeys(map(str, runs)) if isinstance(runs, list) else {}
        return found

    def issued_at(self, envelope: bytes) -> float:
        """When a countersignature was made. Raises `EvidenceInvalid`."""
        return heads.read(envelope).issued_at

    def _look_for_list(self) -> None:
        """Queue the list of keys that is there now. `verify` names one that cannot be read.

        A list that cannot be read must not hold up the rest.
        """
        try:
            stat = layout.key_list(self._state).stat()
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if seen == self._list_seen:
                return
            found = kept_list.present(self._state)
        except (OSError, errors.FleetError):
            return
        self._list_seen = seen
        if found is None:
            return
        key = archive_names.key_list(found.listed.number, found.name.digest)
        if key not in self._copied:
            name = f"list of keys {found.listed.number}"
            one = Ended(name, key, found.content, found.listed.issued_at)
            self._lists.setdefault(key, one)


def _ended(record: RunRecord) -> Ended:
    found = record.model_dump(mode="json")
    content = json.dumps(found, sort_keys=True, separators=(",", ":")).encode()
    digest = Digest(f"sha256:{hashlib.sha256(content).hexdigest()}")
    key = archive_names.run(record.id, dsse.moment(record.started_at), digest)
    return Ended(f"run {record.id}", key, content, record.finished_at or record.started_at)
