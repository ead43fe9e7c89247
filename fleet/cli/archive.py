"""Evidence in an archive as verbs name it, and what of this host's is not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fleet import bootstrap, errors
from fleet.cli import text
from fleet.cli.options import state_directory
from fleet.clock import SystemClock
from fleet.evidence import archived, layout
from fleet.evidence.archive import Archive
from fleet.evidence.keys import KeyRing
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.log_feed import place_named
from fleet.evidence.sources import Collection, Trust
from fleet.messages import Replication
from fleet.planning import PLAN_FILE
from fleet.settings import EvidenceSettings
from fleet.stores import archiving

SCHEME = "s3://"
PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="[s3://BUCKET/PREFIX]",
        help="The archive; without it the options name a place on this host.",
        show_default=False,
    ),
]


def chosen(state: Path | None) -> EvidenceSettings:
    """The settings recorded with the fleet in the state directory, else the defaults.

    Region and endpoint are then those of the environment (AWS_REGION, AWS_ENDPOINT_URL_S3).
    """
    directory = state_directory(state)
    if not (directory / PLAN_FILE).is_file():
        return EvidenceSettings()
    return bootstrap.plan_fleet(directory).coordinator.settings.evidence


def opened(place: str, state: Path | None) -> Archive:
    """The archive of that name, with region and endpoint as the fleet's settings say."""
    if not place.startswith(SCHEME):
        raise errors.InputInvalid(
            f"{place!r} is no archive",
            remedy="write s3://bucket/prefix, or --directory for a place on this host",
        )
    return archiving.opener(chosen(state), SystemClock(), url=place)()


def collected(
    place: str, state: Path | None, keys: Trust | None, coordinator_keys: KeyRing | None
) -> Collection:
    """What is in it, to be verified or copied. Raises as `archived.collect` does."""
    archive = opened(place, state)
    return archived.collect(archive, keys, coordinator_keys=coordinator_keys)


def backlog(state: Path | None) -> Iterator[str]:
    """Lines about the certificates of this host's nodes that are not in their archive yet."""
    directory = state_directory(state)
    for node in layout.nodes(directory):
        if place := place_named(layout.archive_cursor(directory, node)):
            count, oldest_at = LedgerFeed(directory, node, place=place).waiting()
            found = Replication(archive=place, backlog=count, oldest_at=oldest_at)
            yield from text.replication(node, found)
