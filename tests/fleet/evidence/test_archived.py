"""An archive is verified as a ledger on disk is, and tells what only an archive can suffer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.clock import ManualClock
from fleet.errors import EvidenceInvalid, InputInvalid
from fleet.evidence import archived, filing, parsed
from fleet.evidence.coordinator_feed import CoordinatorFeed
from fleet.evidence.export import export
from fleet.evidence.keys import KeyRing, SigningKey
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.replicating import Replicator
from fleet.evidence.sources import Trust, collect
from fleet.evidence.verify import Report, verify
from fleet.model import Digest
from fleet.stores.base import RunRecord, RunState
from tests.cloud.archives import MemoryArchive
from tests.fleet.evidence.samples import START, Site, device_named

RUN = RunRecord(id="run-1", state=RunState.FINISHED, started_at=START, finished_at=START + 9)
PLACE = "s3://memory/fleet"


def copy(site: Site, archive: MemoryArchive) -> None:
    """Everything of the site to the archive."""
    clock = ManualClock(START)
    for node in ("node-1", "node-2"):
        feed = LedgerFeed(site.state, node, place=PLACE)
        assert Replicator(feed, lambda: archive, clock=clock).drain()
    runs = CoordinatorFeed(site.state, lambda: [RUN], place=PLACE)
    assert Replicator(runs, lambda: archive, clock=clock).drain()


@pytest.fixture(name="site", scope="module")
def site_fixture(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """node-1 with four certificates, node-2 with two, countersigned, then two more."""
    site = Site(tmp_path_factory.mktemp("archived") / "state")
    site.certify("node-1")
    site.certify("node-2", rounds=1)
    site.countersign()
    site.certify("node-1", rounds=1)
    return site


@pytest.fixture(scope="module")
def whole(site: Site) -> MemoryArchive:
    """All of it, copied."""
    archive = MemoryArchive()
    copy(site, archive)
    return archive


@pytest.fixture
def archive(whole: MemoryArchive) -> MemoryArchive:
    """The same, to be tampered with."""
    objects = {key: list(versions) for key, versions in whole.objects.items()}
    return MemoryArchive(objects=objects)


def judged(archive: MemoryArchive) -> Report:
    """The verifier's word."""
    return verify(archived.collect(archive))


def row_of(archive: MemoryArchive, number: int, node: str = "node-1") -> str:
    """Name of a ledger's row."""
    (key,) = (k for k in archive.objects if k.startswith(f"ledgers/{node}/{number:012d}/"))
    return key


def content_of(archive: MemoryArchive, number: int) -> str:
    """Name of a certificate of node-1."""
    return filing.certificate(filing.read_row(row_of(archive, number)).digest)


def test_an_archive_verifies_as_the_ledgers_do(site: Site, archive: MemoryArchive) -> None:
    """E3: the same verdict and the same figures from both."""
    ours, theirs = verify(collect(site.state)), judged(archive)
    assert theirs.ok, theirs.defects
    assert (theirs.certificates, theirs.units, theirs.ledgers) == (8, 4, 2)
    mine = {**ours.as_json(), "notes": []}
    assert {**theirs.as_json(), "notes": []} == mine


def test_a_copy_of_an_archive_is_the_copy_of_the_ledgers(
    site: Site, archive: MemoryArchive, tmp_path: Path
) -> None:
    """E3: an export from the archive is byte for byte the one from the node's disk."""
    export(collect(site.state), tmp_path / "a")
    done = export(archived.collect(archive), tmp_path / "b")
    assert (done.certificates, done.countersignatures) == (8, 1)
    found = [
        {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*.*")}
        for top in (tmp_path / "a", tmp_path / "b")
    ]
    assert found[0] == found[1]


def _take(name: Callable[[MemoryArchive], str]) -> Callable[[MemoryArchive], object]:
    return lambda archive: archive.objects.pop(name(archive))


def _change(archive: MemoryArchive) -> None:
    stored, content = archive.objects[content_of(archive, 3)][0]
    archive.objects[content_of(archive, 3)] = [(stored, content.replace(b"sig", b"gis"))]


def _of(prefix: str) -> Callable[[MemoryArchive], str]:
    return lambda archive: min(key for key in archive.objects if key.startswith(prefix))


TAMPERINGS: dict[str, tuple[Callable[[MemoryArchive], object], str, str]] = {
    "row taken": (_take(lambda a: row_of(a, 3)), "missing-entries", "ledgers/node-1/000000000004"),
    "certificate taken": (
        _take(lambda a: content_of(a, 3)),
        "missing-file",
        "ledgers/node-1/000000000003",
    ),
    "certificate changed": (_change, "missing-file", "ledgers/node-1/000000000003"),
    "newer version": (
        lambda a: a.lay(content_of(a, 3), b"{}"),
        "overwritten-object",
        "certificates/",
    ),
    "deletion": (
        lambda a: a.lay(content_of(a, 3), b"", marker=True),
        "hidden-object",
        "certificates/",
    ),
    "row written into": (
        lambda a: a.lay(row_of(a, 3), b"x"),
        "altered-entry",
        "ledgers/node-1/000000000003",
    ),
    "row added": (
        lambda a: a.lay(row_of(a, 3).replace("/000000000003/", "/000000000009/"), b""),
        "duplicate-entry",
        "ledgers/node-1/000000000009",
    ),
    "row nobody spells": (
        lambda a: a.lay("ledgers/node-1/x", b""),
        "extra-object",
        "ledgers/node-1/x",
    ),
    "ledger of no node": (
        lambda a: a.lay(f"ledgers/a b/000000000001/{'0' * 64}.{'0' * 64}.v", b""),
        "extra-object",
        "ledgers/a b/",
    ),
    "key of no node": (
        lambda a: a.lay(f"keys/nodes/a b/{'0' * 64}.pub", b"nothing"),
        "key-unusable",
        "keys/nodes/a b/",
    ),
    "stranger's certificate": (
        lambda a: a.lay(filing.certificate(Digest(f"sha256:{'0' * 64}")), b"{}"),
        "extra-object",
        "certificates/0000",
    ),
    "stranger's folder": (lambda a: a.lay("other/x", b""), "extra-object", "other/"),
    "lookup taken": (
        _take(_of(filing.BY_TIME)),
        "missing-object",
        "ledgers/node-1/000000000001",
    ),
    "lookup added": (
        lambda a: a.lay(_of(filing.BY_DEVICE)(a) + "0", b""),
        "extra-object",
        "by-device/",
    ),
    "head taken": (_take(_of(filing.HEADS)), "missing-heads", "heads"),
    "ledger taken": (
        lambda a: (
            [a.objects.pop(k) for k in [*a.objects] if k.startswith("ledgers/node-2")] and None
        ),
        "missing-ledger",
        "heads/",
    ),
    "key of another name": (
        lambda a: a.lay(filing.public_key("0" * 64, "node-1"), b"nothing"),
        "key-unusable",
        "keys/nodes/node-1/",
    ),
    "key taken": (_take(_of("keys/nodes/node-1")), "unknown-key", "ledgers/node-1/000000000001"),
    "run changed": (
        lambda a: a.objects.update(
            {_of(filing.RUNS)(a): [(a.objects[_of("runs/")(a)][0][0], b"{}")]}
        ),
        "altered-file",
        "runs/",
    ),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_tampering_is_found_and_located(archive: MemoryArchive, kind: str) -> None:
    """E3: missing, changed and extra objects are found, each at its own name."""
    change, code, place = TAMPERINGS[kind]
    change(archive)
    report = judged(archive)
    found = [(damage.code, damage.place.file) for damage in report.defects]
    assert any(c == code and p.startswith(f"{PLACE}/{place}") for c, p in found), found


def test_b48_a_forged_newest_version_is_named_and_not_read(archive: MemoryArchive) -> None:
    """B48: the row names the version, so the forged one is told and the certificate still good."""
    archive.lay(content_of(archive, 3), b"{}")
    report = judged(archive)
    assert {damage.code for damage in report.defects} == {"overwritten-object"}
    assert (report.certificates, report.omitted) == (8, 0)


def test_an_upload_that_was_not_finished_is_proof_and_no_defect(
    site: Site, archive: MemoryArchive
) -> None:
    """A node lost between a certificate and its row leaves proof, told as a note."""
    with site.ledger("node-1") as ledger:
        device = device_named("node-1-a")
        one = site.issue(ledger, device)
    archive.lay(filing.certificate(one.digest), one.envelope)
    found = parsed.read(one.envelope)
    archive.lay(next(filing.lookups(found, 7)), b"")
    report = judged(archive)
    assert report.ok, report.defects
    assert any("was not finished" in note for note in report.notes)


def test_an_archive_in_which_something_is_damaged_is_not_copied(
    archive: MemoryArchive, tmp_path: Path
) -> None:
    """A copy must not launder it, and no part of one is left."""
    archive.objects.pop(content_of(archive, 3))
    with pytest.raises(EvidenceInvalid):
        export(archived.collect(archive), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_keys_that_are_trusted_replace_those_found(site: Site, archive: MemoryArchive) -> None:
    """Who signed is shown by keys from elsewhere only."""
    stranger = SigningKey.load_or_create(site.state.parent / "other" / "x.key").public()
    trust = Trust(KeyRing([stranger]))
    report = verify(archived.collect(archive, trust))
    assert {damage.code for damage in report.defects} >= {"unknown-key"}
    assert not any("come from the place" in note for note in report.notes)


def test_a_place_without_evidence_is_told(archive: MemoryArchive) -> None:
    """An empty prefix proves nothing and is no whole evidence."""
    with pytest.raises(InputInvalid, match="holds no evidence"):
        archived.collect(MemoryArchive())
