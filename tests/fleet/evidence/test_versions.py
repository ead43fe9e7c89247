"""Versions of an archive's objects: what was laid over one is told, the first right one is read."""

from __future__ import annotations

from fleet.evidence import archived
from fleet.evidence.segments import Place
from tests.cloud.archives import MemoryArchive

PLACE = Place("s3://memory/x")


def test_names_come_with_all_their_versions() -> None:
    """E3: nothing that was laid over an object hides what was there before."""
    archive = MemoryArchive()
    archive.keep("runs/a", b"{}")
    archive.keep("runs/b", b"{}")
    assert [(key, len(some)) for key, some in archived.grouped(archive, "runs/")] == [
        ("runs/a", 1),
        ("runs/b", 1),
    ]
    assert list(archived.laid_over(dict(archived.grouped(archive, "runs/"))["runs/a"], PLACE)) == []


def test_the_first_content_is_what_is_read() -> None:
    """E3: a newer version laid over an object is told, and not read in its place."""
    archive = MemoryArchive()
    archive.keep("runs/a", b"first")
    archive.lay("runs/a", b"second")
    ((key, some),) = archived.grouped(archive, "runs/")
    assert [one.code for one in archived.laid_over(some, PLACE)] == ["overwritten-object"]
    assert archived.oldest(archive, key, some) == b"first"
