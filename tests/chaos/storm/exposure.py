"""Judging every exposure: whose bytes are there, by which proof, under which token and lease.

Kept by the host path of the memory, which is what a container gets. Safe for threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.core.claim_states import ClaimState
from fleet.core.model import ClaimUid, Token, Unit
from fleet.core.profiles import Profile
from fleet.stores.dynamodb import DynamodbStores
from tests.chaos.storm.log import Story
from tests.chaos.storm.reading import NodeDisk, Records
from tests.chaos.storm.site import Place

READ_MAX_S = 45.0
PIECE = 16
"""Bytes of a secret that are searched for at once: finding any of them is finding the secret."""


@dataclass
class Exposures:
    """All exposures of a storm."""

    story: Story
    disks: Mapping[str, NodeDisk]
    stores: Callable[[], DynamodbStores]
    count: int = 0
    certified: int = 0
    _now: dict[Path, str] = field(default_factory=dict)
    """Who has a memory now."""
    _secrets: dict[Path, list[tuple[str, bytes]]] = field(default_factory=dict)
    _ended: dict[Path, float] = field(default_factory=dict)
    """When the last one that had it ended."""
    _tokens: dict[str, Token] = field(default_factory=dict)
    """Token of the last exposure, by unit."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, memory: Path, pod: str) -> bool:
        """A container has got this memory; whether it alone has it."""
        with self._lock:
            other = self._now.get(memory)
            if other is None:
                self._now[memory] = pod
                self.count += 1
                return True
        self.story.breaks(f"{pod} and {other} have one device: {memory}")
        return False

    def end(self, memory: Path) -> None:
        """The container that has it is about to end; it writes no more."""
        with self._lock:
            self._now.pop(memory, None)
            self._ended[memory] = time.time()

    def plant(self, memory: Path, pod: str, secret: bytes) -> None:
        """A pod leaves this in its memory."""
        with self._lock:
            self._secrets.setdefault(memory, []).append((pod, secret))

    def last_secret(self, memory: Path) -> bytes:
        """What the last one left, to be searched for by the next one itself."""
        with self._lock:
            found = self._secrets.get(memory)
            return found[-1][1] if found else b"?" * PIECE

    def judge_memory(self, memory: Path, pod: str) -> None:
        """Promise 1: nothing of anybody before is there; read from the file behind the device."""
        content = memory.read_bytes()
        if content.count(0) == len(content):
            return
        with self._lock:
            before = [*self._secrets.get(memory, ())]
        for other, secret in before:
            pieces = [secret[at : at + PIECE] for at in range(0, len(secret), PIECE)]
            if any(piece in content for piece in pieces):
                self.story.breaks(f"{pod} was given a device with the bytes of {other}")
        dirty = len(content) - content.count(0)
        self.story.breaks(f"{pod} was given a device with {dirty} bytes that are not zero")

    def judge_proof(self, place: Place, memory: Path, pod: str, uid: str) -> None:
        """Promises 1, 2, 8: a certificate that verifies, its token, the lease of this claim."""
        disk = self.disks[place.node]
        records = disk.records(wait_s=READ_MAX_S)
        if records is None:
            self.story.tell("journal unread", pod=pod)
            return
        claim = records.claims.get(ClaimUid(uid))
        if claim is None or claim.state is not ClaimState.PREPARED:
            self.story.breaks(f"{pod} has a device, its record is {claim}")
            return
        for unit_id in claim.units:
            unit = records.units[unit_id]
            for wrong in (
                *self._out_of_order(records, unit, claim.token),
                *self._unproven(place, unit, memory, claim.token),
            ):
                self.story.breaks(f"{pod}, {unit_id}: {wrong}")
            self._judge_lease(pod, unit, uid, claim.token)

    def _out_of_order(self, records: Records, unit: Unit, token: Token) -> Iterator[str]:
        """Fencing tokens of exposures rise, and the node has acted on this one."""
        if unit.claim is None or records.claims[unit.claim].token != token:
            yield f"exposed under {token}, the unit is {unit.state} of {unit.claim}"
        with self._lock:
            last = self._tokens.get(unit.id)
            self._tokens[unit.id] = token
        if last is not None and token <= last:
            yield f"exposed under {token}, after {last}"
        if unit.floor < token:
            yield f"exposed under {token}, its floor is {unit.floor}"

    def _unproven(self, place: Place, unit: Unit, memory: Path, token: Token) -> Iterator[str]:
        """What speaks against the certificate: in `strict` it is made under the same token."""
        if unit.certificate is None:
            yield "exposed without a certificate"
            return
        disk = self.disks[place.node]
        try:
            certificate = disk.certificate(unit.certificate)
        except errors.FleetError as error:
            yield f"its certificate cannot be read: {error.detail}"
            return
        yield from (f"{unit.certificate}: {wrong}" for wrong in disk.against(certificate))
        if unit.id not in certificate.chain:
            yield f"{unit.certificate} does not cover it"
        if place.profile is Profile.STRICT and certificate.token != token:
            yield f"exposed under {token}, certified under {certificate.token}"
        with self._lock:
            ended = self._ended.get(memory, 0.0)
            self.certified += 1
        if not ended <= certificate.issued_at <= time.time():
            yield f"certified at {certificate.issued_at}, the last tenant ended at {ended}"

    def _judge_lease(self, pod: str, unit: Unit, uid: str, token: Token) -> None:
        try:
            lease = self.stores().leases.holder(unit.id)
        except errors.FleetError as error:
            self.story.tell("store unread", pod=pod, why=error.detail)
            return
        if lease is None or (lease.holder.name, lease.token) != (uid, token):
            self.story.breaks(f"{pod} has {unit.id} under {token}, its lease is {lease}")
