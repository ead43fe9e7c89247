"""Which accelerators a node has while its driver does not tell: asked aside, and remembered.

Nothing that a node owes to its tenants may wait for a driver: a claim is torn down, and an operator
is answered, with no driver at all (B14, B72). So the driver is asked on a thread of its own, and
what it last said is kept in a file beside the journal. The file is no truth of its own: of cards
known from it alone nothing is taken for granted, least of all that they are clean.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.core.disk import read_regular
from fleet.core.model import Accelerator
from fleet.devices import codec

LOG = logging.getLogger(__name__)

FILE = "inventory.json"
"""File name of what is remembered, in the node's directory."""
MOST_BYTES = 32 << 20
OPEN_WAIT_S = 2.0
"""How long, s, a start waits for the driver before it goes on with what is remembered."""
SLOW_S = 60.0
"""Time, s, a driver that nothing keeps loaded may need to start, and is said to be starting."""
PAUSE_S = 2.0
PAUSE_MAX_S = 30.0
"""Shortest and longest pause, s, between two tries to reach a driver that is away."""


class Question:
    """The driver asked once for its accelerators, on a thread of its own."""

    def __init__(self, ask: Callable[[], Sequence[Accelerator]]) -> None:
        self._ask = ask
        self._found: tuple[Accelerator, ...] = ()
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="inventory", daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = tuple(self._ask())
        except BaseException as error:  # noqa: BLE001 - delivered to whoever takes the answer
            self._error = error
        finally:
            self._ended.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether the driver has answered, or refused to, within `timeout_s`; None: for ever."""
        return self._ended.wait(timeout_s)

    def answer(self) -> tuple[Accelerator, ...]:
        """What it said. Raises what the back end raised, `DriverAbsent` while it has not answered.

        Whatever keeps a driver from listing its cards is told as `DriverAbsent`: it is a matter of
        the node and of none of its devices.
        """
        if not self._ended.is_set():
            raise silent()
        if isinstance(self._error, errors.BackendFailed):
            fields = dict(self._error.fields)
            raise errors.DriverAbsent(
                self._error.detail, remedy=self._error.remedy, **fields
            ) from self._error
        if self._error is not None:
            raise self._error
        return self._found


def silent() -> errors.DriverAbsent:
    """What is said of a driver that has not answered the first question yet."""
    return errors.DriverAbsent(
        "the driver has not answered since this service began to ask",
        remedy="it may still be starting; if it never answers, reload it or reboot the host",
    )


@dataclass
class Tries:
    """When a driver that is away is asked again: at growing pauses, one question at a time."""

    pause_s: float = PAUSE_S
    question: Question | None = None
    began: float = field(default_factory=time.monotonic)
    _due: float = 0.0

    @property
    def asking_s(self) -> float | None:
        """For how long, s, the question that is open has been; None: none is."""
        return None if self.question is None else time.monotonic() - self.began

    def ended(self) -> Question | None:
        """The question that has been answered since, once."""
        asked = self.question
        if asked is None or not asked.wait(0.0):
            return None
        self.question = None
        self._due = time.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, PAUSE_MAX_S)
        return asked

    @property
    def due(self) -> bool:
        """Whether it is time to ask."""
        return self.question is None and time.monotonic() >= self._due


def remembered(path: Path) -> tuple[Accelerator, ...]:
    """What `remember` kept; empty where nothing was kept or it cannot be read."""
    try:
        found = json.loads(read_regular(path, most_bytes=MOST_BYTES))
        return codec.accelerators_from(found["accelerators"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, LookupError, TypeError) as error:
        LOG.warning("remembered accelerators in %s cannot be read: %s", path, error)
        return ()


def remember(path: Path, found: Sequence[Accelerator]) -> None:
    """Keep what the driver listed. What cannot be written is logged: a driver tells it again."""
    text = json.dumps({"accelerators": codec.accelerators(found)}, indent=1) + "\n"
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        LOG.warning("accelerators cannot be remembered in %s: %s", path, error)
