"""Offline verification: finds whatever was changed, removed, added or moved, and says where.

Works from files and public keys alone. Every rule reports and goes on: one damage never hides
another. What cannot be proven from what is there is a note, not a defect, and says so.
"""

from __future__ import annotations

from fleet.core.disk import shown
from fleet.evidence import dsse, key_list, losses_check
from fleet.evidence.findings import Demand, Doubt, Report
from fleet.evidence.heads_check import HeadsCheck
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.ledger_check import LedgerCheck
from fleet.evidence.segments import Damage, Place
from fleet.evidence.sources import Collection

__all__ = ["Demand", "Report", "verify"]


def verify(collection: Collection, demand: Demand = Demand()) -> Report:  # noqa: B008 - frozen
    """Judge everything in `collection`. Never writes, never raises for bad evidence."""
    report = Report(
        demand=demand,
        defects=list(collection.damages),
        notes=list(collection.notes),
        unsigned_index=collection.unsigned_index,
    )
    unreadable = {file: error for log in collection.logs() for file, error in log.keys.unreadable}
    for file, error in sorted(unreadable.items()):
        report.defects.append(Damage("key-unusable", error.detail, Place(shown(file))))
    checks = [LedgerCheck(log, report) for log in collection.ledgers]
    for check in checks:
        check.run()
        report.notes += check.log.notes
    if not checks and not report.defects:
        report.notes.append("there is no ledger: nothing was certified")
    _verify_heads(collection, checks, report)
    for losses in collection.losses:
        losses_check.check(losses, report, partial=collection.unsigned_index)
    if collection.witness and report.certificates and not report.countersignatures:
        detail = "a coordinator countersigns these ledgers, and no countersignature is here"
        report.defects.append(Damage("missing-heads", detail, Place(collection.witness)))
    for found in collection.rest() if collection.rest is not None else ():
        if isinstance(found, Damage):
            report.defects.append(found)
        else:
            report.notes.append(found)
    report.ledgers = len(checks)
    _verify_demand(report)
    return report


def _verify_demand(report: Report) -> None:
    """Whoever rolled everything back to an earlier state left evidence that is whole by itself."""
    demand, newest = report.demand, report.countersigned_at
    if demand.not_before is not None and (newest is None or newest < demand.not_before):
        found = "there is none" if newest is None else f"the newest is of {dsse.stamp(newest)}"
        asked = f"a countersignature of {dsse.stamp(demand.not_before)} or later is asked for"
        report.defects.append(Damage("too-old", f"{asked}; {found}", Place("evidence")))
    if report.certificates < demand.at_least:
        detail = f"{demand.at_least} certificates are asked for; {report.certificates} are here"
        report.defects.append(Damage("too-few", detail, Place("evidence")))


def _verify_heads(collection: Collection, checks: list[LedgerCheck], report: Report) -> None:
    latest: dict[str, LedgerHead] = {}
    if collection.heads is not None:
        signers = {key_id for check in checks for key_id in check.signers}
        walk = HeadsCheck(collection, checks, report, signers)
        walk.run()
        latest = walk.latest
        report.notes += collection.heads.notes
        _verify_list(collection, walk, report)
        if not collection.complete:
            for node, count in sorted(walk.absent.items()):
                words = f"the ledger of {node}, {count} entries, is countersigned and is not here"
                report.doubt(Doubt(words, node))
    for check in sorted(checks, key=lambda one: one.log.name):
        check.backdated()
        head = latest.get(check.log.name, LedgerHead())
        report.proven[check.log.name] = head.count
        report.countersigned += head.count
        for doubt in check.left_out(head):
            report.doubt(doubt)
        if head.count < check.count:
            name = check.log.name if check.log.node else check.log.place
            report.notes.append(
                f"{name}: tail not proven beyond entry {head.count} of {check.count}: later entries"
                " are not countersigned, so that a cut-off end would not show"
            )


def _verify_list(collection: Collection, walk: HeadsCheck, report: Report) -> None:
    """A revocation must not be undone by an older list, or by none."""
    why = key_list.behind(collection.listed, walk.named)
    if why and collection.listed is None and collection.key_list:
        return  # what is there is no list of the coordinator's: told already
    if why and not collection.lists:
        report.notes.append(f"{why}: which keys were revoked is not known")
    elif why:
        code = "missing-key-list" if collection.listed is None else "old-key-list"
        report.defects.append(Damage(code, why, Place(collection.lists)))
