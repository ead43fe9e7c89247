"""The archive on S3: conditional puts, what is read back, and nothing ever taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.settings import UploadChecksum
from fleet.evidence import archive_names
from fleet.evidence.dsse import digest_of
from fleet.stores.aws import Kind
from fleet.stores.s3 import S3Archive, open_s3
from tests.cloud.buckets import KEEPING, client, make_bucket, opened
from tests.cloud.lossy import Fault, Lossy
from tests.cloud.server import CloudServer

CONTENT = b'{"a":1}'
KEY = archive_names.certificate(digest_of(CONTENT))
ROW = archive_names.row(archive_names.Row("n", "0" * 16, 1, digest_of(CONTENT), "c" * 64, "v"))
POLICY = Path("deploy/aws/iam-evidence.json")


@pytest.fixture
def bucket(cloud: CloudServer) -> str:
    """A bucket with Object Lock."""
    return make_bucket(cloud.endpoint)


@pytest.fixture
def archive(cloud: CloudServer, bucket: str) -> S3Archive:
    """An archive in it."""
    return opened(cloud.endpoint, bucket)


@pytest.fixture
def lossy(cloud: CloudServer) -> Iterator[Lossy]:
    """A proxy before the service."""
    with Lossy(cloud.port) as found:
        yield found


def versions(archive: S3Archive, key: str = KEY) -> list[bytes]:
    """Every version under a name, newest first."""
    return [
        archive.client.get_object(
            Bucket=archive.bucket, Key=archive.prefix + key, VersionId=one.version
        )["Body"].read()
        for one in archive.stored(key)
    ]


def forge(cloud: CloudServer, bucket: str, content: bytes, key: str = KEY) -> None:
    """Lay a newer version over an object, as whoever has the right to put may."""
    client(cloud.endpoint).put_object(Bucket=bucket, Key=f"fleet/{key}", Body=content)


def test_what_is_kept_is_listed_and_read_back(archive: S3Archive) -> None:
    """E3: an object is put with checksum and retention, listed, and read by its version."""
    reference = archive.keep(KEY, CONTENT)
    assert (reference.fresh, reference.digest) == (True, digest_of(CONTENT))
    (row,) = archive.stored(archive_names.CERTIFICATES)
    assert (row.key, row.version, row.size, row.latest) == (KEY, reference.version, 7, True)
    assert archive.read(KEY, reference.version) == CONTENT
    found = archive.found(KEY)
    assert found is not None
    assert found.mode == "COMPLIANCE"
    assert found.until - found.at == pytest.approx(KEEPING.days * 86_400, abs=3)


def test_without_credentials_these_are_asked_for(archive: S3Archive) -> None:
    """E7: nobody looks for a missing right in a policy when there was nothing to sign with."""
    for code, told in (("NoCredentialsError", "give credentials"), ("AccessDenied", "policy")):
        refused = errors.CloudFailed(code, kind=Kind.DENIED, code=code)
        assert told in archive.unfit(refused, "it cannot be listed").remedy


def test_kept_twice_is_kept_once(archive: S3Archive) -> None:
    """Promise 7: what is put again after a crash is the same version of the same object."""
    first, again = archive.keep(KEY, CONTENT), archive.keep(KEY, CONTENT)
    assert (again.version, again.fresh) == (first.version, False)
    assert versions(archive) == [CONTENT]


def test_b27_a_lost_answer_is_our_own_object(lossy: Lossy, bucket: str) -> None:
    """B27 a: stored, then the connection drops: 412 is read back as ours; one version exists."""
    archive = opened(lossy.endpoint, bucket)
    lossy.next("PUT", Fault.LOSE_ANSWER)
    assert archive.keep(KEY, CONTENT).digest == digest_of(CONTENT)
    assert [method for method, _ in lossy.seen] == ["PUT", "PUT", "GET", "GET"]
    assert versions(archive) == [CONTENT]


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.SLOW_DOWN, Fault.LOSE_REQUEST])
def test_b27_a_busy_service_is_tried_again(lossy: Lossy, bucket: str, fault: Fault) -> None:
    """B27 b, d: 409, 503 and a lost request are tried again until the object is there."""
    archive = opened(lossy.endpoint, bucket)
    lossy.next("PUT", fault, fault, fault)
    assert archive.keep(KEY, CONTENT).fresh
    assert versions(archive) == [CONTENT]


def test_b27_another_content_of_the_same_name_is_an_error(
    cloud: CloudServer, archive: S3Archive, bucket: str
) -> None:
    """B27 c: 412 because something else is there: told as a conflict, and nothing is put."""
    forge(cloud, bucket, b"other")
    with pytest.raises(errors.EvidenceConflict, match="other bytes") as caught:
        archive.keep(KEY, CONTENT)
    assert caught.value.fields["key"] == KEY
    assert versions(archive) == [b"other"]


def test_b27_an_object_read_back_otherwise_is_not_kept(lossy: Lossy, bucket: str) -> None:
    """B27 e: 200, and what is read back is not what was put: not kept, however often asked."""
    archive = opened(lossy.endpoint, bucket)
    lossy.rule = lambda method, _: Fault.CUT if method == "GET" else None
    with pytest.raises(errors.EvidenceConflict):
        archive.keep(KEY, CONTENT)


def test_b27_an_answer_cut_on_its_way_is_read_again(lossy: Lossy, bucket: str) -> None:
    """B27 e: one damaged answer is no damaged object."""
    archive = opened(lossy.endpoint, bucket)
    lossy.next("GET", Fault.CUT)
    assert archive.keep(KEY, CONTENT).fresh


def test_b48_a_forged_newest_version_is_not_ours(
    cloud: CloudServer, archive: S3Archive, bucket: str
) -> None:
    """B48: a newer version laid over an object is not read in its place, and ours still counts."""
    reference = archive.keep(KEY, CONTENT)
    forge(cloud, bucket, b"forged")
    assert versions(archive) == [b"forged", CONTENT]
    with pytest.raises(errors.InputInvalid, match="not as it was put"):
        archive.read(KEY)
    assert archive.read(KEY, reference.version) == CONTENT
    assert archive.keep(KEY, CONTENT).version == reference.version


def test_b27_of_our_own_versions_the_oldest_counts(
    cloud: CloudServer, archive: S3Archive, bucket: str
) -> None:
    """B27, promise 7: our own bytes laid over ours change no name that contains a version."""
    reference = archive.keep(KEY, CONTENT)
    forge(cloud, bucket, CONTENT)
    forge(cloud, bucket, b"forged")
    again = archive.keep(KEY, CONTENT)
    assert (again.version, again.fresh) == (reference.version, False)


@pytest.mark.parametrize(("key", "content"), [(KEY, CONTENT), (ROW, b"")])
def test_b48_what_was_copied_without_a_retention_gets_one(
    cloud: CloudServer, archive: S3Archive, bucket: str, key: str, content: bytes
) -> None:
    """B48: a bucket filled by plain copies is kept from then on, and holds up nothing."""
    forge(cloud, bucket, content, key)
    reference = archive.keep(key, content)
    assert not reference.fresh
    found = archive.found(key, reference.version)
    assert found is not None
    assert found.mode == "COMPLIANCE"
    assert found.until - found.at > (KEEPING.days - 1) * 86_400


def test_b48_a_copy_that_cannot_be_retained_holds_up_no_other(
    cloud: CloudServer, lossy: Lossy, bucket: str
) -> None:
    """B48, promise 9: it is that object's trouble, and set aside as such."""
    forge(cloud, bucket, CONTENT)
    archive = opened(lossy.endpoint, bucket)
    events: Any = archive.client.meta.events

    def deny(**_: Any) -> None:
        raise errors.CloudFailed("AccessDenied: no", kind=Kind.DENIED, code="AccessDenied")

    events.register("before-call.s3.PutObjectRetention", deny)
    with pytest.raises(errors.EvidenceConflict, match="without a retention, and gets none"):
        archive.keep(KEY, CONTENT)


def test_b48_the_row_that_completes_an_entry_is_read_back(lossy: Lossy, bucket: str) -> None:
    """B48: a retention that is lost at the last put is found, not only at the first."""
    archive = opened(lossy.endpoint, bucket)
    archive.keep(KEY, CONTENT)
    lossy.dropped = ("x-amz-object-lock",)
    with pytest.raises(errors.SettingsInvalid, match="not kept as asked: mode none"):
        archive.keep(ROW, b"")


def test_an_archive_is_known_from_another_of_its_name(
    cloud: CloudServer, archive: S3Archive, bucket: str
) -> None:
    """Promise 5: chance made it; what is laid over it, or copied elsewhere, is not it."""
    first = archive.identity()
    assert archive.identity() == first
    kept = archive.found(archive_names.IDENTITY)
    assert kept is not None
    assert kept.mode == "COMPLIANCE"
    forge(cloud, bucket, b"other", archive_names.IDENTITY)
    client(cloud.endpoint).delete_object(Bucket=bucket, Key=f"fleet/{archive_names.IDENTITY}")
    assert opened(cloud.endpoint, bucket).identity() == first
    copied = make_bucket(cloud.endpoint)
    forge(cloud, copied, kept.content, archive_names.IDENTITY)
    assert opened(cloud.endpoint, copied).identity() not in ("", first)
    huge = make_bucket(cloud.endpoint)
    forge(cloud, huge, b"x" * (64 * 1024 + 1), archive_names.IDENTITY)
    assert opened(cloud.endpoint, huge).identity() not in ("", first)


def test_what_is_too_large_for_its_name_is_neither_put_nor_read(
    cloud: CloudServer, archive: S3Archive, bucket: str
) -> None:
    """B48: an object that fills the reader's memory is told, whoever laid it there."""
    name, large = archive_names.public_key("0" * 64, "n"), b"x" * (64 * 1024 + 1)
    with pytest.raises(errors.EvidenceInvalid, match="more than the 65536"):
        archive.keep(name, large)
    forge(cloud, bucket, large, name)
    with pytest.raises(errors.InputInvalid, match="larger than 65536 bytes"):
        archive.read(name)


def test_a_version_that_was_never_made_is_absent(archive: S3Archive) -> None:
    """E3: services say it in several ways; rows of a copied bucket name such versions."""
    archive.keep(KEY, CONTENT)
    assert archive.found(KEY, "Hq7nXcL2vT9sWm4kJp0aBd3eFg5hIu6y") is None


def test_a_key_is_named_only_where_it_was_asked_for(cloud: CloudServer, bucket: str) -> None:
    """E3: without a key of ours the bucket's own default encryption decides, KMS included."""
    sent: list[dict[str, Any]] = []
    for key in ("", "arn:aws:kms:eu-central-1:1:key/k"):
        archive = opened(cloud.endpoint, bucket, keeping=replace(KEEPING, kms_key=key))
        events: Any = archive.client.meta.events
        events.register("before-call.s3.PutObject", lambda params, **_: sent.append(params))
        archive.keep(archive_names.public_key("0" * 64, f"n{len(sent)}"), b"x")
    plain, named = ({name.lower() for name in one["headers"]} for one in sent)
    assert not any("server-side-encryption" in name for name in plain)
    assert "x-amz-server-side-encryption-aws-kms-key-id" in named


def test_b48_a_service_that_ignores_retention_keeps_nothing(lossy: Lossy, bucket: str) -> None:
    """B48: retention accepted and ignored is found at every object that is read back."""
    lossy.dropped = ("x-amz-object-lock",)
    with pytest.raises(errors.SettingsInvalid, match="not kept as asked: mode none"):
        opened(lossy.endpoint, bucket).keep(KEY, CONTENT)


def test_b48_nothing_is_kept_until_a_time_that_is_over(archive: S3Archive) -> None:
    """B48: the double takes dates in the past, so our code does not send them."""
    with pytest.raises(errors.InputInvalid, match="a time that is over"):
        archive.put(KEY, CONTENT, until=archive.patience.clock.now() - 1)
    assert list(archive.stored("")) == []


def test_a_service_that_is_away_is_told_apart(lossy: Lossy, bucket: str) -> None:
    """Nothing is lost while the archive is away: it is told as such, with how it was tried."""
    lossy.rule = lambda *_: Fault.LOSE_REQUEST
    archive = opened(lossy.endpoint, bucket)
    with pytest.raises(errors.LedgerUnavailable, match="did not put certificates/") as caught:
        archive.keep(KEY, CONTENT)
    assert "nothing is lost" in caught.value.remedy
    with pytest.raises(errors.LedgerUnavailable, match="did not list its names within") as caught:
        list(archive.stored(""))
    assert "ask again later" in caught.value.remedy
    assert "on the node" not in caught.value.remedy


def test_a_bucket_that_is_not_there_is_named(cloud: CloudServer) -> None:
    """What to do comes with the error."""
    with pytest.raises(errors.SettingsInvalid, match="NoSuchBucket") as caught:
        opened(cloud.endpoint, "evidence-nowhere").keep(KEY, CONTENT)
    assert "Object Lock" in caught.value.remedy


def test_a_listing_comes_in_pages(archive: S3Archive) -> None:
    """A listing of any length is read page by page; a deletion in it is shown, not followed."""
    archive.page_keys = 2
    keys = [f"by-time/{number}" for number in range(5)]
    for key in keys:
        archive.keep(key, b"")
    archive.client.delete_object(Bucket=archive.bucket, Key=f"fleet/{keys[1]}")
    rows = list(archive.stored(archive_names.BY_TIME))
    assert [row.key for row in rows if not row.marker] == keys
    assert [row.key for row in rows if row.marker] == [keys[1]]


def test_the_rights_listed_are_those_used(cloud: CloudServer, archive: S3Archive) -> None:
    """Least privilege: deploy/aws/iam-evidence.json allows the calls made, and no other."""
    made: set[str] = set()
    events: Any = archive.client.meta.events
    events.register("before-call.s3", lambda model, params, **_: made.update(rights(model, params)))
    archive.prove()
    archive.identity()
    archive.keep(KEY, CONTENT)
    forge(cloud, archive.bucket, b"", ROW)
    archive.keep(ROW, b"")
    archive.read(KEY, archive.keep(KEY, CONTENT).version)
    assert list(archive.stored(""))
    statements = json.loads(POLICY.read_text())["Statement"]
    allowed = {right for one in statements if one["Effect"] == "Allow" for right in one["Action"]}
    denies = [one for one in statements if one["Effect"] == "Deny"]
    denied = {right for one in denies if "Condition" not in one for right in one["Action"]}
    (bounded,) = (one for one in denies if "Condition" in one)
    assert bounded["Action"] == ["s3:PutObject"]
    assert bounded["Condition"] == {"Null": {"s3:if-none-match": "true"}}, "over an object: never"
    assert made == allowed
    assert not made & denied
    assert {"s3:DeleteObject", "s3:DeleteObjectVersion", "s3:BypassGovernanceRetention"} <= denied


def rights(model: Any, params: dict[str, Any]) -> set[str]:
    """The rights one call needs, by the service's reference of its actions."""
    versioned = "versionId" in params["query_string"]
    return {
        "PutObject": {"s3:PutObject", "s3:PutObjectRetention"},
        "PutObjectRetention": {"s3:PutObjectRetention"},
        "GetObject": {
            "s3:GetObjectVersion" if versioned else "s3:GetObject",
            "s3:GetObjectRetention",
            "s3:ListBucket",  # else what is not there is answered as a refusal (403)
        },
        "ListObjectVersions": {"s3:ListBucketVersions"},
        "GetBucketVersioning": {"s3:GetBucketVersioning"},
        "GetObjectLockConfiguration": {"s3:GetBucketObjectLockConfiguration"},
    }[model.name]


def test_an_address_is_a_bucket_and_a_prefix() -> None:
    """Any other text is refused before anything is sent."""
    from fleet.stores import aws

    place = aws.Place("eu-central-1", "http://127.0.0.1:9")
    found = open_s3("s3://bucket-a/b/c/", place, keeping=KEEPING)
    assert (found.bucket, found.prefix, found.place) == ("bucket-a", "b/c/", "s3://bucket-a/b/c")
    with pytest.raises(errors.InputInvalid, match="no archive"):
        open_s3("https://bucket-a", place, keeping=KEEPING)


def test_b77_a_service_that_refuses_checksums_is_spoken_to_without(
    lossy: Lossy, bucket: str
) -> None:
    """B77: a certificate is kept where a checksum of some kind is demanded, and with md5 in the
    settings where x-amz-checksum-* is refused; the digest is that of the stored body."""
    lossy.demanded = ("content-md5", "x-amz-checksum-sha256")
    other = b'{"b":2}'
    kept = opened(lossy.endpoint, bucket).keep(archive_names.certificate(digest_of(other)), other)
    assert kept.digest == digest_of(other)
    lossy.refused = ("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer")
    keeping = replace(KEEPING, checksum=UploadChecksum.MD5)
    archive = opened(lossy.endpoint, bucket, keeping=keeping)
    reference = archive.keep(KEY, CONTENT)
    assert reference.digest == digest_of(CONTENT)
    assert archive.read(KEY, reference.version) == CONTENT


def test_b77_without_a_checksum_none_is_sent(cloud: CloudServer, bucket: str) -> None:
    """B77: `none` is none, the client library's own included."""
    sent: list[str] = []
    keeping = replace(KEEPING, checksum=UploadChecksum.NONE)
    archive = opened(cloud.endpoint, bucket, keeping=keeping)
    events: Any = archive.client.meta.events
    events.register("before-send.s3.PutObject", lambda request, **_: sent.extend(request.headers))
    with pytest.raises(errors.SettingsInvalid):  # this service demands one
        archive.keep(KEY, CONTENT)
    assert sent
    assert not [name for name in sent if "checksum" in name.lower() or "md5" in name.lower()]


def test_b77_a_refusal_is_no_statement_about_content(lossy: Lossy, bucket: str) -> None:
    """B77: a 400 to a read or a write says what to set, and never that something is not there."""
    archive = opened(lossy.endpoint, bucket)
    reference = archive.keep(KEY, CONTENT)
    lossy.refused = ("x-amz-checksum",)
    for act in (
        lambda: archive.read(KEY, reference.version),
        lambda: archive.found(KEY, reference.version),
        lambda: archive.keep(ROW, b""),
    ):
        with pytest.raises(errors.SettingsInvalid, match=r"evidence\.checksum"):
            act()
    assert lossy.seen.count(("PUT", f"/{bucket}/fleet/{ROW}")) <= 1
