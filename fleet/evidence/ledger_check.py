"""Verification of one ledger: every entry, and the chain of every unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import Digest, Token, UnitId
from fleet.evidence import dsse, parsed
from fleet.evidence.findings import Doubt, Report, check_signature
from fleet.evidence.keys import SHORT_ID
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.segments import Damage, Entry, Place, Sequence
from fleet.evidence.sources import Log

PARALLEL_S = 5.0
"""Certificates of devices wiped side by side may be stored in another order than signed."""


@dataclass(slots=True)
class _UnitEnd:
    digest: Digest
    sequence: int
    token: Token | None
    number: int


class LedgerCheck:
    """Verification of one ledger."""

    def __init__(self, log: Log, report: Report) -> None:
        self.log = log
        self.report = report
        self.sequence = Sequence()
        self.signers: set[str] = set()
        self._ends: dict[UnitId, _UnitEnd] = {}
        self._history: dict[UnitId, set[Digest]] = {}
        self.numbers: dict[Digest, int] = {}
        self.omitted: set[Digest] = set()
        self._gaps: set[UnitId] = set()
        """Units that have certificates here and one left out before another."""
        self.doubtful: dict[str, list[tuple[int, float, Place]]] = {}
        """Entries that name a time before their key was revoked, and that time, by key."""
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
                self.omitted.add(found.digest)
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
        check_signature(certificate.envelope, self.log, entry.place, self.report)
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
            self.doubtful.setdefault(key_id, []).append((place.entry or 0, issued_at, place))

    def _note_times(self, certificate: parsed.Certificate, place: Place) -> None:
        issued, report = certificate.issued_at, self.report
        report.dated(issued, place)
        report.oldest = issued if report.oldest is None else min(report.oldest, issued)
        report.newest = issued if report.newest is None else max(report.newest, issued)
        if issued < self._clock - PARALLEL_S:
            report.notes.append(f"{place}: issued before its predecessor; the clock was set back")
        self._clock = issued

    def _link(
        self, unit: UnitId, link: parsed.Link, certificate: parsed.Certificate, place: Place
    ) -> None:
        end = self._ends.get(unit)
        if link.previous in self.omitted:
            self._gaps.add(unit)
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

    def backdated(self) -> None:
        """Judge what only its own word puts before the revocation of the key it is signed with.

        A countersignature from before the revocation proves the time of what it holds. One that is
        later than an entry says it is, and does not hold it, contradicts the entry.
        """
        listed = self.log.listed.keys if self.log.listed is not None else {}
        for key_id, entries in self.doubtful.items():
            at, short = listed[key_id].revoked_at or 0.0, key_id[:SHORT_ID]
            proven = max((count for when, count in self.signed if when < at), default=0)
            late = []
            for number, issued_at, place in entries:
                if number <= proven:
                    continue
                later = [when for when, count in self.signed if when > issued_at and count < number]
                if not later:
                    late.append(number)
                    continue
                detail = (
                    f"says that it was issued at {dsse.stamp(issued_at)}, before its key"
                    f" {short} was revoked; the countersignature of"
                    f" {dsse.stamp(min(later))}, later than that, does not hold it"
                )
                self._defect("backdated", detail, place)
            if late:
                self.report.notes.append(
                    f"{self.log.node or self.log.place}: entries {late[0]} to {late[-1]} say"
                    f" themselves that key {short} was not revoked yet; none of them was"
                    " countersigned by then, and whoever has the key can write any time"
                )

    def left_out(self, head: LedgerHead) -> Iterator[Doubt]:
        """What this copy leaves out, compared with the end `head` that was countersigned.

        A copy of one device leaves out the certificates of all others, and the index that says so
        is signed by nobody: whoever takes out a wipe can say that it was left out.
        """
        node = self.log.node
        here = {unit: end.number for unit, end in self._ends.items()}
        newest = {unit: self.numbers[d] for unit, d in head.units.items() if d in self.omitted}
        for unit in sorted(here):
            if newest.get(unit, 0) > here[unit]:
                words = f"the newest certificate of unit {unit}, entry {newest[unit]}"
                yield Doubt(f"{words}, is left out of this copy", node, frozenset({unit}))
            elif unit in self._gaps:
                words = f"a certificate of unit {unit} is left out of this copy"
                yield Doubt(words, node, frozenset({unit}))
        if others := newest.keys() - here.keys():
            words = f"all certificates of {len(others)} units are left out of this copy"
            yield Doubt(words, node, frozenset(others))
        last = max((self.numbers[d] for d in self.omitted), default=0)
        if last > head.count and (open_to := {unit for unit in here if here[unit] < last}):
            words = (
                f"entry {last} is left out of this copy, and no countersignature says whose it is"
            )
            yield Doubt(words, node, frozenset(open_to))

    def holds(self, found: LedgerHead) -> bool:
        """Whether it is of this ledger that somebody says it ended so once."""
        return found.chain in self.sequence.chains.get(found.count, set())

    def knows(self, found: LedgerHead) -> int:
        """How many of the certificates it names are in this ledger."""
        return sum(digest in self.numbers for digest in found.units.values())

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
