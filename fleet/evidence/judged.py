"""Certificates with what verification found about each, and the way back from one to the first.

`verify` judges a whole collection; whoever asks about one device or one certificate needs to know
which defects are that one's. A defect belongs to the certificate in whose place it was found. What
has no such place (a cut tail, a line that cannot be read) belongs to the node whose ledger it is
in, and what is in no ledger of one node belongs to all: doubt is never anybody else's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import Digest
from fleet.evidence import parsed
from fleet.evidence.segments import Damage, Entry
from fleet.evidence.segments import Sequence as Order
from fleet.evidence.sources import Collection, Log
from fleet.evidence.verify import Demand, Report, verify


@dataclass(frozen=True, slots=True)
class Judged:
    """One certificate that can be read, and everything wrong with it."""

    node: str
    """Whose ledger it is in."""
    entry: Entry
    certificate: parsed.Certificate
    defects: tuple[Damage, ...] = ()
    countersigned: bool = False
    """Whether a valid countersignature covers it."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.defects


@dataclass(frozen=True, slots=True)
class Evidence:
    """A collection, verified."""

    report: Report
    certificates: tuple[Judged, ...]
    """Oldest first within each ledger."""
    of_nodes: Mapping[str, Sequence[Damage]]
    """Defects of a node's ledger that are no certificate's."""
    of_all: Sequence[Damage]
    """Defects of keys, countersignatures or the copy as a whole."""

    def against(self, node: str) -> tuple[Damage, ...]:
        """What speaks against all certificates of `node`."""
        return (*self.of_all, *self.of_nodes.get(node, ()))

    def lineage(self, digest: Digest) -> tuple[Judged | Digest, ...]:
        """The certificate and everything its units' chains lead back to, newest first.

        A predecessor that is not here comes as its digest. Empty when `digest` is not here.
        """
        found = {one.certificate.digest: one for one in self.certificates}
        back: dict[Digest, None] = {}
        waiting = [digest] if digest in found else []
        while waiting:
            here = waiting.pop()
            if here in back:
                continue
            back[here] = None
            if (one := found.get(here)) is not None:
                links = one.certificate.chain.values()
                waiting += [link.previous for link in links if link.previous is not None]
        known = sorted((found[d] for d in back if d in found), key=lambda one: -one.entry.number)
        return (*known, *(d for d in back if d not in found))


def judge(collection: Collection, demand: Demand = Demand()) -> Evidence:  # noqa: B008 - frozen
    """Verify everything in `collection` and sort what was found. Never raises for bad evidence."""
    report = verify(collection, demand)
    placed: dict[tuple[str, int | None], list[Damage]] = defaultdict(list)
    for damage in report.defects:
        placed[damage.place.file, damage.place.entry].append(damage)
    certificates: list[Judged] = []
    for log in collection.ledgers:
        for entry, certificate in _readable(log):
            here = list(placed.get((entry.place.file, entry.number), ()))
            if log.rows is not None:  # an export has a file for each
                here += placed.get((entry.place.file, None), ())
            covered = entry.number <= report.proven.get(log.name, 0)
            certificates.append(Judged(log.node, entry, certificate, tuple(here), covered))
    taken = {id(damage) for one in certificates for damage in one.defects}
    of_nodes: dict[str, list[Damage]] = defaultdict(list)
    of_all: list[Damage] = []
    for damage in report.defects:
        if id(damage) in taken:
            continue
        owner = _owner(damage, collection.ledgers)
        (of_all if owner is None else of_nodes[owner]).append(damage)
    return Evidence(report, tuple(certificates), dict(of_nodes), tuple(of_all))


def _readable(log: Log) -> Iterator[tuple[Entry, parsed.Certificate]]:
    for found in log.scan(Order()):
        if isinstance(found, Damage) or found.envelope is None:
            continue
        try:
            yield found, parsed.read(found.envelope)
        except EvidenceInvalid:
            continue


def _owner(damage: Damage, logs: Sequence[Log]) -> str | None:
    """The node in whose directory alone the damage is; None: nobody's or everybody's."""
    if len(logs) == 1:
        return logs[0].node
    owners = [
        log.node
        for log in logs
        if log.rows is None and Path(damage.place.file).is_relative_to(log.directory.parent)
    ]
    return owners[0] if len(owners) == 1 else None
