"""What a delete leaves behind: finalizers, pods that end in their own time, orphans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.kube.base import Object, Resource
from tests.lab.apiserver import refusal, times
from tests.lab.apiserver.kinds import Kind
from tests.lab.apiserver.stored import Stored

GRACE_DEFAULT_S = 30
_FATES = {"UID": "deleted and then recreated", "ResourceVersion": "modified"}


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What must hold for a delete. `grace_s` 0 is a forced delete of a pod."""

    uid: str = ""
    resource_version: str = ""
    grace_s: int | None = None

    def check(self, live: Stored, resource: Resource) -> None:
        """Raise `Refusal` 409 when a condition does not hold."""
        for word, wanted, found in (
            ("UID", self.uid, live.uid),
            ("ResourceVersion", self.resource_version, live.version),
        ):
            if wanted and wanted != found:
                why = (
                    f"the {word} in the precondition ({wanted}) does not match the {word} in record"
                    f" ({found}). The object might have been {_FATES[word]}"
                )
                raise refusal.modified(resource, str(live.object["metadata"]["name"]), why)


def after_delete(kind: Kind, live: Stored, grace_s: int | None, now: float) -> Object | None:
    """The object that stays, or None when it is removed at once."""
    metadata = live.object["metadata"]
    grace = _grace(live.object, grace_s) if kind.graceful else 0
    if not metadata.get("finalizers") and not grace:
        return None
    pending = metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" in metadata and (pending is None or pending <= grace):
        return live.object
    found = {
        **metadata,
        "deletionTimestamp": times.stamp(now + grace),
        "deletionGracePeriodSeconds": grace,
    }
    if kind.generation and "generation" in metadata:
        found["generation"] = int(metadata["generation"]) + 1
    return {**live.object, "metadata": found}


def _grace(pod: Object, asked: int | None) -> int:
    """Seconds kubelet gets; none for a pod that runs nowhere or has ended."""
    phase = pod.get("status", {}).get("phase", "")
    if not pod.get("spec", {}).get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    if asked is not None:
        return asked
    return int(pod["spec"].get("terminationGracePeriodSeconds", GRACE_DEFAULT_S))


def orphans(entries: Iterable[tuple[Kind, Stored]]) -> Sequence[tuple[Kind, Stored]]:
    """The objects whose owners are all gone and that are not being deleted yet."""
    everything = list(entries)
    living = {entry.uid for _kind, entry in everything}
    return [
        (kind, entry)
        for kind, entry in everything
        if (owners := entry.object["metadata"].get("ownerReferences"))
        and not any(owner.get("uid") in living for owner in owners)
        and "deletionTimestamp" not in entry.object["metadata"]
    ]
