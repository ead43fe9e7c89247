"""What verification found: defects, notes, and what a copy that leaves out cannot tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import UnitId
from fleet.evidence import dsse
from fleet.evidence.keys import SHORT_ID
from fleet.evidence.segments import Damage, Place
from fleet.evidence.sources import Log


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that a copy may leave out, and that its answers need: no defect, and no proof."""

    words: str
    node: str
    units: frozenset[UnitId] = frozenset()
    """Units it is about; empty: the whole node."""


FUTURE_S = 24 * 3600.0
"""How far the clock of who signs may be ahead of the clock of who verifies."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the reader of evidence knows from elsewhere, and asks of it."""

    not_before: float | None = None
    """The newest countersignature is not older, seconds since the epoch."""
    at_least: int = 0
    """So many certificates are here."""
    now: float | None = None
    """The reader's clock; None: dates are not compared with it."""


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
    losses: int = 0
    """Data-loss records."""
    countersignatures: int = 0
    countersigned: int = 0
    """Certificates covered by a valid countersignature."""
    oldest: float | None = None
    newest: float | None = None

    countersigned_at: float | None = None
    """When the newest valid countersignature was made; what is newer can be cut off unseen."""
    proven: dict[str, int] = field(default_factory=dict)
    """How many entries of each ledger, by its name, valid countersignatures cover."""
    doubts: list[Doubt] = field(default_factory=list)

    unsigned_index: bool = False
    """The evidence is an export, whose index nobody signed."""
    demand: Demand = Demand()

    def dated(self, at: float, place: Place) -> bool:
        """Whether what was signed at `at` is not of the future; if it is, the report says so."""
        if self.demand.now is None or at <= self.demand.now + FUTURE_S:
            return True
        detail = f"is dated {dsse.stamp(at)}, more than a day from now"
        self.defects.append(Damage("future-date", detail, place))
        return False

    @property
    def verdict(self) -> str:
        """One line: what may be believed, and until when."""
        if self.defects:
            return f"{len(self.defects)} defects"
        if not self.certificates:
            return "there is no certificate: nothing is proven"
        if self.doubts:
            found = "what is here is whole; what the notes say is left out is not proven"
        else:
            found = "evidence is whole"
        if self.countersigned_at is None:
            found += "; nothing is countersigned: a cut-off end would not show"
        else:
            until = dsse.stamp(self.countersigned_at)
            found += f" as of {until}: what came later would not be missed"
        return found + ("; the index of this export is not signed" if self.unsigned_index else "")

    @property
    def ok(self) -> bool:
        """Whether there is evidence and nothing is wrong with it: none is not whole."""
        return not self.defects and self.certificates > 0

    def doubt(self, found: Doubt) -> None:
        """Add it, and a note that says so."""
        self.doubts.append(found)
        self.notes.append(f"{found.node}: {found.words}" if found.units else found.words)

    def as_json(self) -> dict[str, Any]:
        """JSON-safe form."""
        at = self.countersigned_at
        return {
            "ok": self.ok,
            "verdict": self.verdict,
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
            "losses": self.losses,
            "countersignatures": self.countersignatures,
            "countersigned": self.countersigned,
            "countersigned_at": at and dsse.moment(at),
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


def check_signature(envelope: dsse.Envelope, log: Log, place: Place, report: Report) -> bool:
    """Whether a key of the log's owner signed it; if not, the report says why."""
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
