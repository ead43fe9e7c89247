"""Verification of the coordinator's countersignatures against the ledgers."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import Digest
from fleet.evidence import heads as heads_module
from fleet.evidence.findings import Report, check_signature
from fleet.evidence.heads import Countersignature
from fleet.evidence.key_list import Named
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.ledger_check import LedgerCheck
from fleet.evidence.segments import Damage, Entry, Place, Sequence
from fleet.evidence.sources import Collection


class HeadsCheck:
    """Verification of the coordinator's countersignatures against the ledgers."""

    def __init__(
        self,
        collection: Collection,
        checks: Iterable[LedgerCheck],
        report: Report,
        signers: Iterable[str],
    ) -> None:
        assert collection.heads is not None  # noqa: S101 - the caller asked
        self.log = collection.heads
        self.checks: dict[str, list[LedgerCheck]] = {}
        """By node: one that lost its disk has several ledgers in an archive."""
        for check in checks:
            self.checks.setdefault(check.log.node, []).append(check)
        self.report = report
        self.complete = collection.complete
        self.signers = set(signers)
        self.latest: dict[str, LedgerHead] = {}
        """The newest valid end of every ledger here that it agrees with, by the log's name."""
        self.absent: dict[str, int] = {}
        """Entries of ledgers that are named and not here."""
        self.named: Named | None = None
        """The newest list of keys that was countersigned."""
        self._last: tuple[Digest | None, int] = (None, 0)
        """The countersignature before, and its number."""
        self._ends: dict[Digest, int] = {}
        """Numbers of those that nothing has followed yet."""
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
        genuine = check_signature(found.envelope, self.log, place, report)
        if found.envelope.key_id in self.signers:
            detail = "is signed with a key that signs certificates: nobody else vouches for them"
            report.defects.append(Damage("self-countersigned", detail, place))
            genuine = False
        self._link(found, entry)
        if not genuine:
            return  # what a stranger says about a ledger convicts nobody
        if not report.dated(found.issued_at, place):
            return  # it would make everything older look recent
        self._at = found.issued_at
        report.countersigned_at = max(report.countersigned_at or 0.0, found.issued_at)
        self._names(found.listed, place)
        for node, head in found.heads.items():
            self._head(node, head, place, found.number)

    def _link(self, found: Countersignature, entry: Entry) -> None:
        """Compare with its predecessor: in an archive every host of a coordinator has a log.

        A copy of an archive has them one after the other, so that places in it are no numbers.
        """
        before: tuple[Digest | None, int] = self._last
        copied = self.log.rows is not None
        if found.begins and (copied or entry.number == 1):
            before = (None, 0)
        elif found.previous in self._ends:
            before = (found.previous, self._ends.pop(found.previous))
        if found.number != before[1] + 1 or not (copied or found.number == entry.number):
            detail = f"number {found.number} follows number {before[1]}"
            self.report.defects.append(Damage("sequence-gap", detail, entry.place))
        if found.previous != before[0]:
            detail = f"its predecessor {found.previous} is not the one before it"
            self.report.defects.append(Damage("missing-link", detail, entry.place))
        self._last = (found.digest, found.number)
        self._ends[found.digest] = found.number

    def _names(self, listed: Named | None, place: Place) -> None:
        before = self.named
        if listed is None:
            return
        if before is None or listed.number > before.number:
            self.named = listed
        elif listed.number == before.number and listed.digest != before.digest:
            detail = f"names another list of keys {listed.number} than the countersignatures before"
            self.report.defects.append(Damage("forked-key-list", detail, place))

    def _head(self, node: str, head: LedgerHead, place: Place, number: int) -> None:
        several = self.checks.get(node, [])
        if not several:
            if head.count:
                self.absent[node] = head.count
            if self.complete and head.count:
                detail = f"countersignature {number} names ledger {node}, which is not here"
                self.report.defects.append(Damage("missing-ledger", detail, place))
            return
        check = max(several, key=lambda one: (one.holds(head), one.knows(head)))
        if check.judge_head(head, number):
            check.signed.append((self._at, head.count))
            if head.count >= self.latest.get(check.log.name, LedgerHead()).count:
                self.latest[check.log.name] = head
