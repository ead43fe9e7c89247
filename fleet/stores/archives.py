"""Opening the archive of evidence that the settings name, and what copies to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import Replication
from fleet.core.settings import EvidencePolicy, EvidenceSettings
from fleet.evidence import layout
from fleet.evidence.archive import Archive, Opener
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.log_feed import is_required, place_named
from fleet.evidence.replication import Replicator
from fleet.stores import aws
from fleet.stores.base import RunRecord
from fleet.stores.coordinator_feed import CoordinatorFeed
from fleet.stores.s3 import Keeping, Patience, open_s3

WAIT_S = 5.0
"""How long, s, the end of a campaign waits for an archive that answers."""


def opener(chosen: EvidenceSettings, clock: Clock, *, url: str = "") -> Opener:
    """How the archive of the settings is opened, or that at `url` with the rest of the settings."""

    def opened() -> Archive:
        return open_s3(
            url or chosen.archive,
            aws.Place(chosen.region, chosen.endpoint),
            keeping=Keeping(
                chosen.retention_days, chosen.retention_mode, chosen.kms_key, chosen.checksum
            ),
            patience=Patience(chosen.timeout_s, clock),
        )

    return opened


def of_node(chosen: EvidenceSettings, state: Path, node: str, clock: Clock) -> Replicator | None:
    """What copies a node's ledger; None: no archive is named, nor was one. Asks nothing yet.

    An archive that only whoever worked here before was told of (a campaign with a policy of its
    own) is not copied to; what it lacks is told, and holds the node as policy then wanted it.
    """
    required = chosen.policy is EvidencePolicy.REPLICATED
    if chosen.archive:
        feed = LedgerFeed(state, node, place=_spelled(chosen.archive), required=required)
        return Replicator(feed, opener(chosen, clock), clock=clock, required=required)
    cursor = layout.archive_cursor(state, node)
    if not (place := place_named(cursor)):
        return None
    required = required and is_required(cursor)
    feed = LedgerFeed(state, node, place=place, required=required)
    return Replicator(feed, None, clock=clock, required=required, place=place)


@dataclass(frozen=True, slots=True)
class CoordinatorCopies:
    """What a coordinator has copied to the archive."""

    feed: CoordinatorFeed
    replicator: Replicator

    def copy(self, ended: RunRecord | None = None, *, waits: bool = True) -> None:
        """Something was signed or ended: copy it. An archive that answers is waited for shortly."""
        with suppress(errors.LedgerUnavailable):  # the log cannot be read; told by the view
            self.feed.take([] if ended is None else [ended])
        self.replicator.go_on(wait_s=WAIT_S if waits else 0.0)

    def view(self) -> Replication:
        """How far the copies are."""
        return self.replicator.view()


def of_coordinator(
    chosen: EvidenceSettings,
    state: Path,
    runs: Callable[[], Iterable[RunRecord]],
    clock: Clock,
) -> CoordinatorCopies | None:
    """What copies a coordinator's countersignatures and runs; None: no archive is named."""
    if not chosen.archive:
        return None
    feed = CoordinatorFeed(state, runs, place=_spelled(chosen.archive))
    required = chosen.policy is EvidencePolicy.REPLICATED
    return CoordinatorCopies(
        feed, Replicator(feed, opener(chosen, clock), clock=clock, required=required)
    )


def _spelled(archive: str) -> str:
    """One spelling for one place, with or without a slash at its end."""
    return archive.rstrip("/")
