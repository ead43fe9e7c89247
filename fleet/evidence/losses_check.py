"""Verification of a node's records: who signed them, and that none is missing between."""

from __future__ import annotations

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import Digest
from fleet.evidence import losses
from fleet.evidence.findings import Report, check_signature
from fleet.evidence.segments import Damage, Place
from fleet.evidence.sources import Losses


def check(found: Losses, report: Report, *, partial: bool) -> None:
    """Judge all of them. The newest can be taken away unseen: a note says how many there are.

    `partial`: a copy that may leave some out, so that the one before another need not be here.
    """
    log, before = found.log, report.losses
    digests: set[Digest] = set()
    looks = 0
    follow: list[tuple[Place, losses.Record]] = []
    for one in found.contents():
        if isinstance(one, Damage):
            report.defects.append(one)
            continue
        place, content = one
        try:
            record = losses.read(content)
        except EvidenceInvalid as error:
            report.defects.append(Damage("unreadable-record", error.detail, place))
            continue
        looks += record.looked
        report.losses += not record.looked
        check_signature(record.envelope, log, place, report)
        if record.node != log.node:
            detail = f"is of node {record.node}, not {log.node}"
            report.defects.append(Damage("foreign-record", detail, place))
        if place.entry not in (None, record.number):
            detail = f"is record {record.number}, kept as {place.entry}"
            report.defects.append(Damage("out-of-order", detail, place))
        digests.add(record.digest)
        follow.append((place, record))
    for place, record in follow:
        if not partial and record.previous is not None and record.previous not in digests:
            detail = f"record {record.number - 1}, which it follows, is not here or was changed"
            report.defects.append(Damage("missing-record", detail, place))
    if (count := report.losses - before) > 0:
        report.notes.append(
            f"{log.node}: {count} data-loss records, of claims that ended with a device out of"
            " service; whether later ones were taken away cannot be told"
        )
    if looks:
        report.notes.append(
            f"{log.node}: {looks} records of claims that looked into devices with adminAccess;"
            " `fleet evidence admin-access` lists them"
        )
