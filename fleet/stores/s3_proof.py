"""Proof that a bucket keeps what it is given, before anything is entrusted to it (B48).

Settings of a bucket say what it should do; services that only look like S3, and doubles of it, say
so and do otherwise. So the configuration is read, and then a canary is put and read back: its
retention, its encryption with the key that was asked for, and that a second put of the same name is
refused. Its name is made by chance: nobody can put another object there before.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

from fleet.core import errors
from fleet.evidence import archive_names

if TYPE_CHECKING:
    from fleet.stores.s3 import S3Archive
    from fleet.stores.s3_version import Found

CANARY_S = 86_400
"""A canary is kept for two of these, s, at most: to the end of the day after its own (UTC)."""
_MAKE = (
    "a bucket can only be made so, or changed so by versioning and then Object Lock:"
    " `aws s3api create-bucket --object-lock-enabled-for-bucket --bucket {bucket}` (docs/s3.md)"
)


def prove(archive: S3Archive) -> None:
    """Raises `SettingsInvalid` naming everything that speaks against the bucket."""
    against = [*_versioning(archive), *_lock(archive)]
    if not against:
        against = _canary(archive)
    if against:
        raise errors.SettingsInvalid(
            f"{archive.place} cannot keep evidence: {'; '.join(against)}",
            remedy=_MAKE.format(bucket=archive.bucket),
            against=tuple(against),
        )


def _versioning(archive: S3Archive) -> list[str]:
    try:
        found = archive.tried(
            lambda: archive.client.get_bucket_versioning(Bucket=archive.bucket), "tell versioning"
        )
    except errors.CloudFailed as error:
        raise archive.unfit(error, "whether it has versions cannot be read") from error
    status = found.get("Status", "off")
    return [] if status == "Enabled" else [f"its versioning is {status.lower()}"]


def _lock(archive: S3Archive) -> list[str]:
    try:
        found = archive.tried(
            lambda: archive.client.get_object_lock_configuration(Bucket=archive.bucket),
            "tell Object Lock",
        )
    except errors.CloudFailed as error:
        if error.fields["code"] == "ObjectLockConfigurationNotFoundError":
            return ["it has no Object Lock"]
        raise archive.unfit(error, "whether it has Object Lock cannot be read") from error
    enabled = found.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled")
    return [] if enabled == "Enabled" else ["its Object Lock is not enabled"]


def _canary(archive: S3Archive) -> list[str]:
    now = int(archive.patience.clock.now())
    day = now - now % CANARY_S
    until = day + 2 * CANARY_S
    mode = archive.keeping.mode.value.upper()
    key = f"{archive_names.CANARY}{day}.{secrets.token_hex(8)}.{mode.lower()}.json"
    content = json.dumps({"kept_until": until, "mode": mode}, sort_keys=True).encode()
    archive.put(key, content, until=until)
    found = archive.found(key)
    if found is None or found.content != content:
        return ["a canary was put and is not read back as it was"]
    against = []
    if found.mode != mode or found.until < until:
        kept = f"{found.mode or 'no mode'} until {found.until:.0f}"
        against.append(f"a canary was to be kept as {mode} until {until} and is kept as {kept}")
    if found.until <= found.at:
        against.append("by its own clock the retention of a canary was over when it was stored")
    if not found.version or found.version == "null":
        against.append("an object in it has no version")
    against += _encryption(archive, found)
    if archive.put(key, content, until=until):
        against.append("it stores a second object of a name on condition that there is none")
    elif _overwritten(archive, key):
        against.append("it says no to a second object of a name and stores it")
    return against


def _encryption(archive: S3Archive, found: Found) -> list[str]:
    """What was asked for is compared; where nothing was, the bucket's own default is as good."""
    asked = archive.keeping.kms_key
    if not asked:
        return []
    kept = f"{found.encryption or 'nothing'} {found.kms_key}".rstrip()
    alias = asked.rpartition(":")[2].startswith("alias/")  # answered as the key behind it
    same = alias or _key_id(asked) == _key_id(found.kms_key)
    if found.encryption.startswith("aws:kms") and found.kms_key and same:
        return []
    return [f"a canary was to be encrypted with KMS key {asked} and is with {kept}"]


def _key_id(key: str) -> str:
    """The key itself: a setting may leave out what an ARN says besides."""
    return key.rpartition("/")[2]


def _overwritten(archive: S3Archive, key: str) -> bool:
    return sum(one.key == key for one in archive.stored(key)) > 1
