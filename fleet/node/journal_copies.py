"""What follows the journal outside it: the copy of quarantine reasons, and the witness.

Reasons are copied before the transaction that adds them, and dropped from the copy after the one
that removes them: whenever the journal is lost, the copy has at least what it had. That it may have
more does no harm, because a journal of this boot is always believed before the copy. Of memory that
the journal does not know, since its card was away when the journal began, the copy alone tells: it
keeps that until the card is back.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from fleet.core.model import Accelerator, BootId, Unit, UnitId
from fleet.node.journal import mirror, witness
from fleet.node.journal.journal import Journal
from fleet.node.journal.mirror import Reasons
from fleet.node.journal.startup import Place


class Copies:
    """Copy and witness of one journal. Failing to write them is told, and fails no act."""

    def __init__(self, place: Place, boot_id: BootId) -> None:
        self.reasons_trouble = ""
        """Why reasons could not be copied; empty when the copy is as it should be."""
        self.witness_trouble = ""
        """Why the witness could not be written at the last commit; empty when it was."""
        self._place = place
        self._boot_id = boot_id
        self._copied: Reasons | None = None
        """What the copy has; None until it was read."""
        self._away: Reasons = {}
        """Of it, what is of memory that the journal does not know."""

    def begin(self, journal: Journal) -> None:
        """Copy from now on. Before, the copy is what a lost journal is made up for by."""
        self._copied, self._away = {}, self._read()
        self._settle(journal)
        self._copy(_reasons(journal.units), again=True)

    def recall(self, accelerator: Accelerator, known: Container[UnitId]) -> Reasons:
        """What the copy has of units of an accelerator that are not `known` to the journal; of some
        that it was divided into otherwise, for all: faults go with the memory."""
        kept = {unit: found for unit, found in self._read().items() if unit not in known}
        units = [spec.id for spec in accelerator.units if spec.id not in known]
        mine = [unit for unit in kept if unit.startswith(f"{accelerator.uuid}/")]
        former = [kept[unit] for unit in mine if unit not in units]
        return {unit: kept.get(unit, frozenset()).union(*former) for unit in units}

    def foretell(self, before: Mapping[UnitId, Unit], after: Mapping[UnitId, Unit]) -> None:
        """Copy the reasons that the transaction from `before` to `after` is about to add."""
        known = _reasons(before)
        more = {name: unit.reasons | known.get(name, frozenset()) for name, unit in after.items()}
        if any(found != known.get(name, frozenset()) for name, found in more.items()):
            self._copy({**known, **more})

    def follow(self, journal: Journal) -> None:
        """Have copy and witness as the journal is now."""
        self._settle(journal)
        self._copy(_reasons(journal.units), again=bool(self.reasons_trouble))
        seen = witness.Witness(
            journal_id=journal.id,
            sequence=journal.sequence,
            machine_id=self._place.machine_id,
            node_uid="",
            boot_id=self._boot_id,
        )
        try:
            self._bear(seen)
        except OSError as error:
            # The commit is durable: a witness left behind is allowed, a failed act is not.
            self.witness_trouble = f"the witness cannot be written: {error}"
        else:
            self.witness_trouble = ""

    def _settle(self, journal: Journal) -> None:
        """What the journal knows by now is its own to tell."""
        if self._away:
            known = {*map(_accelerator, journal.units)}
            self._away = {u: r for u, r in self._away.items() if _accelerator(u) not in known}

    def _copy(self, reasons: Reasons, *, again: bool = False) -> None:
        reasons = {**self._away, **reasons}
        if self._copied is None or (reasons == self._copied and not again):
            return
        try:
            self._write(reasons)
        except OSError as error:
            self.reasons_trouble = f"quarantine reasons cannot be copied: {error}"
        else:
            self.reasons_trouble, self._copied = "", reasons

    def _read(self) -> Reasons:
        """What can be read of the copy."""
        return mirror.read(self._place.mirror).reasons

    def _write(self, reasons: Reasons) -> None:
        """Replace the copy. Raises OSError."""
        mirror.write(self._place.mirror, reasons)

    def _bear(self, seen: witness.Witness) -> None:
        """Replace the witness. Raises OSError."""
        witness.write(self._place.witness, seen)


def _accelerator(unit: UnitId) -> str:
    return unit.rpartition("/")[0]


def _reasons(units: Mapping[UnitId, Unit]) -> Reasons:
    return {name: unit.reasons for name, unit in units.items() if unit.reasons}
