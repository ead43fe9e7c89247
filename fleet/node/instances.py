"""Records of instances of ours: which one is meant, and who may still reach what has its number.

The driver gives the number of an instance out again, and a container reaches an instance by its
number (its capability nodes). So a number belongs to a claim until its tenant is proven gone, also
when somebody else removed the instance meanwhile: whatever got that number next would be open to
that tenant.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from fleet.core import errors
from fleet.core.model import BootId, Device, Source, State, UnitId, Uuid
from fleet.core.unit_states import TABLE, Change, Event, step
from fleet.devices.base import Instance
from fleet.devices.health import reasons
from fleet.node.registry import Registry

LOG = logging.getLogger(__name__)
KEY = "partition:"
LOST = "instance-lost"
"""Reason of units whose instance somebody else removed while a claim had it."""
NOT_OURS = "(not ours)"
"""How an instance is marked that we have no record of."""
_NAMED = re.compile(r"MIG instance gi (\d+)(?: ci (\d+))? of (\S+) " + re.escape(NOT_OURS))


@dataclass(frozen=True, slots=True)
class Record:
    """An instance that is ours, or may be: written before it is made."""

    device: Uuid
    accelerator: Uuid
    units: tuple[UnitId, ...]
    boot_id: BootId
    uuid: str = ""
    """Empty while it is being made: how far that came is unknown then."""
    ids: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, Sequence[UnitId]] = field(default_factory=dict)
    """Instances there were before ours: units by the driver's number."""
    at_s: float = 0.0
    """When it was written, s since boot: the instance is younger."""
    lost: bool = False
    """Whether somebody else removed it while a claim had it."""
    outlived: bool = False
    """Whether the tenant who had it outlived its claim, and was not proven gone since."""

    def names(self, instance: Instance) -> bool:
        """Whether `instance` is the one of this record, of the same boot as the record.

        One without a UUID may have lost its compute instance to a removal that was cut.
        """
        if instance.device != self.device or instance.accelerator != self.accelerator:
            return False
        number = instance.ids.get("gi")
        if not self.uuid:
            return tuple(self.before.get(str(number), ())) != instance.units
        return number == self.ids.get("gi") and instance.uuid in ("", self.uuid)

    def is_there(self, there: Iterable[Instance]) -> bool:
        """Whether it is whole among `there`; one whose UUID the driver does not tell may be."""
        found = next((one for one in there if self.names(one)), None)
        return found is not None and (bool(found.uuid) or "ci" in found.ids)

    def kept(self) -> str:
        """As the journal has it."""
        return json.dumps(asdict(self))


def read(key: str, text: str) -> Record | None:
    """A record as it was kept; None for one that was dropped."""
    if not text:
        return None
    found = json.loads(text)
    return Record(**{**found, "units": tuple(found["units"]), "device": Uuid(key[len(KEY) :])})


def user(registry: Registry, record: Record) -> str:
    """Who may still reach whatever has the number of the record's instance; "" nobody.

    A claim once its containers may have the number until its tenant is proven gone, and whoever
    outlived its claim.
    """
    units = [registry.journal.units[u] for u in record.units if u in registry.journal.units]
    given = any(unit.state in (State.IN_USE, State.HELD) for unit in units)
    for uid, claim in list(registry.journal.claims.items()):
        if record.device in claim.attached or (given and record.device in claim.devices):
            return f"claim {uid}"
    return "a tenant that outlived its claim" if record.outlived else ""


def refuse_missing(
    registry: Registry, device: Device, others: Iterable[Record], there: Sequence[Instance]
) -> None:
    """Raises `DeviceBusy` while the number of one of `others` is free for the driver to give out.

    Asked before anything is made: an instance with that number would be open to that tenant from
    its first moment, before any wipe.
    """
    for other in others:
        if "gi" in other.ids and not other.is_there(there) and (who := user(registry, other)):
            raise _clash(device, other, who)


def refuse_clash(
    registry: Registry, device: Device, others: Iterable[Record], made: Instance
) -> None:
    """Raises `DeviceBusy` where `made` has the number of an instance that somebody else has."""
    for other in others:
        if other.ids.get("gi") == made.ids.get("gi") and (who := user(registry, other)):
            raise _clash(device, other, who)


def notice(registry: Registry, records: Iterable[Record], there: Sequence[Instance]) -> None:
    """Put out of service what a claim has whose instance is not among `there` any more.

    `records` are of one accelerator, and were read in the same turn as `there`. Nothing is proven
    of such memory, and its claim is not exposed again; its number stays its own.
    """
    for record in records:
        if record.lost or not record.uuid or record.is_there(there):
            continue
        if any(registry.reserved(unit) for unit in record.units):
            continue  # a wipe may be removing it: looked at again
        if who := user(registry, record):
            _put_out(registry, record, who)


def _put_out(registry: Registry, record: Record, who: str) -> None:
    now, key = registry.clock.now(), f"{KEY}{record.device}"
    detail = (
        f"MIG instance gi {record.ids.get('gi')} of {record.accelerator} was removed from outside"
        f" while {who} had it"
    )
    reason = reasons.make(LOST, Source.HEALTH, detail=detail, since=now)
    with registry.commit() as commit:
        if commit.kept(key) != record.kept():
            return  # another one by now
        for name in record.units:
            unit = commit.unit(name)
            if TABLE.accepts(unit.state, Event.FAULT_SEEN):
                change = Change(reasons=frozenset({reason}))
                commit.put_unit(step(unit, Event.FAULT_SEEN, now=now, change=change))
        commit.set_meta(key, replace(record, lost=True).kept())
    LOG.warning("%s", detail)


def removed(device: Device) -> errors.DeviceUnfit:
    """What is said to a claim whose instance somebody else removed."""
    return errors.DeviceUnfit(
        f"the instance of {device.name} was removed from outside: nothing is known of its memory",
        remedy="delete the pod: its teardown frees the partition, which is wiped again",
        told=f"the instance of {device.name} is gone",
    )


def described(instance: Instance) -> str:
    """An instance that is not ours, in words from which `unwanted` can be told."""
    ci = f" ci {instance.ids['ci']}" if "ci" in instance.ids else ""
    return f"MIG instance gi {instance.ids.get('gi')}{ci} of {instance.accelerator} {NOT_OURS}"


def intruder(instance: Instance) -> str:
    """What a sweep says of an instance that is not ours, in the memory it lies in."""
    return f"MIG instance gi {instance.ids.get('gi')} is not ours"


def unwanted(who: str) -> str:
    """What to do about the instances that `who` names: commands for these, and no other.

    Without the numbers the tool removes every idle instance of every GPU.
    """
    commands = [
        f"`nvidia-smi mig -i {gpu} -gi {gi}{f' -ci {ci}' if ci else ''} -dci`,"
        f" then `nvidia-smi mig -i {gpu} -gi {gi} -dgi`"
        for gi, ci, gpu in _NAMED.findall(who)
    ]
    named = "; ".join(commands) or "`nvidia-smi mig -i <GPU> -gi <number> -dgi`"
    return (
        f"remove it with {named}, if nobody needs it (after a lost journal it may be one that we"
        " made)"
    )


def _clash(device: Device, other: Record, who: str) -> errors.DeviceBusy:
    return errors.DeviceBusy(
        f"no instance of {device.name} now: the driver may give it gi {other.ids.get('gi')}, whose"
        f" instance was removed from outside and whose device nodes {who} still has",
        holder=who.replace("claim ", "claim:", 1),
        remedy="end the pod that had the instance: its teardown frees the number (`fleet quarantine"
        " list` says whose), and what waits goes on by itself",
        told=f"no instance of {device.name} can be made now",
    )
