"""Data-loss records: claims that left devices which were not proven clean afterwards (D3).

A wipe that passed leaves a certificate. A teardown that ended with a device out of service leaves
one of these instead, signed by the node before it lets the claim go: which claim, which devices,
why, and what was proven of them last.

Decisions:

1. One file a record, numbered, each naming the one before: what is taken out of the middle shows.
2. A record says that something was not proven. It lifts nothing and certifies nothing.
3. The same claim with the same devices is recorded once, however often its teardown is repeated.
"""

from __future__ import annotations

import errno
import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.errors import EvidenceInvalid, LedgerUnavailable
from fleet.evidence import dsse
from fleet.evidence.disk import make_directory, read_regular, write_new
from fleet.evidence.rules import SIMULATED_PREFIX
from fleet.evidence.segments import Place
from fleet.model import NO_TOKEN, ClaimUid, Digest, NodeName, Reason, Token, UnitId, Uuid

PREDICATE_TYPE = "https://fleetscrub.dev/data-loss/v1"
MOST_BYTES = 1024 * 1024
DETAIL_MAX = 1000
"""Characters kept of a reason's words: what is larger than `MOST_BYTES` is never read again."""
WORDS = (
    "The claim has ended, and memory of these devices was not proven to be cleared after it. They"
    " are out of service: nobody is given one of them before a wipe of it was verified."
)
_NAME = re.compile(r"([0-9]{8})\.json")
_PASSING = frozenset({errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What keeps a whole file from being read for a while."""


@dataclass(frozen=True, slots=True)
class LostDevice:
    """A device that went out of service in the teardown."""

    uuid: Uuid
    units: tuple[UnitId, ...]
    """Empty: the device is not there any more, and which units it had is not known."""
    reasons: tuple[Reason, ...]
    proven: Mapping[UnitId, Digest | None] = field(default_factory=dict)
    """Newest certificate of each unit, of before the claim; None: there is none."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What is recorded. Times in seconds since the epoch."""

    node: NodeName
    claim: ClaimUid
    namespace: str
    name: str
    token: Token
    devices: tuple[LostDevice, ...]
    began_at: float
    """When the teardown began; 0.0: not known."""
    simulated: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record, read. Who signed it is judged elsewhere."""

    envelope: dsse.Envelope
    number: int
    previous: Digest | None
    node: NodeName
    claim: ClaimUid
    devices: tuple[Uuid, ...]
    units: frozenset[UnitId]
    recorded_at: float
    simulated: bool

    @property
    def digest(self) -> Digest:
        return self.envelope.digest


def sign(
    loss: Loss, *, number: int, previous: Digest | None, key: dsse.Signer, now: float, version: str
) -> bytes:
    """Sign record `number` of a node, which follows `previous`. `now`: seconds since the epoch."""
    mark = SIMULATED_PREFIX if loss.simulated else ""
    devices = [_spelled(device) for device in loss.devices]
    subject = [
        {"name": f"{mark}{one['uuid']}", "digest": {"sha256": _hash(one)}} for one in devices
    ]
    predicate = {
        "summary": WORDS,
        "simulated": loss.simulated,
        "number": number,
        "previous": previous,
        "node": loss.node,
        "claim": {"uid": loss.claim, "namespace": loss.namespace, "name": loss.name},
        "token": None if loss.token == NO_TOKEN else str(loss.token),
        "devices": devices,
        "teardown_began_at": dsse.moment(loss.began_at) if loss.began_at > 0.0 else None,
        "recorded_at": dsse.moment(now),
        "signer": {"service": f"fleetscrub node {loss.node}", "key_id": key.key_id},
        "software": {"name": "fleetscrub", "version": version},
    }
    return dsse.seal(PREDICATE_TYPE, subject, predicate, key=key)


def _spelled(device: LostDevice) -> dict[str, Any]:
    return {
        "uuid": device.uuid,
        "units": list(device.units),
        "reasons": [
            {
                "code": reason.code,
                "source": str(reason.source),
                "detail": _told(reason.detail),
                "since": dsse.moment(reason.since),
            }
            for reason in sorted(device.reasons, key=lambda one: (one.code, str(one.source)))
        ],
        "last_certificates": dict(device.proven),
    }


def _told(detail: str) -> str:
    """Words as a record can hold them: an error message must not keep a claim from ending."""
    return detail[:DETAIL_MAX].encode("utf-8", "replace").decode()


def _hash(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(dsse.canonical(value)).hexdigest()


def read(content: bytes) -> Record:
    """Read a stored record. Raises `EvidenceInvalid` when it is not a well-formed one."""
    envelope = dsse.open_envelope(content)
    if envelope.predicate_type != PREDICATE_TYPE:
        raise EvidenceInvalid(f"is a {envelope.predicate_type}, not a data-loss record")
    found = envelope.predicate
    try:
        number, previous = _link(found)
        devices = found["devices"]
        mark = SIMULATED_PREFIX if found["simulated"] is not False else ""
        subject = [{"name": f"{mark}{d['uuid']}", "digest": {"sha256": _hash(d)}} for d in devices]
        if envelope.statement["subject"] != subject or not devices:
            raise EvidenceInvalid("its subject is not the devices it names")
        if found["signer"]["key_id"] != envelope.key_id:
            raise EvidenceInvalid("it names another key than the one that signed it")
        return Record(
            envelope=envelope,
            number=number,
            previous=previous,
            node=NodeName(str(found["node"])),
            claim=ClaimUid(str(found["claim"]["uid"])),
            devices=tuple(Uuid(str(device["uuid"])) for device in devices),
            units=frozenset(UnitId(str(u)) for device in devices for u in device["units"]),
            recorded_at=dsse.seconds_of(found["recorded_at"]),
            simulated=found["simulated"] is not False,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EvidenceInvalid(f"is not a well-formed data-loss record: {error!r}") from error


def _link(found: Mapping[str, Any]) -> tuple[int, Digest | None]:
    """Number of a record and the digest of the one before it. Raises ValueError or KeyError."""
    number, previous = found["number"], found["previous"]
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"number {number!r}")
    if (number == 1) != (previous is None):
        raise ValueError(f"record {number} cannot follow {previous}")
    return number, None if previous is None else Digest(str(previous))


class LossLog:
    """A node's records in `directory`. One process writes at a time: the owner of the node."""

    def __init__(self, directory: Path) -> None:
        """Nothing is read or made before the first record."""
        self.directory = directory
        self._guard = threading.Lock()

    def append(self, loss: Loss, *, key: dsse.Signer, now: float, version: str) -> Digest:
        """Sign and store; durable on return. Raises `LedgerUnavailable`, nothing stored."""
        with self._guard:
            known = [record for record in self.records() if record.claim == loss.claim]
            for record in known:
                if {device.uuid for device in loss.devices}.issubset(record.devices):
                    return record.digest
            try:
                make_directory(self.directory, mode=0o750)
                number, previous = self._end()
                content = sign(
                    loss, number=number, previous=previous, key=key, now=now, version=version
                )
                path = self.directory / file_name(number)
                if not write_new(path, content, mode=0o640):
                    raise LedgerUnavailable(f"{path} was written by another process")
            except OSError as error:
                raise LedgerUnavailable(
                    f"a data-loss record cannot be written to {self.directory}: {error.strerror}"
                ) from error
            return dsse.digest_of(content)

    def records(self) -> Iterator[Record]:
        """All that can be read, oldest first; what cannot is told by `fleet evidence verify`."""
        for _, content in contents(self.directory, strict=True):
            try:
                yield read(content)
            except EvidenceInvalid:
                continue

    def _end(self) -> tuple[int, Digest | None]:
        """The next number, and the digest of the record before it, whatever is in that file.

        A damaged one must not keep a claim from ending; verification tells of it.
        """
        number, previous = 0, None
        for place, content in contents(self.directory, strict=True):
            number, previous = place.entry or 0, dsse.digest_of(content)
        return number + 1, previous


def file_name(number: int) -> str:
    """How the file of a record is called."""
    return f"{number:08d}.json"


def contents(
    directory: Path, *, after: int = 0, strict: bool = False
) -> Iterator[tuple[Place, bytes]]:
    """Where each record of a number above `after` is, in order, and its bytes.

    No bytes for what cannot be read. `strict`: raises `LedgerUnavailable` where that may pass, for
    those who write down for good what they read.
    """
    try:
        paths = sorted(directory.iterdir()) if directory.is_dir() else []
    except OSError as error:
        if strict:
            raise _unread(directory, error) from error
        yield Place(str(directory)), b""
        return
    for path in paths:
        match = _NAME.fullmatch(path.name)
        if match is None or int(match[1]) <= after:
            continue
        content = b""
        try:
            content = read_regular(path, most_bytes=MOST_BYTES)
        except OSError as error:
            if strict and error.errno in _PASSING:
                raise _unread(path, error) from error
        yield Place(str(path), entry=int(match[1])), content


def _unread(path: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(f"{path} cannot be read now: {error.strerror}")
