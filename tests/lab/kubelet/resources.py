"""Kubelet's claims: which pods use them, what is prepared, and the calls that follow from it.

The order of steps is kubelet's (reference 1.4, 1.5): checks that leave no trace, then the pod's
name in the checkpoint, then the call. The lock is not held during a call. Devices of a repeated
answer are appended, as kubelet 1.36 does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fleet.core import errors
from fleet.kube.base import Object, uid_of
from fleet.plugin.requests import AskedClaim, PreparedDevice
from tests.lab.kubelet import checkpoint
from tests.lab.kubelet.checkpoint import ClaimEntry
from tests.lab.kubelet.connection import Answer

ReadClaim = Callable[[str, str], Object]
"""(namespace, name) -> the claim at the API server. Raises `ApiNotFound` and its like."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod, as far as claims are concerned. `claims` are names in its namespace."""

    namespace: str
    name: str
    uid: str
    claims: tuple[str, ...] = ()


class DraCalls(Protocol):
    """The calls of one plugin instance."""

    def prepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        """One answer per UID. Raises `PluginUnavailable`, `InputInvalid`."""
        ...

    def unprepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        """One answer per UID. Raises `PluginUnavailable`, `InputInvalid`."""
        ...


class Resources:
    """Claims of one kubelet. A new object over the same file is kubelet started again."""

    def __init__(
        self,
        path: Path,
        *,
        read_claim: ReadClaim,
        find: Callable[[str], DraCalls],
        call_s: float,
        by_count: bool = False,
    ) -> None:
        """`path` is the checkpoint; `find` gives a driver's plugin or raises `PluginUnavailable`.
        `by_count`: take whoever leaves a claim of one pod for that pod, as kubelet 1.36.2 does
        (reference 1.5 a).

        Raises `CheckpointUnreadable`: kubelet does not start on a damaged file.
        """
        self._path = path
        self._read_claim = read_claim
        self._find = find
        self._call_s = call_s
        self._by_count = by_count
        self._lock = threading.Lock()
        self._entries = {(one.namespace, one.name): one for one in checkpoint.read(path)}
        self._store()

    def prepare(self, pod: PodIdentity) -> bool:
        """Prepare what is not yet prepared of the pod's claims; whether a plugin was asked.

        Raises `ClaimUnready` (a claim's own error, or a check before the call),
        `PluginUnavailable`, `InputInvalid`, and what reading a claim raises.
        """
        checked = [self._checked(pod, name) for name in pod.claims]
        with self._lock:
            entries = [self._referenced(pod, claim) for claim in checked]
            self._store()
            pending = [
                (entry, _drivers(claim))
                for entry, claim in zip(entries, checked, strict=True)
                if not entry.prepared
            ]
        drivers = sorted({driver for _, listed in pending for driver in listed})
        for driver in drivers:
            asked = [entry for entry, listed in pending if driver in listed]
            answers = self._find(driver).prepare(
                [entry.asked for entry in asked], timeout_s=self._call_s
            )
            for entry in asked:
                self._accept(driver, entry, answers[entry.uid])
        with self._lock:
            for entry, _ in pending:
                entry.prepared = True
            self._store()
        return bool(drivers)

    def unprepare(self, pod: PodIdentity) -> bool:
        """Drop the pod from its claims; those it was the last on are unprepared.

        Returns whether a plugin was asked. Raises as `prepare`; nothing is dropped then, except
        claims of which other pods remain.
        """
        with self._lock:
            found = [self._entries.get((pod.namespace, name)) for name in pod.claims]
        return self._unprepare(pod.uid, [entry for entry in found if entry is not None])

    def unprepare_absent(self, active: Iterable[str]) -> tuple[str, ...]:
        """Unprepare claims of pods that are not active any more; their UIDs (reconcile)."""
        alive = set(active)
        with self._lock:
            gone = {uid for entry in self._entries.values() for uid in entry.pods} - alive
        for uid in sorted(gone):
            self._unprepare(uid, [e for e in tuple(self._entries.values()) if uid in e.pods])
        return tuple(sorted(gone))

    def devices(self, pod: PodIdentity) -> tuple[PreparedDevice, ...]:
        """What the pod's containers get: all devices of all its claims."""
        with self._lock:
            entries = [self._entries.get((pod.namespace, name)) for name in pod.claims]
            return tuple(
                device
                for entry in entries
                if entry is not None
                for listed in entry.drivers.values()
                for device in listed
            )

    def entries(self) -> tuple[ClaimEntry, ...]:
        """All claims known now."""
        with self._lock:
            return tuple(self._entries.values())

    def _checked(self, pod: PodIdentity, name: str) -> Object:
        """The claim, found fit for a call. Leaves no trace."""
        claim = self._read_claim(pod.namespace, name)
        reserved = [one.get("uid") for one in _status(claim).get("reservedFor") or ()]
        if _status(claim).get("allocation") is None:
            raise errors.ClaimUnready(f"claim {name} is not allocated")
        if pod.uid not in reserved:
            raise errors.ClaimUnready(f"pod {pod.name}({pod.uid}) is not allowed to use {name}")
        for driver in _drivers(claim):
            self._find(driver)
        return claim

    def _referenced(self, pod: PodIdentity, claim: Object) -> ClaimEntry:
        name, uid = claim["metadata"]["name"], uid_of(claim)
        key = (pod.namespace, name)
        entry = self._entries.setdefault(key, ClaimEntry(pod.namespace, name, uid))
        if entry.uid != uid:
            raise errors.ClaimUnready(
                f"old claim {name} ({entry.uid}) still exists (previous pod force-deleted?)"
            )
        entry.pods.add(pod.uid)
        for driver in _drivers(claim):
            entry.drivers.setdefault(driver, [])  # it is told of the end even if the call fails
        return entry

    def _accept(self, driver: str, entry: ClaimEntry, answer: Answer) -> None:
        if answer.error:
            raise errors.ClaimUnready(f"{driver}: claim {entry.name}: {answer.error}")
        with self._lock:
            entry.drivers.setdefault(driver, []).extend(answer.devices)

    def _unprepare(self, pod_uid: str, entries: Sequence[ClaimEntry]) -> bool:
        with self._lock:
            last = [entry for entry in entries if self._is_last(entry, pod_uid)]
            for entry in entries:
                if entry not in last:
                    entry.pods.discard(pod_uid)
        called = False
        for driver, asked in self._by_driver(last).items():
            called = True
            answers = self._find(driver).unprepare(
                [entry.asked for entry in asked], timeout_s=self._call_s
            )
            for entry in asked:
                if answers[entry.uid].error:
                    raise errors.ClaimUnready(
                        f"{driver}: claim {entry.name}: {answers[entry.uid].error}"
                    )
        with self._lock:
            for entry in last:
                self._entries.pop((entry.namespace, entry.name), None)
            self._store()
        return called

    def _is_last(self, entry: ClaimEntry, pod_uid: str) -> bool:
        return len(entry.pods) <= 1 if self._by_count else not entry.pods - {pod_uid}

    def _by_driver(self, entries: Sequence[ClaimEntry]) -> dict[str, list[ClaimEntry]]:
        """Claims by the driver that is told of their end."""
        found: dict[str, list[ClaimEntry]] = {}
        for entry in entries:
            for driver in sorted(entry.drivers):
                found.setdefault(driver, []).append(entry)
        return found

    def _store(self) -> None:
        checkpoint.write(self._path, self._entries.values())


def _status(claim: Object) -> Any:
    return claim.get("status") or {}


def _drivers(claim: Object) -> tuple[str, ...]:
    results = _status(claim)["allocation"].get("devices", {}).get("results") or ()
    return tuple(sorted({result["driver"] for result in results}))
