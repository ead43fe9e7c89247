"""Whether the container runtime will find the specs this node writes, looked at before a pod does.

A runtime with CDI switched off, or one that looks in other directories, ignores what a claim was
given, and every container of it fails, or starts without its device (B86). So does one whose watch
of the directory cannot be made, for want of inotify instances. What the host's files say is looked
at by time, and a canary is put where specs go and taken away again: a spec of no device and no node
that gives nobody anything. What cannot be read is unknown, and said to be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.node.cdi import files
from fleet.node.container_runtime import RUNTIMES, documents

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Where a runtime looks that is told nothing else."""
INSTANCES_MIN = 8
"""inotify instances below which runtimes, kubelet and log agents of a host take each other's."""
INSTANCES = "proc/sys/fs/inotify/max_user_instances"
CANARY = "canary"


@dataclass
class Preflight:
    """Of one node. `root`: of the host; `directory`: of specs, as the host has it."""

    root: Path
    directory: Path
    vendor: str
    taints: bool = False
    """Whether what is found keeps devices from being offered, by policy; else it is told."""
    found: tuple[str, ...] = ()
    """What is wrong, each with the setting that mends it."""
    unknown: str = ""
    _canary_ended: bool = field(default=False)

    def look(self) -> None:
        """Look now. Raises nothing."""
        unread: list[str] = []
        base = self._base()
        read = list(documents(base, RUNTIMES, unread))
        # Without a word of its configuration nothing is known of the runtime.
        told = self._runtime(read) if read else ()
        found = [*told, *self._inotify(base), *self._canary()]
        self.found = tuple(found)
        why = "; ".join(unread) or ("" if read else "no configuration of one was found")
        self.unknown = f"whether the container runtime reads CDI specs: {why}" if why else ""

    def _base(self) -> Path:
        through = self.root / "proc" / "1" / "root"
        with suppress(OSError):
            if (through / "etc").is_dir():
                return through
        return self.root

    def _runtime(self, read: list[Mapping[str, Any]]) -> Iterator[str]:
        enabled = True
        directories: tuple[str, ...] = DIRECTORIES
        for one in read:
            for value in _under(one, "enable_cdi"):
                enabled = value is not False
            for value in _under(one, "cdi_spec_dirs"):
                if isinstance(value, list):
                    directories = tuple(str(path) for path in value)
            features = one.get("features")
            if isinstance(features, Mapping) and features.get("cdi") is False:
                enabled = False
        if not enabled:
            yield (
                "the container runtime has CDI switched off: containers start without the devices"
                " of their claims; set enable_cdi = true and restart it"
            )
        if not any(_same(path, self.directory) for path in directories):
            yield (
                f"the container runtime reads CDI specs in {', '.join(directories)}, and ours are"
                f" written to {self.directory}; set cdi_spec_dirs to name it, or"
                " kubernetes.cdi_directory to one of those"
            )

    def _inotify(self, base: Path) -> Iterator[str]:
        for path in dict.fromkeys((self.root / INSTANCES, base / INSTANCES)):
            with suppress(OSError, ValueError):
                instances = int(path.read_text())
                if instances < INSTANCES_MIN:
                    yield (
                        f"a user of this host may have {instances} inotify instances: the container"
                        " runtime may not see new specs; set fs.inotify.max_user_instances to 128"
                        " or more"
                    )
                return

    def _canary(self) -> Iterator[str]:
        """Once: a spec is written as ours are, read back and removed."""
        if self._canary_ended or not self.directory.is_dir():
            return
        name = f"{self.vendor}-{CANARY}_{os.getpid()}.json"
        path, temporary = self.directory / name, self.directory / f".{name}.tmp"
        spec = {
            "cdiVersion": "0.5.0",
            "kind": f"{self.vendor}/{CANARY}",
            "devices": [
                {"name": "none", "containerEdits": {"env": ["FLEETSCRUB_CANARY=no-device"]}}
            ],
        }
        text = json.dumps(spec).encode()
        try:
            files.put(path, text, temporary, files.Calls())
            if not files.written(path, text):
                yield f"a spec written to {self.directory} is not what was written"
        except OSError as error:
            yield f"no spec can be written to {self.directory}: {error.strerror or error}"
            return
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._canary_ended = True


def _under(found: Any, name: str) -> Iterator[Any]:
    """The values under this name, at any depth."""
    if isinstance(found, Mapping):
        for key, one in found.items():
            if key == name:
                yield one
            else:
                yield from _under(one, name)
    elif isinstance(found, list):
        for one in found:
            yield from _under(one, name)


def _same(told: str, directory: Path) -> bool:
    """Whether both are one directory: /var/run is a link to /run on most hosts."""
    plain = os.path.normpath(told), os.path.normpath(directory)
    first, second = (f"/{one.removeprefix('/var/').lstrip('/')}" for one in plain)
    return first == second
