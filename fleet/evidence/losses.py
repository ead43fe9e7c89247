"""A node's records: claims that left devices which were not proven clean afterwards (D3), and
claims that looked into devices of others with adminAccess (F60).

A wipe that passed leaves a certificate. A teardown that ended with a device out of service leaves
one of these instead, signed by the node before it lets the claim go: which claim, which devices,
why, and what was proven of them last.

Decisions:

1. One file a record, numbered, each naming the one before: what is taken out of the middle shows.
2. A record says that something was not proven. It lifts nothing and certifies nothing.
3. The same claim with the same devices is recorded once, however often its teardown is repeated.
4. Both kinds are links of one chain: who takes a record of either away breaks it. A look is
   recorded before its containers can start.
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

from fleet.core.disk import make_directory, read_regular, write_new
from fleet.core.errors import EvidenceInvalid, LedgerUnavailable
from fleet.core.model import NO_TOKEN, ClaimUid, Digest, NodeName, Reason, Token, UnitId, Uuid
from fleet.evidence import dsse
from fleet.evidence.rules import SIMULATED_PREFIX
from fleet.evidence.segments import Place

PREDICATE_TYPE = "https://fleetscrub.dev/data-loss/v1"
LOOK_TYPE = "https://fleetscrub.dev/admin-access/v1"
MOST_BYTES = 1024 * 1024
DETAIL_MAX = 1000
"""Characters kept of a reason's words: what is larger than `MOST_BYTES` is never read again."""
WORDS = (
    "The claim has ended, and memory of these devices was not proven to be cleared after it. They"
    " are out of service: nobody is given one of them before a wipe of it was verified."
)
LOOK_WORDS = (
    "The claim was let into these devices with adminAccess, whoever had them then: containers of"
    " its pods can read memory of their tenants, and nobody wipes them meanwhile."
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
class Look:
    """A claim that is let into devices that others may have."""

    node: NodeName
    claim: ClaimUid
    namespace: str
    name: str
    pods: tuple[str, ...]
    """UIDs of the pods it is prepared for."""
    devices: Mapping[Uuid, tuple[UnitId, ...]]
    """The devices with their units."""
    read_only: bool
    """Whether the back end gives them so that nothing can be written."""
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
    looked: bool = False
    """Whether it is of a claim that looked into devices; else of one that left them unproven."""

    @property
    def digest(self) -> Digest:
        return self.envelope.digest


def sign(
    said: Loss | Look,
    *,
    number: int,
    previous: Digest | None,
    key: dsse.Signer,
    now: float,
    version: str,
) -> bytes:
    """Sign record `number` of a node, which follows `previous`. `now`: seconds since the epoch."""
    mark = SIMULATED_PREFIX if said.simulated else ""
    devices = _lost(said) if isinstance(said, Loss) else _looked_into(said)
    subject = [
        {"name": f"{mark}{one['uuid']}", "digest": {"sha256": _hash(one)}} for one in devices
    ]
    predicate = {
        "summary": WORDS if isinstance(said, Loss) else LOOK_WORDS,
        "simulated": said.simulated,
        "number": number,
        "previous": previous,
        "node": said.node,
        "claim": {"uid": said.claim, "namespace": said.namespace, "name": said.name},
        "devices": devices,
        "recorded_at": dsse.moment(now),
        "signer": {"service": f"fleetscrub node {said.node}", "key_id": key.key_id},
        "software": {"name": "fleetscrub", "version": version},
    }
    if isinstance(said, Look):
        predicate |= {"pods": list(said.pods), "read_only": said.read_only}
        return dsse.seal(LOOK_TYPE, subject, predicate, key=key)
    began_at = dsse.moment(said.began_at) if said.began_at > 0.0 else None
    predicate |= {
        "token": None if said.token == NO_TOKEN else str(said.token),
        "teardown_began_at": began_at,
    }
    return dsse.seal(PREDICATE_TYPE, subject, predicate, key=key)


def _lost(loss: Loss) -> list[dict[str, Any]]:
    return [_spelled(device) for device in loss.devices]


def _looked_into(look: Look) -> list[dict[str, Any]]:
    return [{"uuid": uuid, "units": list(units)} for uuid, units in look.devices.items()]


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
    if envelope.predicate_type not in (PREDICATE_TYPE, LOOK_TYPE):
        raise EvidenceInvalid(
            f"is a {envelope.predicate_type}, not a data-loss record, nor one of admin access"
        )
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
            looked=envelope.predicate_type == LOOK_TYPE,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EvidenceInvalid(f"is not a well-formed record: {error!r}") from error


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

    def append(self, said: Loss | Look, *, key: dsse.Signer, now: float, version: str) -> Digest:
        """Sign and store; durable on return. Raises `LedgerUnavailable`, nothing stored."""
        looked = isinstance(said, Look)
        wanted = {*said.devices} if isinstance(said, Look) else {one.uuid for one in said.devices}
        with self._guard:
            for record in self.records():
                same = (record.claim, record.looked) == (said.claim, looked)
                if same and wanted.issubset(record.devices):
                    return record.digest
            try:
                make_directory(self.directory, mode=0o750)
                number, previous = self._end()
                content = sign(
                    said, number=number, previous=previous, key=key, now=now, version=version
                )
                path = self.directory / file_name(number)
                if not write_new(path, content, mode=0o640):
                    raise LedgerUnavailable(f"{path} was written by another process")
            except OSError as error:
                raise LedgerUnavailable(
                    f"a record cannot be written to {self.directory}: {error.strerror}"
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
