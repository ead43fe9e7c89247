"""Instances of partitions: made where memory is to be reached through one, removed after that.

An instance of ours exists only while work or a claim holds its device. Before one is made a record
of it is in the journal, so that whatever a crash leaves behind is recognised: exactly that profile
and place, of the same boot, and not among the instances there were before. All others are somebody
else's: they are never touched, and count as a foreign holder of the memory they lie in.

Records are read inside the same turn of the driver in which instances are listed. What is made or
removed has its own turn, and its record is written before the one and dropped after the other: so
none of ours is ever taken for foreign.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from fleet.core import errors
from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import (
    BootId,
    ClaimUid,
    Device,
    OperationId,
    Process,
    ProcessKind,
    State,
    Uuid,
)
from fleet.devices.base import CanPartition, Instance
from fleet.node import instances, stays
from fleet.node.bounded import BoundedCalls
from fleet.node.instances import KEY, Record
from fleet.node.registry import Registry, Work

LOG = logging.getLogger(__name__)
READ_S = 40.0
CALL_S = 120.0
"""Longest that listing, and that making or removing may take, s: above what the back end allows
itself, so that a call given up here has ended there. Usually it is about one second."""
T = TypeVar("T")


class Partitions:
    """Instances of one node. Where the back end has none to make, all of this does nothing."""

    def __init__(self, registry: Registry, calls: BoundedCalls) -> None:
        self._registry = registry
        self._calls = calls
        self.troubles: tuple[str, ...] = ()
        """Why instances of ours that nobody needs were left by the last `settle`."""
        self.seen: dict[Uuid, tuple[Instance, ...]] = {}
        """Instances not ours by accelerator, as `strange` found them last."""

    # --- records ---

    def records(self) -> list[Record]:
        """The records of this boot."""
        meta = self._registry.journal.meta
        found = [
            instances.read(key, text) for key, text in list(meta.items()) if key.startswith(KEY)
        ]
        return [r for r in found if r is not None and r.boot_id == self._registry.boot_id]

    def _record(self, device: Uuid) -> Record | None:
        return next((record for record in self.records() if record.device == device), None)

    def _keep(self, record: Record) -> None:
        with self._registry.commit() as commit:
            commit.set_meta(f"{KEY}{record.device}", record.kept())
            if "gi" in record.ids:
                stay = stays.Stay(record.ids["gi"], record.units, record.at_s)
                stays.begin(commit, record.accelerator, record.boot_id, stay)

    def _drop(self, record: Record) -> None:
        with self._registry.commit() as commit:
            commit.set_meta(f"{KEY}{record.device}", "")
            if "gi" in record.ids:
                now_s, gi = self._registry.clock.monotonic(), record.ids["gi"]
                stay = stays.Stay(gi, record.units, record.at_s, until=now_s)
                stays.end(commit, record.accelerator, record.boot_id, stay)

    # --- for work and claims ---

    def divided(self, device: Device) -> bool:
        """Whether the device may have to be reached through an instance. Asks no driver."""
        return self._backend() is not None and len(device.units) > 1

    @contextmanager
    def entered(self, device: Device, claim: ClaimUid | None) -> Iterator[str]:
        """The instance for the time of one wipe, whose units the caller has reserved.

        It stays for the claim that is being prepared: its containers are to use this one.
        """
        visible = self.ensure(device)
        try:
            yield visible
        finally:
            self._leave(device, claim)

    def _leave(self, device: Device, claim: ClaimUid | None) -> None:
        known = self._registry.journal.claims.get(claim) if claim else None
        ending = known is not None and known.state is ClaimState.UNPREPARING
        try:
            self.release(device.uuid, besides=claim if ending else None)
        except errors.FleetError as error:
            # The verdict on the memory stands; `settle` and the claim's teardown go on from here.
            LOG.warning("the instance of %s is not removed yet: %s", device.name, error)

    def ensure(self, device: Device) -> str:
        """How the driver names what reaches the device, "" where that needs no instance.

        Nobody else may work on its units. Raises `DeviceBusy` where an instance of somebody else,
        or of another claim, lies in them; `BackendFailed`, `DeviceLost`.
        """
        backend = self._backend()
        if backend is None or not self.turn(device, lambda: backend.partitioned(device)):
            return ""
        self._clear(device)
        there = self.turn(device, lambda: backend.instances(device.accelerator))
        record = self._record(device.uuid)
        mine = next((i for i in there if record is not None and record.names(i)), None)
        units = set(device.units)
        strange = [i for i in there if i is not mine and units.intersection(i.units)]
        if strange:
            raise _occupied(device, strange)
        if mine is not None and mine.uuid:
            instances.refuse_clash(self._registry, device, self._others(device), mine)
            if record is not None and (not record.uuid or record.outlived):
                ids = dict(mine.ids)
                self._keep(replace(record, uuid=mine.uuid, ids=ids, outlived=False))
            return mine.uuid
        if record is not None and record.uuid and self._given(device):
            instances.notice(self._registry, [record], there)
            raise instances.removed(device)
        instances.refuse_missing(self._registry, device, self._others(device), there)
        return self._make(backend, device, there, mine)

    def present(self, device: Device) -> None:
        """Raises `DeviceUnfit` unless what a prepared claim reaches the device by is still there.

        It is never made again: it took the proof with it that its memory was clean. One in its
        place, made by somebody else, is not it. Raises `BackendFailed`, `DeviceLost`.
        """
        backend, record = self._backend(), self._record(device.uuid)
        if backend is None or record is None or not record.uuid:
            if backend is None or not self.turn(device, lambda: backend.partitioned(device)):
                return
            raise instances.removed(device)
        there = self._listed(backend, record)
        instances.notice(self._registry, [record], there)
        if record.lost or not record.is_there(there):
            raise instances.removed(device)

    def retain(self, claim: Claim) -> None:
        """The tenant was not proven gone: instances of the claim keep their numbers until it is."""
        for record in self.records():
            if record.device in claim.devices and not record.outlived:
                self._keep(replace(record, outlived=True))

    def ids(self, device: Uuid) -> Mapping[str, int]:
        """The driver's numbers of the instance of ours that reaches the device; empty: none."""
        record = self._record(device)
        return {} if record is None else dict(record.ids)

    def outlived(self, device: Uuid) -> bool:
        """Whether a tenant that outlived its claim may still reach the device's instance."""
        record = self._record(device)
        return record is not None and record.outlived

    def lost(self, claim: Claim) -> bool:
        """Whether somebody else removed an instance that the claim's containers reach."""
        devices = (*claim.devices, *claim.attached)
        return any(record.lost for record in self.records() if record.device in devices)

    def _make(
        self,
        backend: CanPartition,
        device: Device,
        there: Sequence[Instance],
        half: Instance | None,
    ) -> str:
        record = Record(
            device=device.uuid,
            accelerator=device.accelerator,
            units=device.units,
            boot_id=self._registry.boot_id,
            before={str(i.ids.get("gi")): list(i.units) for i in there if i is not half},
            at_s=self._registry.clock.monotonic(),
        )
        self._keep(record)
        try:
            made = self.turn(device, lambda: backend.make(device), CALL_S)
        except errors.FleetError:
            self._give_up(device)
            raise
        self._keep(replace(record, uuid=made.uuid, ids=dict(made.ids)))
        try:
            instances.refuse_clash(self._registry, device, self._others(device), made)
        except errors.DeviceBusy:
            self._give_up(device)
            raise
        return made.uuid

    def _others(self, device: Device) -> list[Record]:
        return [
            record
            for record in self.records()
            if record.accelerator == device.accelerator and record.device != device.uuid
        ]

    def _given(self, device: Device) -> bool:
        """Whether containers may have the device."""
        return any(u.state is State.IN_USE for u in self._registry.units(device))

    def _give_up(self, device: Device) -> None:
        """Take back what a failed making left; what cannot be taken back now keeps its record."""
        try:
            self.release(device.uuid, besides=None, held=False)
        except errors.FleetError as error:
            LOG.warning("what was made of %s is not removed yet: %s", device.name, error)

    def _clear(self, device: Device) -> None:
        """Remove what is left of ours in the same memory: of partitions nobody holds any more."""
        units = set(device.units)
        for record in self.records():
            if record.device != device.uuid and units.intersection(record.units):
                if holder := self._holder(record.device):
                    raise errors.DeviceBusy(
                        f"{device.name} shares memory with a partition of claim {holder}",
                        holder=f"claim:{holder}",
                        told=f"{device.name} shares memory with another partition in use",
                    )
                self._remove(record)

    def release(self, device: Uuid, *, besides: ClaimUid | None, held: bool = True) -> None:
        """Remove the instance of the device unless a claim but `besides` has the device.

        Without `held` claims do not count. Raises `BackendFailed` while a process uses it, naming
        the process, and then the record stays.
        """
        record = self._record(device)
        if record is not None and not (held and self._holder(device, besides)):
            self._remove(record)

    def _remove(self, record: Record) -> None:
        backend = self._backend()
        if backend is None or record.accelerator not in self._registry.accelerators:
            return  # not to be reached now: the next boot ends it, or `settle` when it is back
        mine = next((i for i in self._listed(backend, record) if record.names(i)), None)
        if mine is not None:
            self.turn(record, lambda: backend.unmake(mine), CALL_S)
        self._drop(record)

    def _listed(self, backend: CanPartition, record: Record) -> Sequence[Instance]:
        return self.turn(record, lambda: backend.instances(record.accelerator))

    def _holder(self, device: Uuid, besides: ClaimUid | None = None) -> ClaimUid | None:
        """A claim that has a record and names the device, attached or as its own."""
        for uid, claim in self._registry.journal.claims.items():
            if uid != besides and device in (*claim.devices, *claim.attached):
                return uid
        return None

    # --- strangers ---

    def foreign(self, device: Device) -> Sequence[Process]:
        """Instances not ours in memory of the device, as processes nobody can be asked about."""
        return strangers(self.strange(device), device)

    def strange(self, device: Device) -> Sequence[Instance]:
        """Instances not ours anywhere on the accelerator of `device`, in one look.

        What is missing of ours is noticed by the way.
        """
        backend = self._backend()
        if backend is None:
            return ()

        def look() -> tuple[list[Record], Sequence[Instance]]:
            ours = [one for one in self.records() if one.accelerator == device.accelerator]
            there = backend.instances(device.accelerator) if backend.partitioned(device) else ()
            return ours, there

        ours, there = self.turn(device, look)
        instances.notice(self._registry, ours, there)
        found = tuple(i for i in there if not any(record.names(i) for record in ours))
        self.seen[device.accelerator] = found
        return found

    def others(self, device: Device) -> Sequence[Instance]:
        """What is left on the accelerator once instances of ours that nobody needs are removed.

        The caller has reserved its units. Raises `BackendFailed`, `DeviceLost`.
        """
        backend = self._backend()
        if backend is None:
            return ()
        for record in self.records():
            if record.accelerator == device.accelerator:
                self.release(record.device, besides=None)
        return self.turn(device, lambda: backend.instances(device.accelerator))

    # --- time ---

    def begin(self) -> None:
        """At a start: what earlier boots had is gone with them, and its records go too."""
        journal = self._registry.journal
        stale = [
            key
            for key, text in list(journal.meta.items())
            if key.startswith(KEY) and text and _boot_of(key, text) != self._registry.boot_id
        ]
        if stale:
            with self._registry.commit() as commit:
                for key in stale:
                    commit.set_meta(key, "")

    def strays(self) -> list[Record]:
        """Records that nobody needs: no claim names their device, no work has its units.

        One of a tenant who outlived its claim stays, so that nobody gets its number: a wipe, which
        proves that tenant gone, ends it.

        Costs a look at memory only.
        """
        return [
            record
            for record in self.records()
            if record.accelerator in self._registry.accelerators
            and self._holder(record.device) is None
            and not record.outlived
            and not any(self._registry.reserved(unit) for unit in record.units)
        ]

    def settle(self) -> Sequence[str]:
        """Remove instances of ours that nobody needs; returns why some are left, in words.

        Level-triggered: called again and again. Each is removed under a reservation of its units,
        for the seconds that takes.
        """
        troubles = []
        for record in self.strays():
            try:
                self._settle(record)
            except errors.FleetError as error:
                troubles.append(f"the instance of {record.device} is not removed: {error.detail}")
        for trouble in set(troubles).difference(self.troubles):
            LOG.warning("%s", trouble)
        self.troubles = tuple(troubles)
        return troubles

    def _settle(self, record: Record) -> None:
        part = Device(
            uuid=record.device,
            name=record.device,
            accelerator=record.accelerator,
            units=record.units,
            memory_bytes=0,
        )
        operation = OperationId(f"settle/{record.device}")
        work = Work(operation, part, idle=True, wipes=False)
        if self._registry.reserve(work) is not None:
            return
        try:
            self.release(record.device, besides=None)  # a claim may have come meanwhile
        finally:
            self._registry.unreserve(work)

    # --- the driver ---

    def _backend(self) -> CanPartition | None:
        backend = self._registry.backend
        return backend if isinstance(backend, CanPartition) else None

    def turn(self, place: Device | Record, act: Callable[[], T], timeout_s: float = READ_S) -> T:
        """A turn with the driver of an accelerator. Raises what `act` does, or `BackendFailed`."""
        return self._calls.run(str(place.accelerator), act, timeout_s=timeout_s)


def strangers(there: Sequence[Instance], device: Device) -> Sequence[Process]:
    """Those of `there` that lie in memory of the device, as processes."""
    units = set(device.units)
    return [
        Process(0, instances.described(i), ProcessKind.FOREIGN)
        for i in there
        if units.intersection(i.units)
    ]


def _occupied(device: Device, there: Sequence[Instance]) -> errors.DeviceBusy:
    named = ", ".join(instances.described(i) for i in there)
    return errors.DeviceBusy(
        f"memory of {device.name} is taken by {named}",
        holder=named,
        remedy=f"{instances.unwanted(named)}; what waits goes on by itself",
        told=f"memory of {device.name} is in use outside this claim",
    )


def _boot_of(key: str, text: str) -> BootId | None:
    record = instances.read(key, text)
    return record.boot_id if record else None
