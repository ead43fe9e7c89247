"""Evidence in an archive as verbs name it, and what of this host's is not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from fleet.cli import text
from fleet.cli.options import state_directory
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import Replication
from fleet.core.settings import EvidenceSettings
from fleet.evidence import archive_names, archived, kept_list, layout
from fleet.evidence.archive import Archive
from fleet.evidence.keys import KeyRing
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.log_feed import LogFeed, place_named
from fleet.evidence.sources import Collection, Trust
from fleet.stores import archives
from fleet.stores.coordinator_feed import CoordinatorFeed
from fleet.wiring import adapters
from fleet.wiring.plans import PLAN_FILE

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
    return adapters.plan_fleet(directory).coordinator.settings.evidence


def is_simulated(directory: Path) -> bool:
    """Whether any node planned in this state directory is simulated; without a plan: not known."""
    if not (directory / PLAN_FILE).is_file():
        return False
    return any(plan.simulated is not None for plan in adapters.plan_fleet(directory).nodes)


def opened(place: str, state: Path | None) -> Archive:
    """The archive of that name, with region and endpoint as the fleet's settings say."""
    try:
        EvidenceSettings(archive=place or SCHEME)
    except ValidationError as error:
        raise errors.InputInvalid(
            f"{place!r} is no archive",
            remedy="write s3://bucket/prefix, the bucket in small letters, digits, dots and dashes;"
            " or --directory for a place on this host",
        ) from error
    return archives.opener(chosen(state), SystemClock(), url=place)()


def collected(
    place: str, state: Path | None, keys: Trust | None, coordinator_keys: KeyRing | None
) -> Collection:
    """What is in it, to be verified or copied. Raises as `archived.collect` does."""
    archive = opened(place, state)
    return archived.collect(archive, keys, coordinator_keys=coordinator_keys)


def backlog(state: Path | None) -> Iterator[str]:
    """Lines about what of this host is not in its archive yet: certificates, the coordinator's."""
    directory = state_directory(state)
    feeds: dict[str, LogFeed] = {}
    for node in layout.nodes(directory):
        if place := place_named(layout.archive_cursor(directory, node)):
            feeds[node] = LedgerFeed(directory, node, place=place)
    place = place_named(layout.archive_cursor(directory))
    if not place and layout.key_list(directory).exists():  # signed here, and never copied
        place = _known(directory)
    if place:
        feeds["coordinator"] = CoordinatorFeed(directory, lambda: (), place=place)
    for owner, feed in feeds.items():
        count, oldest_at = feed.waiting()
        found = Replication(archive=feed.place, backlog=count, oldest_at=oldest_at)
        yield from text.replication(owner, found)


def copy_list(state: Path) -> str:
    """Copy the coordinator's list of keys now to the archive that this host copies to, if any.

    Returns why it is not there yet; "" when it is, or when there is no archive.
    """
    place, found = _known(state), kept_list.read(state)
    if not place or found is None:
        return ""
    try:
        archive = opened(place, state)
        for key in kept_list.ring(state):
            archive.keep(archive_names.public_key(key.key_id), key.pem())
        name = archive_names.key_list(found.listed.number, found.name.digest)
        archive.keep(name, found.content)
    except errors.FleetError as error:
        return (
            f"list of keys {found.listed.number} is not in the archive {place} until the"
            f" coordinator copies it, while it works: {error}"
        )
    return ""


def _known(directory: Path) -> str:
    """The archive of this host: as recorded with the fleet, else where copies went; "": none."""
    if place := chosen(directory).archive:
        return place
    owners = ("", *layout.nodes(directory))
    places = (place_named(layout.archive_cursor(directory, owner)) for owner in owners)
    return next(filter(None, places), "")
