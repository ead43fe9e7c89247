"""Objects of an archive with all their versions: what was laid over one, and what it first held."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from fleet.core import errors
from fleet.evidence import archive_names
from fleet.evidence.archive import Archive, Stored
from fleet.evidence.segments import Damage, Place


def grouped(archive: Archive, prefix: str) -> Iterator[tuple[str, list[Stored]]]:
    """Each name below `prefix`, with its versions, the newest first."""
    for key, versions in groupby(archive.stored(prefix), key=lambda one: one.key):
        yield key, list(versions)


def laid_over(versions: list[Stored], place: Place) -> Iterator[Damage]:
    """What happened to an object after it was put, at `place`."""
    contents = [one for one in versions if not one.marker]
    if len(contents) > 1:
        detail = f"{len(contents) - 1} newer versions were laid over it: {contents[0].version}"
        yield Damage("overwritten-object", detail, place)
    if len(contents) < len(versions):
        yield Damage("hidden-object", "a deletion was laid over it", place)
    for one in contents:
        if one.size > (most := archive_names.most_bytes(one.key)):
            detail = f"has {one.size} bytes, where {most} are the most: not read"
            yield Damage("oversized-object", detail, place)


def oldest(archive: Archive, key: str, versions: list[Stored]) -> bytes | None:
    """The oldest content that is what the name says."""
    for one in reversed([one for one in versions if not one.marker]):
        if one.size > archive_names.most_bytes(key):
            continue
        try:
            return archive.read(key, one.version)
        except errors.InputInvalid:
            continue
    return None
