"""`fleet evidence` over an archive: the same verdict, a copy, and what is not there yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli import archive as naming
from fleet.core.clock import SystemClock
from fleet.core.errors import InputInvalid
from fleet.evidence import archive_names
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.replication import Replicator
from tests.cloud.buckets import client, make_bucket, opened
from tests.cloud.server import CloudServer
from tests.fleet.cli.test_evidence import Run, run_fixture
from tests.fleet.evidence.samples import Site, device_named

__all__ = ["run_fixture"]


@pytest.fixture(name="bucket")
def bucket_fixture(cloud: CloudServer) -> str:
    """A bucket with Object Lock."""
    return make_bucket(cloud.endpoint)


@pytest.fixture(name="site")
def site_fixture(
    cloud: CloudServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Site:
    """A node whose first two certificates are in the bucket; AWS's own environment finds it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", cloud.endpoint)
    site = Site(tmp_path / "state")
    site.certify("node-1", rounds=1)
    archive = opened(cloud.endpoint, bucket)
    feed = LedgerFeed(site.state, "node-1", place=archive.place)
    assert Replicator(feed, lambda: archive, clock=SystemClock()).drain()
    return site


def test_an_archive_is_listed_verified_and_copied(
    run: Run, site: Site, bucket: str, tmp_path: Path
) -> None:
    """E3: by its name, with region and endpoint of the environment."""
    place, state = f"s3://{bucket}/fleet", ("--state", site.state)
    code, out, _ = run("verify", place, *state, "--json")
    assert (code, json.loads(out)["certificates"]) == (0, 2)
    code, out, _ = run("list", place, "--device", "node-1-a", *state, "--json")
    (row,) = json.loads(out)["certificates"]
    assert row["place"]["file"].startswith(f"{place}/ledgers/node-1/")
    assert run("export", place, "--to", tmp_path / "copy", *state)[0] == 0
    code, out, _ = run("verify", "--directory", tmp_path / "copy")
    assert (code, "2 certificates" in out) == (0, True)
    key = tmp_path / "state" / "nodes" / "node-1" / "keys" / "node.pub"
    assert run("verify", place, "--key", f"node-1={key}", *state)[0] == 0


def test_what_is_in_the_way_of_a_copy_is_told(run: Run, site: Site, bucket: str) -> None:
    """A mistake in a name comes with what to write."""
    code, _, complaint = run("export", f"s3://{bucket}/fleet", "--state", site.state)
    assert (code, "--to" in complaint) == (2, True)
    code, _, complaint = run("verify", f"s3://{bucket}/elsewhere", "--state", site.state)
    assert (code, "holds no evidence" in complaint) == (2, True)
    with pytest.raises(InputInvalid, match="no archive"):
        naming.opened("bucket/fleet", site.state)


def test_a_list_of_keys_is_copied_as_it_is_signed(
    run: Run, cloud: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E3: a revocation is in the archive at once, or exit 1 and the backlog say that it is not."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", cloud.endpoint)
    site, name = Site(tmp_path), "lists-of-keys"
    site.certify("node-1", rounds=1)
    site.countersign()
    LedgerFeed(site.state, "node-1", place=f"s3://{name}/fleet").save()
    state = ("--state", site.state)
    code, out, _ = run("keys", "list", *state, "--json")
    assert (code, json.loads(out)["number"]) == (1, 1)
    assert f"make the bucket {name}" in json.loads(out)["not_in_the_archive"]
    told = run("list", *state)[1].replace("\n", " ")
    assert f"coordinator: evidence: 3 not in the archive s3://{name}/fleet" in told
    client(cloud.endpoint).create_bucket(
        Bucket=name,
        ObjectLockEnabledForBucket=True,
        CreateBucketConfiguration={"LocationConstraint": "eu-central-1"},
    )
    revoke = ("keys", "revoke", site.key("node-1").key_id, "--reason", "leaked", "--now")
    code, out, complaint = run(*revoke, *state, "--json")
    assert (code, json.loads(out)["not_in_the_archive"]) == (0, ""), complaint
    archive = opened(cloud.endpoint, name)
    (kept,) = archive.stored(archive_names.KEY_LISTS)
    assert archive_names.number_of(kept.key) == 2
    assert [one.key for one in archive.stored(archive_names.COORDINATOR_KEYS)]


def test_the_backlog_is_shown_with_the_certificates(run: Run, site: Site) -> None:
    """Backlog visible: how many are on this host only, and since when."""
    assert "not in the archive" not in run("list", "--state", site.state)[1]
    with site.ledger("node-1") as ledger:
        ledger.append(site.issue(ledger, device_named("node-1-a")).envelope)
    out = run("list", "--state", site.state)[1]
    assert "node-1: evidence: 1 not in the archive s3://" in out
    assert "the oldest of 2023-11-14T" in out


@pytest.mark.parametrize("place", ["nonsense", "s3://", "s3://Bad_Bucket!/x", "s3://b/x?y=1"])
def test_what_is_no_archive_is_told_before_anybody_is_asked(place: str) -> None:
    """E7: a bucket that cannot be one is a mistake of the argument, with what to write."""
    with pytest.raises(InputInvalid, match="is no archive") as told:
        naming.opened(place, None)
    assert "s3://bucket/prefix" in told.value.remedy
