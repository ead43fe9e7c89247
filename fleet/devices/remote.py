"""A real back end as the node service holds it: every call goes to a process that can be killed.

One child for each accelerator, and one for what concerns all of them: a driver that hangs on one
card must not keep the others from answering (B29). A child that does not answer in its time is
killed. One that cannot be killed is stuck in the kernel: its accelerator stays unresponsive and no
second child is sent after it, so that nothing piles up, also over restarts of the service.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fleet.core import errors
from fleet.core.model import Accelerator, Device, Process, UnitId, Uuid
from fleet.devices import codec, tool
from fleet.devices.base import Grant, Instance, MemorySession, ResetOutcome, Unfit
from fleet.devices.children import FIRST_S, NO_DRIVER, QUICK_S, Children, NoAnswer
from fleet.devices.health.readings import LogState, Readings, log_state_from

WALK_S = 30.0
"""Time, s, for listing instances: walking them all takes a driver about 10 s under load."""
LONG_S = 150.0
"""Time, s, for what changes the device: the kernel may wait a minute for a reset to end, and the
vendor's tool is given longer."""
APART_S = 600.0
"""Time, s, that accelerators are asked one by one after asking all has hung."""


class RemoteBackend:
    """`Backend`, `CanReset` and `CanPartition` through children. Safe for several threads."""

    simulated = False

    def __init__(self, kind: str, settings: Mapping[str, Any]) -> None:
        """`kind` and `settings` as `fleet.devices.registry.build` takes them."""
        self.kind = kind
        self._settings = dict(settings)
        self._children = Children(kind, self._settings)
        self._owners: dict[Uuid, Uuid] = {}
        """Accelerator by device: all calls for one go to the same child."""
        self._apart_until = float("-inf")

    def close(self) -> None:
        """End the children."""
        self._children.close()

    def settings(self) -> Mapping[str, Any]:
        """What a worker needs to reach the devices directly."""
        return self._settings

    def inventory(self) -> Sequence[Accelerator]:
        """All accelerators. Raises `DriverAbsent`, `BackendFailed`.

        Where one of them hangs whoever asks all (B29), each is asked by its own child for a while;
        one that does not answer is listed as it is remembered.
        """
        if time.monotonic() >= self._apart_until:
            try:
                found = self._children.call("", "inventory", {}, FIRST_S)
                return self._known(codec.accelerators_from(found))
            except NoAnswer:
                self._apart_until = time.monotonic() + APART_S
        roll = self.roll()
        if not roll:
            raise errors.BackendFailed("the driver does not answer, and lists no device by itself")
        with ThreadPoolExecutor(len(roll), "inventory") as pool:
            asked = tuple(pool.map(self._one, roll))
        if not any(answered for answered, _ in asked):
            raise errors.DriverAbsent(
                f"the driver answers for none of its {len(roll)} devices",
                remedy="end what hangs in the driver, reload it, or reboot the host",
            )
        return self._known(tuple(one for _, one in asked))

    def roll(self) -> Sequence[Uuid]:
        """UUIDs of all accelerators, asking no driver; empty where there is no such list."""
        return tuple(Uuid(one) for one in self._children.call("", "roll", {}, QUICK_S))

    def accelerator(self, uuid: Uuid) -> Accelerator:
        """One accelerator. Raises `DeviceLost`, `BackendFailed`."""
        return self._looked_at(uuid, uuid, silent=False)

    def silent(self, uuid: Uuid) -> Accelerator:
        """What is known of an accelerator that does not answer."""
        return self._looked_at("", uuid, silent=True)

    def _looked_at(self, key: str, uuid: Uuid, *, silent: bool) -> Accelerator:
        given = {"accelerator": uuid, "silent": silent}
        return codec.accelerators_from(self._children.call(key, "one", given, QUICK_S))[0]

    def _one(self, uuid: Uuid) -> tuple[bool, Accelerator]:
        """An accelerator, and whether the driver answered for it."""
        try:
            return True, self.accelerator(uuid)
        except errors.DeviceLost:
            return True, self.silent(uuid)
        except errors.BackendFailed:
            return False, self.silent(uuid)

    def _known(self, found: Sequence[Accelerator]) -> Sequence[Accelerator]:
        self._owners = {device.uuid: one.uuid for one in found for device in one.devices}
        return found

    def readings(self, accelerator: Uuid) -> Readings:
        """Health readings. Raises `DeviceLost`, `BackendFailed`."""
        given = {"accelerator": accelerator}
        return Readings.from_json(self._children.call(accelerator, "readings", given, QUICK_S))

    def processes(self, accelerator: Uuid) -> Sequence[Process]:
        """Processes on an accelerator or partition. Raises `BackendFailed`."""
        given = {"accelerator": accelerator}
        owner = self._owners.get(accelerator, accelerator)
        found = self._children.call(owner, "processes", given, QUICK_S)
        return codec.processes_from(found)

    def holders(self, accelerator: Uuid) -> Mapping[Uuid, Sequence[Process]]:
        """Processes on an accelerator and on each of its partitions, in one call."""
        given = {"accelerator": accelerator}
        found = self._children.call(accelerator, "holders", given, WALK_S)
        return {Uuid(name): codec.processes_from(listed) for name, listed in found.items()}

    def openers(self, device: Device, ids: Mapping[str, int]) -> Sequence[Process]:
        """Processes that have `device` open, asking no driver: by a child that has opened none."""
        given = {"device": codec.device(device), "ids": dict(ids)}
        found = self._children.call(NO_DRIVER, "openers", given, QUICK_S)
        return codec.processes_from(found)

    def renew(self) -> None:
        """Ask the driver by new processes from now on: a library that is loaded stays as it was."""
        self._apart_until = float("-inf")
        self._children.renew()

    def strays(self) -> Sequence[str]:
        """Open faults of no device known, in words."""
        return tuple(str(one) for one in self._children.call("", "strays", {}, QUICK_S))

    def unfit(self) -> Sequence[Unfit]:
        """What keeps accelerators of this node from being wiped, and is no fault of theirs."""
        return codec.unfit_from(self._children.call("", "unfit", {}, FIRST_S))

    def log_state(self) -> LogState | None:
        """How far the kernel log was read, now; None: it cannot be, or this kind reads none."""
        found = self._children.call("", "log_state", {}, QUICK_S)
        return None if found is None else log_state_from(found)

    def grant(self, device: Device) -> Grant:
        """What a container needs. Raises `DeviceLost`, `BackendFailed`."""
        given = {"device": codec.device(device)}
        return codec.grant_from(self._children.call(device.accelerator, "grant", given, QUICK_S))

    def agent_grant(self) -> Grant:
        """What our own node service needs."""
        return codec.grant_from(self._children.call("", "agent_grant", {}, FIRST_S))

    def session(self, accelerator: Uuid, units: Sequence[UnitId]) -> MemorySession:
        """Memory is opened by a wipe worker, never here. Raises `BackendFailed`."""
        raise errors.BackendFailed(
            f"memory of {accelerator} ({len(units)} units) is only opened inside a wipe worker"
        )

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        """Reset. A back end that cannot says so in the outcome.

        Not beside what is left of an earlier one, and then nobody else is kept waiting (B41).
        Children of other accelerators may have this one open, as drivers open all they see: they
        are ended, and until it is over they are not asked (`DriverBusy`).
        """
        given = {"accelerator": accelerator}
        tool.refuse_survivors(f"reset {accelerator}")
        with self._children.alone(accelerator):
            found = self._children.call(accelerator, "reset", given, LONG_S)
        if found is None:
            detail = f"the {self.kind} back end cannot reset"
            return ResetOutcome(done=False, method="", detail=detail)
        return codec.reset_from(found)

    def partitioned(self, device: Device) -> bool:
        """Whether `device` is reached through an instance now."""
        given = {"device": codec.device(device)}
        return bool(self._children.call(device.accelerator, "partitioned", given, QUICK_S))

    def instances(self, accelerator: Uuid) -> Sequence[Instance]:
        """The instances there are."""
        given = {"accelerator": accelerator}
        found = self._children.call(accelerator, "instances", given, WALK_S)
        return tuple(codec.instance_from(one) for one in found)

    def make(self, device: Device) -> Instance:
        """Make an instance."""
        given = {"device": codec.device(device)}
        return codec.instance_from(self._children.call(device.accelerator, "make", given, LONG_S))

    def unmake(self, instance: Instance) -> None:
        """Remove an instance."""
        given = {"instance": codec.instance(instance)}
        self._children.call(instance.accelerator, "unmake", given, LONG_S)

    def divide(self, accelerator: Uuid, *, on: bool) -> None:
        """Switch partitioning. As for a reset, no child of ours may have the accelerator open."""
        given = {"accelerator": accelerator, "on": on}
        with self._children.alone(accelerator):
            self._children.call(accelerator, "divide", given, LONG_S)
