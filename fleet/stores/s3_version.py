"""One version of an object as S3 answers it, and whether it can be what its name says.

A body is read no further than anything of its kind can be long: what somebody put there to fill the
reader's memory is told by its size and never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet.core import errors
from fleet.evidence import archive_names
from fleet.stores.aws import Kind

_DIFFERS, _TOO_LARGE = "DigestDiffers", "TooLarge"
CHANGED = frozenset(
    {"FlexibleChecksumError", "IncompleteReadError", "ResponseStreamingError", _DIFFERS}
)
"""A content that is not what its checksum, its length or its name says."""
NOT_OURS = CHANGED | {_TOO_LARGE}
"""A content that cannot be what was put under its name."""


def is_no_version(error: errors.CloudFailed) -> bool:
    """Whether a service says that it never made a version of this name, in one of several ways.

    A 400 without a word of versions is about the request: no statement about any content.
    """
    code = error.fields["code"]
    return code == "InvalidVersionId" or (
        code == "InvalidArgument" and "version" in error.detail.lower()
    )


@dataclass(frozen=True, slots=True)
class Found:
    """One version as it was read."""

    content: bytes
    version: str
    mode: str
    until: float
    """End of its retention, seconds since the epoch; 0.0: it has none."""
    at: float
    """When it was stored, by the service's clock."""
    encryption: str = ""
    """``AES256``, ``aws:kms``, or another word of the service's."""
    kms_key: str = ""


def read(key: str, answer: Any) -> Found:
    """The answer to GetObject. Raises `CloudFailed`, code among `NOT_OURS`."""
    content = _content(key, answer)
    if not archive_names.matches(key, content):  # not every service sends the checksum back
        told = f"{key} does not hold what its name says"
        raise errors.CloudFailed(told, kind=Kind.UNCERTAIN, code=_DIFFERS)
    until = answer.get("ObjectLockRetainUntilDate")
    return Found(
        content=content,
        version=str(answer.get("VersionId", "")),
        mode=str(answer.get("ObjectLockMode", "")),
        until=until.timestamp() if until is not None else 0.0,
        at=answer["LastModified"].timestamp(),
        encryption=str(answer.get("ServerSideEncryption", "")),
        kms_key=str(answer.get("SSEKMSKeyId", "")),
    )


def _content(key: str, answer: Any) -> bytes:
    most, body = archive_names.most_bytes(key), answer["Body"]
    content = b""
    if (size := int(answer.get("ContentLength", 0))) <= most:
        content = body.read(most + 1)
        size = max(size, len(content))
    if size > most:
        body.close()
        told = f"{key} has {size} bytes, more than the {most} it can have"
        raise errors.CloudFailed(told, kind=Kind.REFUSED, code=_TOO_LARGE)
    return bytes(content)
