"""Evidence in a bucket of S3 that cannot lose it: Object Lock, versions, checksums, no deletion.

1. Every object is put on condition that there is none of its name (If-None-Match). A lost answer is
   tried again as it is: 412 says that something is there, and what is there is read and compared.
   Our own bytes are success, in the oldest version that has them; others are `EvidenceConflict`.
   409 is another request at the same moment: tried again. (B27)
2. Nothing is believed that was not read back: content, retention, and at the start, with a canary,
   that the bucket refuses what it must refuse. (B48) Empty rows that only find a certificate are
   the exception: one that is missing is told by `verify`, and no proof is lost with it.
3. There is no deletion in here, nor a right to it in deploy/aws/iam-evidence.json.
"""

from __future__ import annotations

import base64
import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.core.settings import RetentionMode, UploadChecksum
from fleet.evidence import archive_names
from fleet.evidence.archive import Reference, Stored
from fleet.stores import aws, s3_version
from fleet.stores.aws import Kind
from fleet.stores.s3_version import Found

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

DAY_S = 86_400.0
PAUSE_S, PAUSE_MAX_S = 0.05, 5.0
"""First pause, s, and the longest: doubled each time, and all of it by chance (full jitter)."""
PAGE_KEYS = 1000
"""Names of one page of a listing: the service's limit, and what a listing keeps in memory."""
_RETRIED = frozenset({Kind.UNCERTAIN, Kind.THROTTLED, Kind.CONFLICT})
CHANGED_TRIES = 3
"""Reads of such a content before it is believed: an answer may have been cut on its way."""
_KEPT = "nothing is lost: it is on the node and tried again"
_ASK_AGAIN = (
    "it is away, or the way to it is: ask again later; region, endpoint and network are those of"
    " this host (docs/s3.md)"
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Keeping:
    """How objects are kept."""

    days: int = 400
    mode: RetentionMode = RetentionMode.COMPLIANCE
    kms_key: str = ""
    checksum: UploadChecksum = UploadChecksum.SHA256


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call tries, s, how time passes meanwhile, and chance (0 to below 1)."""

    timeout_s: float = 20.0
    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.SystemRandom().random


class S3Archive:
    """An `Archive` below a prefix of one bucket. Safe for threads; sends nothing before asked."""

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        prefix: str = "",
        *,
        keeping: Keeping = Keeping(),
        patience: Patience | None = None,
    ) -> None:
        self.client = client
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.keeping = keeping
        self.page_keys = PAGE_KEYS
        self.patience = patience or Patience()

    @property
    def place(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def prove(self) -> None:
        """See `fleet.stores.s3_proof`."""
        from fleet.stores import s3_proof  # it knows this module

        s3_proof.prove(self)

    def identity(self) -> str:
        """See `Archive.identity`. It is an object's chance content and its version, the oldest.

        So a copy of a bucket is another archive than the bucket, and what somebody lays over the
        object changes nothing.
        """
        key = archive_names.IDENTITY
        if not (there := self._versions(key)):
            until = self.patience.clock.now() + self.keeping.days * DAY_S
            version = self.put(key, secrets.token_hex(16).encode(), until=until)
            if version and (made := self.found(key, version)) is not None:
                self._judge_retention(key, made, until)
            there = self._versions(key)
        if not there:
            raise errors.SettingsInvalid(
                f"{self.place}/{key} was put and is not listed",
                remedy="the bucket forgets what it is given: use another",
            )
        found = self.found(key, there[0].version)
        content = found.content if found is not None else b""  # what it is does not matter
        return f"{hashlib.sha256(content).hexdigest()[:32]}.{there[0].version}"

    def keep(self, key: str, content: bytes) -> Reference:
        """Store under `key`, read back, compare; see `Archive.keep`."""
        if len(content) > archive_names.most_bytes(key):
            raise errors.EvidenceInvalid(
                f"{key} has {len(content)} bytes, more than the {archive_names.most_bytes(key)}"
                " that an archive keeps under such a name",
                remedy="on the node it stays the evidence; keep it another way besides",
            )
        until = self.patience.clock.now() + self.keeping.days * DAY_S
        version = self.put(key, content, until=until)
        if version and key.startswith(archive_names.LOOKUPS):
            return self._reference(key, version, content)
        found = self.found(key, version) if version else self._ours(key, content)
        if found is None or found.content != content:
            raise errors.EvidenceConflict(
                f"{self.place}/{key} holds other bytes than those to be kept under this name",
                remedy="`fleet evidence verify` names every version; keep both for inquiry. What is"
                " on the node is not touched and stays the evidence",
                key=key,
            )
        if not version and not found.mode:
            found = self._retained(key, found, until)
        self._judge_retention(key, found, until if version else 0.0)
        return self._reference(key, found.version, content, fresh=bool(version))

    def put(self, key: str, content: bytes, *, until: float) -> str:
        """One conditional put, tried until its fate is known. "": something was there before."""
        sent = self._checksum(content)
        encryption: dict[str, Any] = {}  # the bucket's own default, whatever it is
        if self.keeping.kms_key:
            encryption = {
                "ServerSideEncryption": "aws:kms",
                "SSEKMSKeyId": self.keeping.kms_key,
            }

        def once() -> str:
            answer = self.client.put_object(
                Bucket=self.bucket,
                Key=self.prefix + key,
                Body=content,
                ContentType="application/json" if key.endswith(".json") else "text/plain",
                IfNoneMatch="*",
                ObjectLockMode="COMPLIANCE" if self._compliant else "GOVERNANCE",
                ObjectLockRetainUntilDate=datetime.fromtimestamp(int(until), tz=UTC),
                **sent,
                **encryption,
            )
            return str(answer.get("VersionId", ""))

        if until <= self.patience.clock.now():
            raise errors.InputInvalid(f"{key} would be kept until a time that is over")
        try:
            return self.tried(once, f"put {key}", remedy=_KEPT)
        except errors.CloudFailed as error:
            if error.fields["kind"] is Kind.UNMET:
                return ""
            raise self.unfit(error, f"{key} cannot be put") from error

    def found(self, key: str, version: str = "") -> Found | None:
        """One version as it is there; None: there is none, or it is not what its name says."""
        chosen: dict[str, Any] = {"VersionId": version} if version else {}
        if self.keeping.checksum is UploadChecksum.SHA256:
            chosen["ChecksumMode"] = "ENABLED"

        def once() -> Found:
            answer: Any = self.client.get_object(
                Bucket=self.bucket, Key=self.prefix + key, **chosen
            )
            return s3_version.read(key, answer)

        try:
            return self.tried(once, f"get {key}")
        except errors.CloudFailed as error:
            code = error.fields["code"]
            if error.fields["kind"] is Kind.ABSENT or code in s3_version.NOT_OURS:
                return None
            if version and s3_version.is_no_version(error):
                return None  # any other refusal says nothing of what is there (B77)
            raise self.unfit(error, f"{key} cannot be read") from error

    def read(self, key: str, version: str = "") -> bytes:
        """The content of one version; see `Archive.read`."""
        found = self.found(key, version)
        if found is None:
            raise errors.InputInvalid(
                f"{self.place}/{key} is not there, or not as it was put, or larger than"
                f" {archive_names.most_bytes(key)} bytes",
                remedy="see `fleet evidence verify`",
            )
        return found.content

    def below(self, prefix: str) -> Iterator[str]:
        """Folders and objects directly there; see `Archive.below`."""
        for page in self._pages(prefix, {"Delimiter": "/"}):
            for one in page.get("CommonPrefixes", ()):
                yield one["Prefix"].removeprefix(self.prefix)
            for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                yield one["Key"].removeprefix(self.prefix)

    def stored(self, prefix: str) -> Iterator[Stored]:
        """Every version below a prefix, a page at a time; see `Archive.stored`."""
        for page in self._pages(prefix, {}):
            rows = [self._stored(one, marker=False) for one in page.get("Versions", ())]
            rows += [self._stored(one, marker=True) for one in page.get("DeleteMarkers", ())]
            yield from sorted(rows, key=lambda one: (one.key, not one.latest, -one.at))

    def _pages(self, prefix: str, how: dict[str, Any]) -> Iterator[Any]:
        after: dict[str, Any] = {}
        while True:
            asked = {**how, **after, "MaxKeys": self.page_keys, "Prefix": self.prefix + prefix}
            page = self._page(asked, prefix)
            yield page
            if not page.get("IsTruncated"):
                return
            after = {"KeyMarker": page["NextKeyMarker"]}
            if version := page.get("NextVersionIdMarker"):
                after["VersionIdMarker"] = version

    def _page(self, asked: dict[str, Any], prefix: str) -> Any:
        try:
            return self.tried(
                lambda: self.client.list_object_versions(Bucket=self.bucket, **asked),
                f"list {prefix or 'its names'}",
            )
        except errors.CloudFailed as error:
            raise self.unfit(error, f"{prefix or 'it'} cannot be listed") from error

    def _stored(self, one: Any, *, marker: bool) -> Stored:
        return Stored(
            key=one["Key"].removeprefix(self.prefix),
            version=one["VersionId"],
            size=one.get("Size", 0),
            at=one["LastModified"].timestamp(),
            latest=one["IsLatest"],
            marker=marker,
        )

    def _checksum(self, content: bytes) -> dict[str, Any]:
        if self.keeping.checksum is UploadChecksum.SHA256:
            digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
            return {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": digest}
        if self.keeping.checksum is UploadChecksum.MD5:
            digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
            return {"ContentMD5": digest}
        return {}

    @property
    def _compliant(self) -> bool:
        return self.keeping.mode is RetentionMode.COMPLIANCE

    def _ours(self, key: str, content: bytes) -> Found | None:
        """The oldest version with our own bytes, whatever somebody laid over or put before it.

        Always the same one: a name that contains its version is then the same name again.
        """
        for one in self._versions(key):
            if one.size == len(content):
                found = self.found(key, one.version)
                if found is not None and found.content == content:
                    return found
        return None

    def _versions(self, key: str) -> list[Stored]:
        """All contents of one name, the oldest first."""
        return [one for one in self.stored(key) if one.key == key and not one.marker][::-1]

    def _retained(self, key: str, found: Found, until: float) -> Found:
        """Our own bytes that were put without a retention, by a plain copy of a bucket: add one."""
        mode: Any = "COMPLIANCE" if self._compliant else "GOVERNANCE"
        retention: Any = {
            "Mode": mode,
            "RetainUntilDate": datetime.fromtimestamp(int(until), tz=UTC),
        }
        try:
            self.tried(
                lambda: self.client.put_object_retention(
                    Bucket=self.bucket,
                    Key=self.prefix + key,
                    VersionId=found.version,
                    Retention=retention,
                ),
                f"retain {key}",
                remedy=_KEPT,
            )
        except errors.CloudFailed as error:
            raise errors.EvidenceConflict(
                f"{self.place}/{key} was put by others without a retention, and gets none:"
                f" {error.detail}",
                remedy="allow s3:PutObjectRetention (deploy/aws/iam-evidence.json)",
                key=key,
            ) from error
        return self.found(key, found.version) or found

    def _judge_retention(self, key: str, found: Found, until: float) -> None:
        """What was put now is kept as asked; what was there is kept at all, after its storing."""
        kept = found.until >= int(until) and found.until > found.at and bool(found.mode)
        if until and (found.mode == "COMPLIANCE") != self._compliant:
            kept = False
        if not kept:
            raise errors.SettingsInvalid(
                f"{self.place}/{key} is not kept as asked: mode {found.mode or 'none'}, until"
                f" {found.until:.0f}, stored at {found.at:.0f}",
                remedy="the service ignores Object Lock, or the clock of this host is wrong",
            )

    def _reference(
        self, key: str, version: str, content: bytes, *, fresh: bool = True
    ) -> Reference:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return Reference(self.place, key, version, digest, fresh)

    def tried(self, call: Callable[[], _T], what: str, *, remedy: str = _ASK_AGAIN) -> _T:
        """Ask until it is answered.

        Raises `CloudFailed`, or `LedgerUnavailable` with `remedy` after the time.
        """
        patience, count = self.patience, 0
        began = patience.clock.monotonic()
        while True:
            try:
                return aws.ask(call)
            except errors.CloudFailed as error:
                if error.fields["kind"] not in _RETRIED:
                    raise
                if error.fields["code"] in s3_version.CHANGED and count + 1 >= CHANGED_TRIES:
                    raise
                left_s = began + patience.timeout_s - patience.clock.monotonic()
                if left_s <= 0:
                    raise errors.LedgerUnavailable(
                        f"the archive {self.place} did not {what} within"
                        f" {patience.timeout_s:g} s ({count + 1} tries, the last: {error.detail})",
                        remedy=remedy,
                    ) from error
            longest_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(count, 10))
            count += 1
            patience.pause(min(left_s, longest_s * (0.1 + 0.9 * patience.chance())))

    def unfit(self, error: errors.CloudFailed, what: str) -> errors.FleetError:
        """What a refusal of the service means to an operator."""
        kind = error.fields["kind"]
        remedy = "see the bucket and its policy; deploy/aws/iam-evidence.json lists the rights"
        if kind is Kind.ABSENT:
            remedy = f"make the bucket {self.bucket} with Object Lock (docs/s3.md)"
        if error.fields["code"] in aws.NO_CREDENTIALS:
            remedy = aws.CREDENTIALS
        elif kind is Kind.REFUSED:
            remedy = (
                "the service refuses the request as it is sent, not what is in it; where it does"
                " not speak of x-amz-checksum, set evidence.checksum to md5 or none (docs/s3.md)"
            )
        return errors.SettingsInvalid(f"{self.place}: {what}: {error.detail}", remedy=remedy)


def open_s3(
    url: str, place: aws.Place, *, keeping: Keeping, patience: Patience | None = None
) -> S3Archive:
    """The archive at ``s3://bucket/prefix``. Raises `InputInvalid` for any other text."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise errors.InputInvalid(f"{url!r} is no archive", remedy="write s3://bucket/prefix")
    patience = patience or Patience()
    plain = keeping.checksum is not UploadChecksum.SHA256
    client = aws.s3(place, timeout_s=patience.timeout_s, plain=plain)
    return S3Archive(client, bucket, prefix, keeping=keeping, patience=patience)
