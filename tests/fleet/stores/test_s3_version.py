"""An object is read no further than anything of its kind can be long."""

from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO

import pytest

from fleet.core import errors
from fleet.evidence import archive_names
from fleet.evidence.dsse import digest_of
from fleet.stores import s3_version

CONTENT = b'{"a":1}'
KEY = archive_names.certificate(digest_of(CONTENT))
AT = datetime(2023, 11, 14, tzinfo=UTC)


class Body(BytesIO):
    """Remembers how much was asked of it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.asked: list[int | None] = []

    def read(self, size: int | None = -1, /) -> bytes:
        """As a file does."""
        self.asked.append(size)
        return super().read(size)


@pytest.mark.parametrize("told", [300_000_000, 0])
def test_b48_what_is_too_large_is_not_read(told: int) -> None:
    """B48: by the size that the service tells; where it tells none, one byte too many is read."""
    body = Body(b"x" * 2 * 1024 * 1024)
    with pytest.raises(errors.CloudFailed) as caught:
        s3_version.read(KEY, {"Body": body, "ContentLength": told, "LastModified": AT})
    assert caught.value.fields["code"] in s3_version.NOT_OURS
    assert body.asked == ([] if told else [1024 * 1024 + 1])
    assert body.closed


def test_an_answer_says_how_it_is_kept() -> None:
    """B48: retention, encryption and time are the service's word, and told as such."""
    answer = {"Body": BytesIO(CONTENT), "LastModified": AT, "ServerSideEncryption": "aws:kms"}
    found = s3_version.read(KEY, answer)
    assert (found.content, found.mode, found.until) == (CONTENT, "", 0.0)
    assert (found.encryption, found.at) == ("aws:kms", AT.timestamp())
    with pytest.raises(errors.CloudFailed) as caught:
        s3_version.read(KEY, {**answer, "Body": BytesIO(b"{}")})
    assert caught.value.fields["code"] in s3_version.CHANGED
