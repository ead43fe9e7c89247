"""The container runtime's part: CDI ids to mounts, and containers that are real processes.

Ids are resolved anew for every container that is created, by reading the directory: an id without a
readable, valid and unambiguous definition means that there is no container (CreateContainerError).
There is no mount namespace: a process gets the host paths of its writable mounts.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from fleet.core import errors
from tests.lab.kubelet import tenant
from tests.lab.kubelet.cgroups import PodCgroups

_VERSIONS = frozenset({"0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"})
_SPEC_FIELDS = frozenset({"cdiVersion", "kind", "annotations", "devices", "containerEdits"})
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Edits:
    """What a container gets from its CDI ids."""

    environment: Mapping[str, str] = field(default_factory=dict)
    memories: tuple[str, ...] = ()
    """Host paths of writable mounts, each once."""
    nodes: tuple[str, ...] = ()
    """Paths of device nodes in the container."""


class Container:
    """One running container."""

    def __init__(self, process: subprocess.Popen[str], cgroup: Path, edits: Edits) -> None:
        """`process` was started with pipes for stdin and stdout."""
        self._process = process
        self._stdin, self._stdout = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        self._lock = threading.Lock()
        self.cgroup = cgroup
        self.edits = edits

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        """Whether the process is there, and not merely as a zombie."""
        return self._process.poll() is None

    def begin(self) -> None:
        """Let the tenant open its memory, once it is in its cgroup. Raises as `ask`."""
        self._exchange(None)
        self.ask("open")

    def ask(self, do: str, secret: bytes = b"") -> dict[str, Any]:
        """Have the tenant do something: ``open``, ``write`` or ``search``.

        Raises `DeviceBusy` when it does not answer: it is dead or stopped.
        """
        return self._exchange({"do": do, "secret": secret.hex()})

    def _exchange(self, order: Mapping[str, str] | None) -> dict[str, Any]:
        with self._lock:
            try:
                if order is not None:
                    self._stdin.write(json.dumps(order) + "\n")
                    self._stdin.flush()
                if not select.select([self._stdout], [], [], _ANSWER_S)[0]:
                    raise TimeoutError(f"no answer for {_ANSWER_S:g} s")
                answer: dict[str, Any] = json.loads(self._stdout.readline())
            except (OSError, ValueError) as error:
                raise errors.DeviceBusy(
                    f"container process {self.pid} does not answer", holder=str(self.pid)
                ) from error
            return answer

    def terminate(self) -> None:
        """SIGTERM, and no waiting."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()


class Runtime:
    """Containers and CDI of one node. It lives on while kubelet restarts. Safe for threads."""

    def __init__(self, cdi_directory: Path, cgroups: PodCgroups) -> None:
        self.cdi_directory = cdi_directory
        self.cgroups = cgroups
        self._containers: dict[str, Container] = {}
        self._sandboxes: set[str] = set()

    def resolve(self, ids: Iterable[str]) -> Edits:
        """What these CDI ids mean now. Raises `SpecUnavailable` naming those that mean nothing."""
        devices, broken = _definitions(self.cdi_directory)
        wanted = tuple(dict.fromkeys(ids))
        missing = [one for one in wanted if one not in devices]
        if missing:
            why = f" (unusable files: {'; '.join(broken)})" if broken else ""
            raise errors.SpecUnavailable(f"unresolvable CDI devices {', '.join(missing)}{why}")
        return _joined([edits for one in wanted for edits in devices[one]])

    def create(self, pod_uid: str, ids: Iterable[str], *, stubborn: bool = False) -> Container:
        """A new container of the pod with these devices, its memory open.

        Raises `SpecUnavailable`, or `DeviceBusy` when it died at once.
        """
        edits = self.resolve(ids)
        for path in edits.memories:
            if not Path(path).exists():
                raise errors.SpecUnavailable(f"mount source {path} does not exist")
        cgroup = self.cgroups.make_container(pod_uid, uuid.uuid4().hex)
        plan = {"memories": list(edits.memories), "stubborn": stubborn}
        process = subprocess.Popen(
            [sys.executable, "-I", str(tenant.__file__), json.dumps(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={"PYTHONDONTWRITEBYTECODE": "1", **edits.environment},
        )
        container = Container(process, cgroup, edits)
        self.cgroups.enter(cgroup, process.pid)
        try:
            container.begin()
        except errors.DeviceBusy:
            container.kill()
            self.cgroups.remove(cgroup)
            raise
        self._containers[pod_uid] = container
        return container

    def container(self, pod_uid: str) -> Container | None:
        """The pod's container, running or not."""
        return self._containers.get(pod_uid)

    def start_sandbox(self, pod_uid: str) -> None:
        """The pod's surroundings exist from now on; containers come and go in them."""
        self.cgroups.make_pod(pod_uid)
        self._sandboxes.add(pod_uid)

    def sandboxes(self) -> tuple[str, ...]:
        """UIDs of pods that have one."""
        return tuple(sorted(self._sandboxes))

    def remove_container(self, pod_uid: str) -> None:
        """Kill what is left of the pod's container and remove it; none is fine."""
        container = self._containers.pop(pod_uid, None)
        if container is not None:
            container.kill()
            self.cgroups.remove(container.cgroup)

    def remove_sandbox(self, pod_uid: str) -> None:
        """Remove the pod's surroundings; its container is gone already."""
        self._sandboxes.discard(pod_uid)
        self.cgroups.remove_pod(pod_uid)

    def power_off(self) -> None:
        """Everything is gone at once: processes, cgroups and the CDI directory's content."""
        for pod_uid in tuple(self._containers):
            self.remove_container(pod_uid)
        self._sandboxes.clear()
        self.cgroups.clear()
        if self.cdi_directory.is_dir():
            for path in self.cdi_directory.iterdir():
                path.unlink(missing_ok=True)


_Devices = dict[str, list[dict[str, Any]]]


def _definitions(directory: Path) -> tuple[_Devices, list[str]]:
    """(edits by qualified name, files that are unusable). A name defined twice is not defined."""
    devices: _Devices = {}
    twice: set[str] = set()
    broken: list[str] = []
    for path in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        try:
            found = _devices(json.loads(path.read_text()))
        except FileNotFoundError:
            continue  # removed between listing and reading
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            broken.append(f"{path.name}: {type(error).__name__}: {error}")
            continue
        twice |= devices.keys() & found.keys()
        devices.update(found)
    for name in twice:
        del devices[name]
        broken.append(f"{name} is defined twice")
    return devices, broken


def _devices(spec: Mapping[str, Any]) -> _Devices:
    """The devices of one file; raises when the file is not one a runtime takes."""
    if spec.keys() - _SPEC_FIELDS:
        raise ValueError(f"unknown fields {sorted(spec.keys() - _SPEC_FIELDS)}")
    if spec["cdiVersion"] not in _VERSIONS:
        raise ValueError(f"unknown version {spec['cdiVersion']}")
    if not spec["devices"]:
        raise ValueError("no devices")
    general = spec.get("containerEdits") or {}
    found: _Devices = {}
    for device in spec["devices"]:
        if not device["containerEdits"]:
            raise ValueError(f"device {device['name']} edits nothing")
        name = f"{spec['kind']}={device['name']}"
        if name in found:
            raise ValueError(f"device {name} is there twice")
        found[name] = [general, device["containerEdits"]]
    return found


def _joined(edits: Iterable[Mapping[str, Any]]) -> Edits:
    environment: dict[str, str] = {}
    memories: dict[str, str] = {}
    nodes: dict[str, None] = {}
    for one in edits:
        environment.update(pair.split("=", 1) for pair in one.get("env") or ())
        for mount in one.get("mounts") or ():
            memories.pop(mount["containerPath"], None)
            if "ro" not in mount.get("options", ()):
                memories[mount["containerPath"]] = mount["hostPath"]
        nodes.update({node["path"]: None for node in one.get("deviceNodes") or ()})
    return Edits(environment, tuple(dict.fromkeys(memories.values())), tuple(nodes))
