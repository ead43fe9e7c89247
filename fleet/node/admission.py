"""Whether a claim may be prepared here at all, decided and committed in one step.

A refusal changes nothing. What is committed is the intent: the record exists before a lease is
taken, a wipe begun or a spec written for it, so that a teardown finds all there may be (case B62).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.core import claim_states, errors, unit_states
from fleet.core.claim_states import Claim, ClaimEvent, ClaimFact, ClaimState
from fleet.core.messages import ClaimOrder
from fleet.core.model import (
    NO_TOKEN,
    OUT_OF_SERVICE,
    WORKING,
    ClaimUid,
    Device,
    OperationId,
    State,
    Token,
    Unit,
    Uuid,
)
from fleet.core.processes import WorkerIdentity, survivors
from fleet.core.settings import WipePolicy
from fleet.core.unit_states import Change, Event, Fact
from fleet.node import lease_check
from fleet.node.journal.journal import Commit
from fleet.node.ports import Leases, Specs
from fleet.node.registry import Registry, Work

ADMIN_REMEDY = (
    "leave adminAccess out; whose claims may look into devices is the setting"
    " kubernetes.admin_namespaces"
)
FRESH = "fresh"
"""Attribute of a claim: it demands a wipe under its own token."""
WIPE = "wipe"
"""Attribute of a claim: what it demands of a wipe, a `WipePolicy` as JSON."""
NOTE = "note"
"""Attribute of a claim: the caller's own text, answered again with every answer."""
UNHELD = "unheld"
"""Attribute of a claim: the API has given its allocation up though our marks were on it."""
HELD = "held"
"""Attribute of a claim: our reservation was seen on it, to be taken off after its burial."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits claims to this node's devices."""

    registry: Registry
    specs: Specs
    store: Leases
    admins: frozenset[str] = frozenset()
    """Namespaces whose claims may look into devices with adminAccess. The label by which the API
    server lets a namespace ask is for whoever may change the namespace to set; nobody after us
    could still refuse (F60)."""

    def admit(self, order: ClaimOrder) -> None:
        """Commit PREPARING for all devices of the order, or refuse and change nothing.

        Raises `DeviceBusy` (retryable, field ``holder``), `DeviceUnfit`, `DeviceUnknown`,
        `TokenStale`, `LeaseLost`, `InputInvalid` or `IllegalTransition`.
        """
        known = self.registry.journal.claims.get(ClaimUid(order.uid))
        if known is None:
            self._new(order)
        else:
            self._again(known, order)

    def join(self, order: ClaimOrder) -> None:
        """Take a call in that joins a prepare in work: its pods must be proven gone as well.

        Raises `DeviceBusy` for a call about other devices than those the work is for.
        """
        known = self.registry.journal.claims[ClaimUid(order.uid)]
        self._refuse_other_devices(known, order)
        if set(order.consumers) <= set(known.consumers):
            return
        with self.registry.commit() as commit:
            commit.put_claim(self._renewed(commit.claim(known.uid) or known, order))

    def _new(self, order: ClaimOrder) -> None:
        uid, token = ClaimUid(order.uid), _token(order)
        if order.attached:
            self._refuse_stranger(order.namespace, order.name)
        spec = self.specs.name(uid)
        devices, attached = self._named(order.devices), self._named(order.attached)
        units = self._disjoint(uid, devices)
        for device in devices:
            self._refuse(device, uid)
        if token != NO_TOKEN:
            self.registry.fence.check(units, token, self.registry.journal.epoch)
            lease_check.leased(self.store, uid, token, [unit.id for unit in units])
        claim = Claim(
            uid=uid,
            state=self._prepared_from_absent(order),
            devices=tuple(device.uuid for device in devices),
            units=tuple(unit.id for unit in units),
            token=token,
            boot_id=self.registry.boot_id,
            namespace=order.namespace,
            name=order.name,
            consumers=order.consumers,
            spec=spec,
            attached=tuple(device.uuid for device in attached),
            created_at=self.registry.clock.now(),
            attributes=_demands(order),
        )
        self._admit(claim, devices, attached)

    def _again(self, known: Claim, order: ClaimOrder) -> None:
        """A repeated prepare: the record stands as it is, under the newest token of its lease."""
        uid, token = known.uid, _token(order)
        if known.state is ClaimState.UNPREPARING:
            raise errors.DeviceBusy(f"claim {uid} is being torn down", holder=f"claim:{uid}")
        self._refuse_other_devices(known, order)
        claim_states.step(known.state, ClaimEvent.PREPARE)
        if known.attached and known.state is not ClaimState.PREPARED:
            self._refuse_stranger(known.namespace, known.name)
        claim = self._renewed(known, order)
        units = [self.registry.journal.units[unit] for unit in known.units]
        exposed = any(unit.state is State.IN_USE for unit in units)
        settled = known.state is ClaimState.PREPARED or exposed
        if token not in (NO_TOKEN, known.token) and not settled:
            self.registry.fence.check(units, token, self.registry.journal.epoch)
            lease_check.leased(self.store, uid, token, known.units)
            claim = replace(claim, token=token)
        if claim != known:
            with self.registry.commit() as commit:
                commit.put_claim(claim)
                _take(commit, claim)

    def _refuse_stranger(self, namespace: str, name: str) -> None:
        """Raises `ClaimConfigInvalid` unless the namespace may look into devices of others."""
        if namespace not in self.admins:
            raise errors.ClaimConfigInvalid(
                f"claim {namespace}/{name} asks for adminAccess, and namespace"
                f" {namespace or '(none)'} may not look into devices of others",
                remedy=ADMIN_REMEDY,
            )

    def _refuse_other_devices(self, known: Claim, order: ClaimOrder) -> None:
        devices = frozenset(device.uuid for device in self._named(order.devices))
        attached = frozenset(device.uuid for device in self._named(order.attached))
        if devices != frozenset(known.devices) or attached != frozenset(known.attached):
            raise errors.DeviceBusy(
                f"claim {known.uid} still holds {', '.join(known.devices) or 'other devices'}"
                " of an earlier allocation",
                holder=f"claim:{known.uid}",
                remedy="it is torn down first; then the devices asked for are prepared",
            )

    def _renewed(self, known: Claim, order: ClaimOrder) -> Claim:
        """Every pod that ever used the claim is remembered: all of them must be proven gone."""
        consumers = (*known.consumers, *(c for c in order.consumers if c not in known.consumers))
        attributes = {**known.attributes, **_demands(order)}
        if order.held:
            attributes.pop(UNHELD, None)
        named = (order.namespace or known.namespace, order.name or known.name)
        return replace(
            known, consumers=consumers, attributes=attributes, namespace=named[0], name=named[1]
        )

    def _commit(self, claim: Claim, devices: Sequence[Device], attached: Sequence[Device]) -> None:
        now = self.registry.clock.now()
        with self.registry.commit() as commit:
            for device in devices:
                self._refuse(device, claim.uid)
            commit.put_claim(claim)
            _take(commit, claim)
            for unit_id in {unit for device in attached for unit in device.units}:
                unit = commit.unit(unit_id)
                if unit.state is State.CLEAN:
                    nobody = Change(frozenset({Fact.WORKER_GONE}))
                    moved = unit_states.step(unit, Event.TRUST_LOST, now=now, change=nobody)
                    commit.put_unit(moved)

    def _admit(self, claim: Claim, devices: Sequence[Device], attached: Sequence[Device]) -> None:
        """Commit; with attached devices while nothing works on them, nor can begin to.

        Who looks may also write: a CLEAN device is dirty from the moment the record exists.
        """
        works = []
        try:
            for device in attached:
                work = Work(
                    OperationId(f"attach/{claim.uid}/{device.uuid}"),
                    device,
                    idle=False,
                    wipes=False,
                )
                other = self.registry.reserve(work)
                if other is not None:
                    raise errors.DeviceBusy(
                        f"{device.name} is worked on by {other.operation}",
                        holder=other.operation,
                        told=f"{device.name} is worked on by its node",
                    )
                works.append(work)
                self._refuse_working(device)
            self._commit(claim, devices, attached)
        finally:
            for work in works:
                self.registry.unreserve(work)

    def _refuse_working(self, device: Device) -> None:
        """Neither a state of work nor a worker that outlived its kill and may still write."""
        for unit in self.registry.units(device):
            if unit.state in WORKING:
                raise errors.DeviceBusy(f"{device.name} is {unit.state}", holder="the node itself")
        for row in self.registry.journal.workers():
            if not set(row.units).isdisjoint(device.units) and survivors(
                WorkerIdentity.from_json(row.identity)
            ):
                raise errors.DeviceBusy(
                    f"worker {row.worker_id} of {device.name} still lives", holder="the node itself"
                )

    def _named(self, names: Sequence[str]) -> list[Device]:
        """The devices named, each once, in the order of the names."""
        found: dict[Uuid, Device] = {}
        for name in names:
            device = self.registry.device(name)
            found[device.uuid] = device
        return list(found.values())

    def _disjoint(self, uid: ClaimUid, devices: Sequence[Device]) -> list[Unit]:
        records = [unit for device in devices for unit in self.registry.units(device)]
        if len({unit.id for unit in records}) != len(records):
            raise errors.InputInvalid(
                f"claim {uid} names devices that overlap:"
                f" {', '.join(sorted(device.name for device in devices))}",
                remedy="a claim gets an accelerator or partitions of it, not both",
            )
        return records

    def _prepared_from_absent(self, order: ClaimOrder) -> ClaimState:
        buried = self.registry.journal.tombstone(ClaimUid(order.uid)) is not None
        live = not buried or bool(order.consumers)
        facts = frozenset({ClaimFact.LIVE_CONSUMER}) if live else frozenset()
        return claim_states.step(ClaimState.ABSENT, ClaimEvent.PREPARE, facts)

    def _refuse(self, device: Device, uid: ClaimUid) -> None:
        for unit in self.registry.units(device):
            if unit.claim not in (None, uid):
                raise errors.DeviceBusy(
                    f"{device.name} is held by claim {unit.claim}",
                    holder=f"claim:{unit.claim}",
                    told=f"{device.name} is held by another claim",
                )
            if unit.state is State.HELD:
                raise errors.DeviceBusy(
                    f"{device.name} is held: who used it before is not known",
                    holder="an unknown holder",
                    remedy="it is freed once its holder is proven gone, or by `fleet node adopt`",
                )
            if unit.state in OUT_OF_SERVICE:
                raise errors.DeviceUnfit(f"{device.name} is {unit.state}{_why(unit)}")


def demand_of(claim: Claim) -> WipePolicy | None:
    """What the claim demands of a wipe beyond the node's policy."""
    asked = claim.attributes.get(WIPE)
    return WipePolicy.model_validate_json(asked) if asked else None


def held(claim: Claim) -> bool:
    """Whether our reservation was seen on the claim when it was prepared, once at least."""
    return claim.attributes.get(HELD) == "true"


def _token(order: ClaimOrder) -> Token:
    return Token.parse(order.token) if order.token is not None else NO_TOKEN


def _demands(order: ClaimOrder) -> dict[str, str]:
    found = {}
    if order.note:
        found[NOTE] = order.note
    if order.wipe is not None:
        found[WIPE] = order.wipe.model_dump_json()
    if order.fresh or order.wipe is not None:
        found[FRESH] = "true"
    if order.held:
        found[HELD] = "true"
    return found


def _take(commit: Commit, claim: Claim) -> None:
    for unit_id in claim.units:
        raised = unit_states.raise_floor(commit.unit(unit_id), claim.token)
        commit.put_unit(replace(raised, claim=claim.uid))


def _why(unit: Unit) -> str:
    codes = sorted({reason.code for reason in unit.reasons})
    return f" ({', '.join(codes)})" if codes else ""
