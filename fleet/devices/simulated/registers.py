"""The register file of one simulated accelerator: readings, faults and clients, kept on disk.

Changed under a file lock and replaced atomically, so that worker processes, the node service and
`fleet sim` may all change it, and a process killed half way leaves the old content. It is not
synced to disk: a simulated device need not survive a real power cut.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fleet.core.errors import BackendFailed


@dataclass(slots=True)
class Fault:
    """A fault that is set. `remaining` None: until cleared; else how often it strikes yet."""

    name: str
    units: list[str]
    """Units the wipe of which it disturbs; its readings are the whole accelerator's."""
    remaining: int | None = None
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    readings: dict[str, Any] = field(default_factory=dict)
    """Readings it changes while set."""
    load_readings: dict[str, Any] = field(default_factory=dict)
    """Readings it changes while memory traffic runs."""
    reset_clears: bool = False


@dataclass(slots=True)
class Client:
    """A process that has (part of) the accelerator open: what a driver's process list shows."""

    pid: int
    start_time: int
    name: str
    units: list[str]
    worker_id: str = ""
    """Set for our own workers and what they start."""
    fault: str = ""
    """The fault that started it, if one did."""
    started_by_us: bool = False
    """Whether the simulation may end it."""


@dataclass(slots=True)
class Register:
    """The whole content of one register file."""

    values: dict[str, Any] = field(default_factory=dict)
    """Readings that differ from a healthy device's."""
    faults: dict[str, Fault] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    lost: bool = False
    resets: int = 0


class Registers:
    """Access to one register file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Register:
        """The content now. Raises BackendFailed when the file is damaged or cannot be read."""
        try:
            found: Mapping[str, Any] = json.loads(self.path.read_text())
            return Register(
                values=dict(found["values"]),
                faults={name: Fault(**fault) for name, fault in found["faults"].items()},
                clients=[Client(**client) for client in found["clients"]],
                lost=bool(found["lost"]),
                resets=int(found["resets"]),
            )
        except FileNotFoundError:
            return Register()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendFailed(f"the register file {self.path} cannot be read: {error}") from error

    @contextmanager
    def change(self) -> Iterator[Register]:
        """Change the content under the lock; written when the block ends without an error."""
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            register = self.read()
            yield register
            temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            temporary.write_text(json.dumps(asdict(register)))
            temporary.replace(self.path)
