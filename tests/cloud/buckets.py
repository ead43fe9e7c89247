"""Buckets on loopback, and archives in them as the product opens them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from fleet.core.clock import SystemClock
from fleet.core.settings import RetentionMode
from fleet.stores import aws
from fleet.stores.s3 import Keeping, Patience, S3Archive, open_s3
from tests.cloud.server import REGION

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_NUMBERS = itertools.count(1)


class SkippingClock(SystemClock):
    """The machine's clock, moved on where a pause would have been waited for."""

    def __init__(self) -> None:
        self._skipped_s = 0.0

    def skip(self, seconds: float) -> None:
        """Move on."""
        self._skipped_s += seconds

    def monotonic(self) -> float:
        """With all that was skipped."""
        return super().monotonic() + self._skipped_s


KEEPING = Keeping(days=30, mode=RetentionMode.COMPLIANCE)


def client(endpoint: str) -> S3Client:
    """A client that may do anything."""
    return aws.s3(aws.Place(REGION, endpoint), timeout_s=10.0)


def make_bucket(endpoint: str, *, lock: bool = True) -> str:
    """A new bucket; with Object Lock it has versions too. Its name."""
    name = f"evidence-{next(_NUMBERS)}"
    client(endpoint).create_bucket(
        Bucket=name,
        ObjectLockEnabledForBucket=lock,
        CreateBucketConfiguration={"LocationConstraint": "eu-central-1"},
    )
    return name


def opened(
    endpoint: str,
    bucket: str,
    *,
    prefix: str = "fleet",
    keeping: Keeping = KEEPING,
) -> S3Archive:
    """The archive, which tries for five seconds and waits none of them."""
    clock = SkippingClock()
    patience = Patience(5.0, clock, clock.skip)
    place = aws.Place(REGION, endpoint)
    return open_s3(f"s3://{bucket}/{prefix}", place, keeping=keeping, patience=patience)
