"""Offline verification: finds whatever was changed, removed, added or moved, and says where.

Works from files and public keys alone. Every rule reports and goes on: one damage never hides
another. What cannot be proven from what is there is a note, not a defect, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.errors import EvidenceInvalid
from fleet.evidence import dsse, parsed
from fleet.evidence import heads as heads_module
from fleet.evidence.disk import shown
from fleet.evidence.keys import SHORT_ID
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.segments import Damage, Entry, Place, Sequence
from fleet.evidence.sources import Collection, Log
from fleet.model import Digest, Token, UnitId


@dataclass(slots=True)
class Report:
    """What verification found. Exit code of a command: 1 if there are defects."""

    defects: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ledgers: int = 0
    certificates: int = 0
    omitted: int = 0
    units: int = 0
    simulated: int = 0
    countersignatures: int = 0
    countersigned: int = 0
    """Certificates covered by a valid countersignature."""
    oldest: float | None = None
    newest: float | None = None

    unsigned_index: bool = False
    """The evidence is an export, whose index nobody signed."""

    @property
    def ok(self) -> bool:
        """Whether there is evidence and nothing is wrong with it: none is not whole."""
        return not self.defects and self.certificates > 0

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "ok": self.ok,
            "defects": [
                {
                    "code": damage.code,
                    "detail": damage.detail,
                    "file": damage.place.file,
                    "offset": damage.place.offset,
                    "entry": damage.place.entry,
                    "unit": damage.place.unit,
                }
                for damage in self.defects
            ],
            "notes": self.notes,
            "ledgers": self.ledgers,
            "certificates": self.certificates,
            "omitted": self.omitted,
            "units": self.units,
            "simulated": self.simulated,
            "countersignatures": self.countersignatures,
            "countersigned": self.countersigned,
            "unsigned_index": self.unsigned_index,
        }

    def raise_for_defects(self) -> None:
        """Raise `EvidenceInvalid` naming the first defect, with all of them in ``findings``."""
        if self.defects:
            first = self.defects[0]
            raise EvidenceInvalid(
                f"{len(self.defects)} defects; the first at {first.place}: {first.detail}",
                findings=tuple(f"{d.place}: {d.code}: {d.detail}" for d in self.defects),
            )


PARALLEL_S = 5.0
"""Certificates of devices wiped side by side may be stored in another order than signed."""


def verify(collection: Collection) -> Report:
    """Judge everything in `collection`. Never writes, never raises for bad evidence."""
    report = Report(
        defects=list(collection.damages),
        notes=list(collection.notes),
        unsigned_index=collection.unsigned_index,
    )
    unreadable = {file: error for log in collection.logs() for file, error in log.keys.unreadable}
    for file, error in sorted(unreadable.items()):
        report.defects.append(Damage("key-unusable", error.detail, Place(shown(file))))
    checks = {log.node: _LedgerCheck(log, report) for log in collection.ledgers}
    for check in checks.values():
        check.run()
        report.notes += check.log.notes
    if not checks and not report.defects:
        report.notes.append("there is no ledger: nothing was certified")
    _verify_heads(collection, checks, report)
    if collection.witness and report.certificates and not report.countersignatures:
        detail = "a coordinator works here, and no countersignature of the ledgers is there"
        report.defects.append(Damage("missing-heads", detail, Place(collection.witness)))
    for found in collection.rest() if collection.rest is not None else ():
        if isinstance(found, Damage):
            report.defects.append(found)
        else:
            report.notes.append(found)
    report.ledgers = len(checks)
    return report


@dataclass(slots=True)
class _UnitEnd:
    digest: Digest
    sequence: int
    token: Token | None
    number: int


class _LedgerCheck:
    """Verification of one ledger."""

    def __init__(self, log: Log, report: Report) -> None:
        self.log = log
        self.report = report
        self.sequence = Sequence()
        self.signers: set[str] = set()
        self._ends: dict[UnitId, _UnitEnd] = {}
        self._history: dict[UnitId, set[Digest]] = {}
        self.numbers: dict[Digest, int] = {}
        self._omitted: set[Digest] = set()
        self.doubtful: dict[str, list[int]] = {}
        """Entries that name a time before their key was revoked, by key."""
        self.signed: list[tuple[float, int]] = []
        """When how many entries were countersigned."""
        self._accelerators: dict[UnitId, str] = {}
        self._clock = float("-inf")

    @property
    def count(self) -> int:
        return self.sequence.expected - 1

    def run(self) -> None:
        """Read the whole ledger and report."""
        for found in self.log.scan(self.sequence):
            if isinstance(found, Damage):
                self.report.defects.append(found)
            elif found.envelope is None:
                self.report.omitted += 1
                self._omitted.add(found.digest)
                self.numbers[found.digest] = found.number
            else:
                self._entry(found, found.envelope)
        self.report.units += len(self._ends)

    def _defect(self, code: str, detail: str, place: Place) -> None:
        self.report.defects.append(Damage(code, detail, place))

    def _entry(self, entry: Entry, envelope: bytes) -> None:
        self.report.certificates += 1
        try:
            certificate = parsed.read(envelope)
        except EvidenceInvalid as error:
            self._defect("unreadable-certificate", error.detail, entry.place)
            return
        _check_signature(certificate.envelope, self.log, entry.place, self.report)
        self.signers.add(certificate.envelope.key_id)
        self._listed(certificate, entry.place)
        if self.log.node and certificate.node != self.log.node:
            detail = f"is of node {certificate.node}, not {self.log.node}"
            self._defect("foreign-certificate", detail, entry.place)
        for contradiction in parsed.contradictions(certificate):
            self._defect("contradiction", contradiction, entry.place)
        self.numbers.setdefault(certificate.digest, entry.number)
        self._note_times(certificate, entry.place)
        self.report.simulated += certificate.simulated
        for unit, link in certificate.chain.items():
            place = replace(entry.place, unit=unit)
            self._link(unit, link, certificate, place)
            self._ends[unit] = _UnitEnd(
                certificate.digest, link.sequence, certificate.token, entry.number
            )
            self._history.setdefault(unit, set()).add(certificate.digest)

    def _listed(self, certificate: parsed.Certificate, place: Place) -> None:
        if self.log.listed is None:
            return
        key_id, issued_at = certificate.envelope.key_id, certificate.issued_at
        against = self.log.listed.against(key_id, certificate.node, issued_at)
        if against is not None:
            self._defect(*against, place)
            return
        listed = self.log.listed.keys.get(key_id)
        if listed is not None and listed.revoked_at is not None:
            self.doubtful.setdefault(key_id, []).append(place.entry or 0)

    def _note_times(self, certificate: parsed.Certificate, place: Place) -> None:
        issued, report = certificate.issued_at, self.report
        report.oldest = issued if report.oldest is None else min(report.oldest, issued)
        report.newest = issued if report.newest is None else max(report.newest, issued)
        if issued < self._clock - PARALLEL_S:
            report.notes.append(f"{place}: issued before its predecessor; the clock was set back")
        self._clock = issued

    def _link(
        self, unit: UnitId, link: parsed.Link, certificate: parsed.Certificate, place: Place
    ) -> None:
        end = self._ends.get(unit)
        if link.previous in self._omitted:
            return
        accelerator = self._accelerators.setdefault(unit, certificate.accelerator)
        if accelerator != certificate.accelerator:
            detail = f"the unit moved from {accelerator} to {certificate.accelerator}"
            self._defect("contradiction", detail, place)
        expected = end.digest if end else None
        if link.previous != expected:
            older = self._history.get(unit, set())
            if expected is not None and (link.previous is None or link.previous in older):
                detail = f"continues {link.previous}, which has a successor: two chains"
                self._defect("fork", detail, place)
            else:
                detail = f"its predecessor {link.previous} is not the one before it ({expected})"
                self._defect("missing-link", detail, place)
        if link.sequence != (end.sequence if end else 0) + 1:
            detail = f"number {link.sequence} follows number {end.sequence if end else 0}"
            self._defect("sequence-gap", detail, place)
        if end and end.token and certificate.token and certificate.token < end.token:
            detail = f"token {certificate.token} follows the newer {end.token}"
            self._defect("token-backwards", detail, place)

    def backdated(self) -> Iterator[str]:
        """What only its own word puts before the revocation of the key it is signed with."""
        listed = self.log.listed.keys if self.log.listed is not None else {}
        for key_id, numbers in self.doubtful.items():
            at = listed[key_id].revoked_at or 0.0
            proven = max((count for when, count in self.signed if when < at), default=0)
            if late := [number for number in numbers if number > proven]:
                yield (
                    f"{self.log.node or self.log.place}: entries {late[0]} to {late[-1]} say"
                    f" themselves that key {key_id[:SHORT_ID]} was not revoked yet; none of them"
                    " was countersigned by then, and whoever has the key can write any time"
                )

    def judge_head(self, found: LedgerHead, number: int) -> bool:
        """Compare with what was countersigned. False: the ledger contradicts it."""
        before = len(self.report.defects)
        said = f"countersignature {number}"
        if found.count > self.count:
            missing = f"entries {self.count + 1} to {found.count}"
            self._defect("tail-cut", f"{missing} of {said} are gone", self._end_place())
        elif found.count and found.chain not in self.sequence.chains.get(found.count, set()):
            detail = f"the first {found.count} entries are not those of {said}"
            self._defect("rewritten", detail, self._end_place(found.count))
        for unit, digest in found.units.items():
            if self.numbers.get(digest, found.count + 1) > found.count:
                detail = f"the certificate {digest} named by {said} is not among its entries"
                self._defect("missing-certificate", detail, replace(self._end_place(), unit=unit))
        return len(self.report.defects) == before

    def _end_place(self, entry: int | None = None) -> Place:
        return Place(self.log.place, entry=self.count if entry is None else entry)


def _check_signature(envelope: dsse.Envelope, log: Log, place: Place, report: Report) -> bool:
    key, owner = log.keys.get(envelope.key_id), log.owners.get(envelope.key_id)
    short = envelope.key_id[:SHORT_ID]
    if key is None and owner is not None:
        detail = f"signed with key {short} of {owner}, which signs for nobody else"
        report.defects.append(Damage("foreign-key", detail, place))
        return False
    if key is None:
        known = ", ".join(one.key_id[:SHORT_ID] for one in log.keys) or "none"
        detail = f"signed with key {short}, which is not among the keys given ({known})"
        report.defects.append(Damage("unknown-key", detail, place))
        return False
    if not envelope.signed_by(key):
        detail = f"the signature is not that of key {short} over this content"
        report.defects.append(Damage("forged", detail, place))
        return False
    return True


def _verify_heads(collection: Collection, checks: dict[str, _LedgerCheck], report: Report) -> None:
    proven: dict[str, int] = {}
    if collection.heads is not None:
        signers = {key_id for check in checks.values() for key_id in check.signers}
        walk = _HeadsCheck(collection, checks, report, signers)
        walk.run()
        proven = walk.proven
        report.notes += collection.heads.notes
    for node, check in sorted(checks.items()):
        report.notes += check.backdated()
        count = min(proven.get(node, 0), check.count)
        report.countersigned += count
        if count < check.count:
            name = node or check.log.place
            report.notes.append(
                f"{name}: tail not proven beyond entry {count} of {check.count}: later entries are"
                " not countersigned, so that a cut-off end would not show"
            )


class _HeadsCheck:
    """Verification of the coordinator's countersignatures against the ledgers."""

    def __init__(
        self,
        collection: Collection,
        checks: dict[str, _LedgerCheck],
        report: Report,
        signers: Iterable[str],
    ) -> None:
        assert collection.heads is not None  # noqa: S101 - the caller asked
        self.log = collection.heads
        self.checks = checks
        self.report = report
        self.complete = collection.complete
        self.signers = set(signers)
        self.proven: dict[str, int] = {}
        self._previous: Digest | None = None
        self._number = 0
        self._at = 0.0

    def run(self) -> None:
        """Read all countersignatures and report."""
        for found in self.log.scan(Sequence()):
            if isinstance(found, Damage):
                self.report.defects.append(found)
            elif found.envelope is not None:
                self._entry(found, found.envelope)

    def _entry(self, entry: Entry, envelope: bytes) -> None:
        self.report.countersignatures += 1
        place, report = entry.place, self.report
        try:
            found = heads_module.read(envelope)
        except EvidenceInvalid as error:
            report.defects.append(Damage("unreadable-certificate", error.detail, place))
            return
        genuine = _check_signature(found.envelope, self.log, place, report)
        if found.envelope.key_id in self.signers:
            detail = "is signed with a key that signs certificates: nobody else vouches for them"
            report.defects.append(Damage("self-countersigned", detail, place))
            genuine = False
        if found.number != self._number + 1 or found.number != entry.number:
            detail = f"number {found.number} follows number {self._number}"
            report.defects.append(Damage("sequence-gap", detail, place))
        if found.previous != self._previous:
            detail = f"its predecessor {found.previous} is not the one before it"
            report.defects.append(Damage("missing-link", detail, place))
        self._previous, self._number = found.digest, found.number
        if not genuine:
            return  # what a stranger says about a ledger convicts nobody
        self._at = found.issued_at
        for node, head in found.heads.items():
            self._head(node, head, place, found.number)

    def _head(self, node: str, head: LedgerHead, place: Place, number: int) -> None:
        check = self.checks.get(node)
        if check is None:
            if self.complete and head.count:
                detail = f"countersignature {number} names ledger {node}, which is not here"
                self.report.defects.append(Damage("missing-ledger", detail, place))
            return
        if check.judge_head(head, number):
            check.signed.append((self._at, head.count))
            self.proven[node] = max(self.proven.get(node, 0), head.count)
