"""What an archive promises, kept alike by the one on S3 and by its twin in memory."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.evidence import archive_names
from fleet.evidence.archive import Archive
from fleet.evidence.dsse import digest_of
from tests.cloud.archives import MemoryArchive
from tests.cloud.buckets import make_bucket, opened
from tests.cloud.server import CloudServer

CONTENT = b'{"a":1}'
KEY = archive_names.certificate(digest_of(CONTENT))


@pytest.fixture(params=["memory", "s3"])
def archive(request: pytest.FixtureRequest) -> Archive:
    """Each of them."""
    if request.param == "memory":
        return MemoryArchive()
    cloud: CloudServer = request.getfixturevalue("cloud")
    return opened(cloud.endpoint, make_bucket(cloud.endpoint))


def test_an_archive_adds_and_never_changes(archive: Archive) -> None:
    """E3: kept twice is kept once; another content of the name is refused, and both are told."""
    archive.prove()
    first = archive.keep(KEY, CONTENT)
    assert archive.keep(KEY, CONTENT).version == first.version
    plain = archive_names.public_key("0" * 64, "n")
    archive.keep(plain, b"one")
    with pytest.raises(errors.EvidenceConflict):
        archive.keep(plain, b"two")
    assert archive.read(KEY, first.version) == CONTENT
    with pytest.raises(errors.InputInvalid):
        archive.read(archive_names.certificate(digest_of(b"")))


def test_an_archive_says_which_it_is(archive: Archive) -> None:
    """Promise 5: the same word each time, and never none."""
    assert archive.identity() == archive.identity() != ""


def test_a_listing_is_sorted_and_a_folder_is_named(archive: Archive) -> None:
    """Names come in order, folders end with a slash."""
    for key in ("ledgers/b/1", "ledgers/a/2", "ledgers/a/1", "ledgers/c"):
        archive.keep(key, b"")
    assert [one.key for one in archive.stored("ledgers/a")] == ["ledgers/a/1", "ledgers/a/2"]
    assert sorted(archive.below("ledgers/")) == ["ledgers/a/", "ledgers/b/", "ledgers/c"]
    assert set(archive.below("")) >= {"ledgers/"}
