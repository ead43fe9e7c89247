"""A bucket is believed by what is read back, not by what it is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.settings import RetentionMode
from fleet.evidence import archive_names
from tests.cloud.buckets import KEEPING, client, make_bucket, opened
from tests.cloud.lossy import Lossy
from tests.cloud.server import CloudServer


@pytest.fixture
def lossy(cloud: CloudServer) -> Iterator[Lossy]:
    """A proxy before the service."""
    with Lossy(cloud.port) as found:
        yield found


def test_b48_a_bucket_that_keeps_is_proven_whatever_lies_there(cloud: CloudServer) -> None:
    """B48, promise 9: no object that others laid there before, or a deletion, stops a start."""
    archive = opened(cloud.endpoint, make_bucket(cloud.endpoint))
    archive.prove()
    (first,) = archive.stored(archive_names.CANARY)
    there = client(cloud.endpoint)
    there.put_object(Bucket=archive.bucket, Key=f"fleet/{first.key}", Body=b"{}")
    there.delete_object(Bucket=archive.bucket, Key=f"fleet/{first.key}")
    archive.prove()
    weaker = replace(KEEPING, mode=RetentionMode.GOVERNANCE)
    opened(cloud.endpoint, archive.bucket, keeping=weaker).prove()
    assert len({one.key for one in archive.stored(archive_names.CANARY)}) == 3


def test_b48_the_key_that_was_asked_for_is_compared(cloud: CloudServer, lossy: Lossy) -> None:
    """B48: a service that encrypts with another key, or not at all, is found with a canary."""
    bucket, name = make_bucket(cloud.endpoint), "arn:aws:kms:eu-central-1:1:key/k-1"
    for asked in (name, "k-1", "alias/evidence"):
        opened(cloud.endpoint, bucket, keeping=replace(KEEPING, kms_key=asked)).prove()
    lossy.dropped = ("x-amz-server-side-encryption",)
    with pytest.raises(errors.SettingsInvalid, match=r"KMS key arn.* and is with nothing"):
        opened(lossy.endpoint, bucket, keeping=replace(KEEPING, kms_key=name)).prove()
    lossy.dropped = ("x-amz-server-side-encryption-aws-kms-key-id",)
    with pytest.raises(errors.SettingsInvalid, match=r"KMS key arn.* and is with aws:kms"):
        opened(lossy.endpoint, bucket, keeping=replace(KEEPING, kms_key=name)).prove()


def test_b48_a_bucket_without_lock_is_refused(cloud: CloudServer) -> None:
    """B48: everything that speaks against it at once, with the command that makes a right one."""
    archive = opened(cloud.endpoint, make_bucket(cloud.endpoint, lock=False))
    with pytest.raises(errors.SettingsInvalid, match="versioning is off; it has no Object") as one:
        archive.prove()
    assert "--object-lock-enabled-for-bucket" in one.value.remedy
    assert list(archive.stored("")) == []


def test_b48_suspended_versioning_is_refused(cloud: CloudServer) -> None:
    """B48: the double lets versioning be suspended under Object Lock; we do not put anything."""
    archive = opened(cloud.endpoint, make_bucket(cloud.endpoint))
    client(cloud.endpoint).put_bucket_versioning(
        Bucket=archive.bucket, VersioningConfiguration={"Status": "Suspended"}
    )
    with pytest.raises(errors.SettingsInvalid, match="versioning is suspended"):
        archive.prove()


@pytest.mark.parametrize(
    ("dropped", "found"),
    [
        ("x-amz-object-lock", "is kept as no mode"),
        ("if-none-match", "stores a second object of a name"),
    ],
)
def test_b48_a_service_that_says_yes_and_does_not_is_refused(
    cloud: CloudServer, lossy: Lossy, dropped: str, found: str
) -> None:
    """B48: retention and conditions that are accepted and ignored are found with a canary."""
    lossy.dropped = (dropped,)
    with pytest.raises(errors.SettingsInvalid, match=found):
        opened(lossy.endpoint, make_bucket(cloud.endpoint)).prove()
