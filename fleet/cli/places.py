"""Where tenants of a proof keep their secrets: the memory of a simulated or of a real device."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fleet.core import errors
from fleet.core.messages import DeviceView
from fleet.core.model import Uuid
from fleet.core.processes import MARKER
from fleet.devices import registry
from fleet.devices.children import KILL_WAIT_S
from fleet.devices.remote import RemoteBackend
from fleet.devices.simulated import memory, search
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.devices.wipe.environment import environment
from fleet.evidence import layout
from fleet.rpc.child import ChildProcess
from fleet.wiring import adapters, hardware


class Place(Protocol):
    """All memory of one device, as whoever has it in turn can use it."""

    @property
    def size(self) -> int:
        """Bytes in all; known once somebody has taken it."""
        ...

    def write(self, content: bytes) -> None:
        """Write as a tenant does."""

    def count(self, content: bytes) -> int:
        """In how many places a 64-byte block of `content` lies, as a tenant finds them."""
        ...

    def look(self, content: bytes) -> int | None:
        """The same while nobody has the device; None where nobody may look then."""
        ...

    def leave(self) -> None:
        """The tenant ends, without tidying up."""


def of(state: Path, node: str, device: DeviceView) -> Place:
    """The place of a device of the fleet in `state`. Raises `InputInvalid` where none can be."""
    plans = {plan.node: plan for plan in adapters.plan_fleet(state).nodes}
    plan = plans.get(node)
    if plan is None:
        raise errors.InputInvalid(f"the fleet in {state} has no node {node}")
    directory = layout.node_directory(state, node)
    if plan.simulated is not None:
        return _simulated(directory / "sim", device)
    if plan.hardware != "nvidia":
        raise errors.InputInvalid(
            f"the memory of {device.name} cannot be reached by a program",
            remedy="prove works on simulated devices and on NVIDIA GPUs",
        )
    return GpuMemory(hardware.arguments(plan.settings.hardware, directory), device)


def _simulated(root: Path, device: DeviceView) -> Memory:
    backend = registry.build("simulated", {"root": str(root)})
    if not isinstance(backend, SimulatedBackend):
        raise errors.InputInvalid(f"{root} holds no simulated node")
    accelerator, found = backend.device(device.uuid)
    return Memory(
        backend.memory(accelerator.uuid),
        tuple(
            (unit.offset_bytes, unit.size_bytes)
            for unit in accelerator.units
            if unit.id in found.units
        ),
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the memory of one device is: the accelerator's and the device's stretches of it."""

    accelerator: memory.Memory
    stretches: tuple[tuple[int, int], ...]
    """(offset, length) in bytes, one for each unit."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(length for _, length in self.stretches)

    def write(self, content: bytes) -> None:
        """Write as a tenant does: at the start, in the middle and at the end of every stretch."""
        for offset, length in self.stretches:
            if len(content) > length:
                raise errors.InputInvalid(
                    f"the secret of {len(content)} B does not fit into {length} B",
                    remedy="choose a smaller secret or a larger device",
                )
            middle = offset + (length - len(content)) // 2
            for place in {offset, middle, offset + length - len(content)}:
                memory.write(self.accelerator, place, content)

    def count(self, content: bytes) -> int:
        """At how many places of the memory a 64-byte block of `content` lies, at any offset."""
        needles = search.of_bytes(content)
        return search.search(needles, self.accelerator, within=self.stretches).blocks

    def look(self, content: bytes) -> int:
        """As `count`: files can be read by anybody."""
        return self.count(content)

    def leave(self) -> None:
        """Nothing is open."""


class GpuMemory:
    """Where the memory of one NVIDIA GPU or partition is: reached by a process of its own."""

    def __init__(self, settings: Mapping[str, Any], device: DeviceView) -> None:
        """`settings`: of the back end that reaches it."""
        self._settings = settings
        self._device = device
        self._tenant: ChildProcess | None = None
        self.size = 0

    def write(self, content: bytes) -> None:
        """Plant it all over the device."""
        self._ask("plant", content)

    def count(self, content: bytes) -> int:
        """Search the device, as whoever has it now."""
        return self._ask("search", content)

    def look(self, content: bytes) -> None:  # noqa: ARG002 - part of the protocol
        """Nobody looks into a device without a claim on it."""
        return

    def leave(self) -> None:
        """Kill the tenant's process."""
        tenant, self._tenant = self._tenant, None
        if tenant is not None:
            tenant.kill(KILL_WAIT_S)  # stuck in the kernel: nobody waits longer for it
            tenant.close()

    def _ask(self, act: str, content: bytes) -> int:
        tenant = self._tenant = self._tenant or self._start()
        order = json.dumps({"do": act, "secret": content.hex()}).encode()
        tenant.tell(order + b"\n")
        lines: list[bytes] = []
        while not lines and not tenant.silent:
            lines = tenant.lines(KILL_WAIT_S)
        try:
            answer = json.loads(lines[0] if lines else b"{}")
        except ValueError:
            answer = {}
        if "blocks" not in answer:
            why = answer.get("error", "it ended")
            raise errors.BackendFailed(f"the tenant on {self._device.name} did nothing: {why}")
        self.size = int(answer["memory_bytes"])
        return int(answer["blocks"])

    def _start(self) -> ChildProcess:
        given = environment(os.environ, "", self._visible())
        del given[MARKER]  # it is no worker
        command = (sys.executable, "-P", "-m", "fleet.devices.nvidia.tenant")
        return ChildProcess(command, environment=given)

    def _visible(self) -> str:
        """As CUDA names the device: a partition by its instance, which exists while it is held."""
        accelerator = Uuid(self._device.accelerator or self._device.uuid)
        with closing(RemoteBackend("nvidia", self._settings)) as backend:
            for instance in backend.instances(accelerator):
                if instance.device == self._device.uuid and instance.uuid:
                    return instance.uuid
        return self._device.uuid
