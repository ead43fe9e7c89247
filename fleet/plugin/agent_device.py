"""Claims of the device `agent`: how our own node service gets at the accelerators (DESIGN 7).

The device has no memory and is never wiped, leased or held; what has to be kept is which claim has
it, and its spec. Only claims of our own namespace get it: whoever has it reaches every
accelerator. The record is durable before the spec exists and goes after it (promise 3).
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fleet.core import errors
from fleet.core.disk import own_directory
from fleet.core.model import ClaimUid
from fleet.devices.base import Grant
from fleet.plugin.requests import AskedClaim

LOG = logging.getLogger(__name__)

ENDED = ".ended"
"""Suffix of the record of a claim that was torn down: kubelet may have missed the answer."""
ENDED_MAX = 64
"""How many of those are kept; kubelet repeats an unprepare within minutes."""


class AgentSpecs(Protocol):
    """The specs of agent claims."""

    def agent_ids(self, uid: ClaimUid) -> tuple[str, ...]:
        """CDI ids of the agent device for this claim."""
        ...

    def write_agent(self, uid: ClaimUid, grant: Grant) -> None:
        """Make the spec visible. Raises `SpecUnavailable`."""
        ...

    def remove_agent(self, uid: ClaimUid) -> None:
        """Remove the spec; absent is fine. Raises `SpecUnavailable`."""
        ...

    def listed_agents(self) -> Sequence[ClaimUid]:
        """Claims that have an agent spec."""
        ...


@dataclass(frozen=True, slots=True)
class Agents:
    """Agent claims of this node. `directory` keeps one small file per claim."""

    directory: Path
    specs: AgentSpecs
    grant: Callable[[], Grant]
    """What the agent device is now: another driver has other files (B79)."""
    namespace: str
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    """Two prepares of one claim at once would use one temporary file."""
    _bad: dict[Path, str] = field(default_factory=dict, repr=False, compare=False)
    """Records that cannot be read, and why: each is logged once."""

    def prepare(self, claim: AskedClaim) -> tuple[str, ...]:
        """The CDI ids of the agent device for the claim. Idempotent.

        Raises `ClaimConfigInvalid` for a claim of another namespace, `SpecUnavailable` when record
        or spec cannot be written.
        """
        if not self.namespace or claim.namespace != self.namespace:
            raise errors.ClaimConfigInvalid(
                f"claim {claim.namespace}/{claim.name} asks for the device that reaches every"
                " accelerator of the node",
                remedy="only claims of the namespace in kubernetes.agent_namespace get it",
            )
        uid = ClaimUid(claim.uid)
        with self._turn:
            self._record(uid, claim)
            self.specs.write_agent(uid, self.grant())
        return self.specs.agent_ids(uid)

    def knows(self, uid: str) -> bool:
        """Whether this is a claim of the agent device."""
        return self._path(ClaimUid(uid)).exists()

    def unprepare(self, uid: str) -> bool:
        """Take the device back. Idempotent; False: this never was a claim of the agent device."""
        path = self._path(ClaimUid(uid))
        with self._turn:
            try:
                if not path.exists():
                    return path.with_suffix(ENDED).exists()
                self.specs.remove_agent(ClaimUid(uid))
                path.replace(path.with_suffix(ENDED))
                self._bad.pop(path, None)
                self._forget_old()
            except OSError as error:
                raise errors.SpecUnavailable(f"{path} cannot be removed: {error}") from error
        return True

    def _forget_old(self) -> None:
        ended = sorted(self.directory.glob(f"*{ENDED}"), key=lambda one: one.stat().st_mtime)
        for old in ended[:-ENDED_MAX]:
            old.unlink(missing_ok=True)

    def settle(self) -> None:
        """At start: specs without a record go, specs of records are written again.

        Raises `SpecUnavailable`; calling again is fine.
        """
        with self._turn:
            known = {ClaimUid(path.stem) for path in self.directory.glob("*.json")}
            for uid in self.specs.listed_agents():
                if uid not in known:
                    self.specs.remove_agent(uid)
            if known:
                given = self.grant()
                for uid in known:
                    self.specs.write_agent(uid, given)

    def records(self) -> Sequence[AskedClaim]:
        """The claims that have the device, but for those whose record cannot be read.

        Such a record is logged and stays, and so does its spec: whose it is cannot be told, so its
        pod may live. Kubelet's prepare mends the record, its unprepare ends it by the UID alone.
        """
        paths = sorted(self.directory.glob("*.json"))
        return [claim for path in paths if (claim := self._recorded(path)) is not None]

    def _recorded(self, path: Path) -> AskedClaim | None:
        """The claim of a record; None: it has gone, or says nothing."""
        try:
            told = json.loads(path.read_text())
            namespace, name = told["namespace"], told["name"]
        except FileNotFoundError:
            return None
        except (*errors.MALFORMED, OSError) as error:
            self._unreadable(path, f"{type(error).__name__}: {error}")
            return None
        if not all(isinstance(text, str) and text for text in (namespace, name)):
            self._unreadable(path, "namespace and name have to be texts")
            return None
        self._bad.pop(path, None)
        return AskedClaim(namespace, path.stem, name)

    def _unreadable(self, path: Path, why: str) -> None:
        if self._bad.get(path) == why:
            return
        self._bad[path] = why
        LOG.warning(
            "the record %s of an agent claim cannot be read (%s): it and its spec stay until"
            " kubelet prepares or unprepares that claim",
            path,
            why,
        )

    def _path(self, uid: ClaimUid) -> Path:
        return self.directory / f"{uid}.json"

    def _record(self, uid: ClaimUid, claim: AskedClaim) -> None:
        path = self._path(uid)
        if self._recorded(path) == claim:
            return
        temporary = path.with_suffix(".tmp")
        try:
            own_directory(self.directory)
            with temporary.open("w") as file:
                json.dump({"namespace": claim.namespace, "name": claim.name}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise errors.SpecUnavailable(f"{path} cannot be written: {error}") from error
