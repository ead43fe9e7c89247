"""Which quarantines the API shows for certain (promise 6). Pure.

A quarantine is visible when, in a complete pool, every entry of the device is tainted as
quarantined, or the device is not there at all: either way no scheduler can allocate it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from fleet.kube.base import Object, name_of, version_of
from fleet.plugin.slices.pool_view import PoolReading, blocked, devices_of

Version = tuple[str, str]
"""Name and resourceVersion of a slice."""


def version(found: Object) -> Version:
    """What a slice is told apart by from its earlier and later contents."""
    return (name_of(found).name, version_of(found))


def confirmed(
    quarantined: Mapping[str, float],
    *,
    names: Mapping[str, str],
    reading: PoolReading,
    key: str,
    doubtful: AbstractSet[Version],
) -> Mapping[str, float]:
    """Those of `quarantined` (UUID to since) that can be seen, whatever still may land.

    `names`: device name by UUID; `key`: of the taint; `doubtful`: slices that, as they are, may
    still be overwritten by what an earlier process sent just before it ended. An absent device
    counts only if no slice is doubtful.
    """
    if not reading.complete:
        return {}
    reliable = [part for part in reading.slices if version(part) not in doubtful]
    there = {str(entry.get("name")) for part in reliable for entry in devices_of(part)}
    found = {}
    for uuid, since in quarantined.items():
        name = names[uuid]
        entries = reading.devices.get(name, ())
        tainted = bool(entries) and all(
            blocked(entry) and any(taint.get("key") == key for taint in entry.get("taints") or ())
            for entry in entries
        )
        if (tainted and name in there) or (not entries and len(reliable) == len(reading.slices)):
            found[uuid] = since
    return found
