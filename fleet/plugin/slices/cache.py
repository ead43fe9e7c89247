"""What the API server holds about one node's slices, as read last, and whether it may have changed.

The publisher never compares with what it once wrote: slices vanish behind its back (kubelet removes
those of a plugin that was away, garbage collection those of a re-created Node, B34). A watch at the
edge feeds `changed`; the next step then lists. Without any event a listing is made every
`resync_s`, so that a deaf watch costs time and never the truth.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from fleet.kube.base import (
    NODES,
    SLICES,
    Change,
    Cluster,
    Event,
    Name,
    Object,
    Selection,
    name_of,
    object_in,
    uid_of,
    version_of,
)

OWN_WRITES_KEPT = 256
"""Versions remembered to recognise our own writes in the watch."""


class NodeSlices:
    """All slices of one node, of any driver, and the Node. `changed` may come from any thread."""

    def __init__(self, cluster: Cluster, *, node: str, driver: str, resync_s: float) -> None:
        """`resync_s`: age, s, at which a listing is made again.

        Every change of `_dirty` is made under the lock: the watch's thread and the step's both
        make them, and one that got lost would leave a change unread.
        """
        self._cluster = cluster
        self._node_name = node
        self._driver = driver
        self._resync_s = resync_s
        self._lock = threading.Lock()
        self._known: dict[str, Object] = {}
        self._seen: set[str] = set()
        self._own: deque[tuple[str, str]] = deque(maxlen=OWN_WRITES_KEPT)
        self._dirty = True
        self._due = 0.0
        self.node: Object = {}
        """The Node object as read last."""
        self.skipped = 0
        """Entries of the last listing that were no objects (B19)."""

    @property
    def ours(self) -> Sequence[Object]:
        """Slices of our driver, in the order of their names."""
        return self._of(own=True)

    @property
    def foreign(self) -> Sequence[Object]:
        """Slices of other drivers."""
        return self._of(own=False)

    @property
    def node_uid(self) -> str:
        """UID of the Node as read last."""
        return uid_of(self.node)

    @property
    def current(self) -> bool:
        """Whether the listing is younger than every write and every change heard of."""
        with self._lock:
            return not self._dirty

    def changed(self, event: Event) -> None:
        """Take what a watch on the node's slices reports."""
        with self._lock:
            if event.change is Change.SYNCED:
                self._dirty |= self._seen != self._known.keys()
                self._seen = set()
                return
            name, version = name_of(event.object).name, version_of(event.object)
            known = self._known.get(name)
            if event.change is Change.DELETED:
                self._dirty |= known is not None and uid_of(known) == uid_of(event.object)
                return
            self._seen.add(name)
            if (name, version) not in self._own:
                self._dirty |= known is None or version_of(known) != version

    def refresh(self, now: float) -> bool:
        """List again when something may have changed or the listing is old; whether it did.

        `now`: seconds of a clock that never goes back. Raises what `Cluster.get` and `Cluster.list`
        raise; the cache counts as outdated then.
        """
        with self._lock:
            if not self._dirty and now < self._due:
                return False
            self._dirty = False
        try:
            node = self._cluster.get(NODES, Name(self._node_name))
            listing = self._cluster.list(
                SLICES, Selection(fields=f"spec.nodeName={self._node_name}")
            )
        except Exception:
            self.expire()
            raise
        with self._lock:
            self.node = node
            self.skipped = listing.skipped
            self._known = {name_of(found).name: found for found in listing.items}
            self._seen &= self._known.keys()
        self._due = now + self._resync_s
        return True

    def written(self, answer: Object) -> None:
        """Note the answer to a write of ours; it is read back before anything rests on it."""
        with self._lock:
            self._own.append((name_of(answer).name, version_of(answer)))
            self._dirty = True

    def expire(self) -> None:
        """The cache is known to be outdated."""
        with self._lock:
            self._dirty = True

    def _of(self, *, own: bool) -> Sequence[Object]:
        with self._lock:
            return tuple(
                self._known[name]
                for name in sorted(self._known)
                if (object_in(self._known[name].get("spec")).get("driver") == self._driver) is own
            )
