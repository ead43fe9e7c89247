"""An archive is verified as a ledger on disk is, and tells what only an archive can suffer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.clock import ManualClock
from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.core.model import Digest, NodeName
from fleet.evidence import archive_names, archived, dsse, heads, key_list, layout, parsed
from fleet.evidence.export import export
from fleet.evidence.judged import judge
from fleet.evidence.key_list import Listed
from fleet.evidence.keys import KeyRing, SigningKey
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.ledger_feed import LedgerFeed
from fleet.evidence.replication import Replicator
from fleet.evidence.sources import Trust, collect
from fleet.evidence.verify import Report, verify
from fleet.stores.base import RunRecord, RunState
from fleet.stores.coordinator_feed import CoordinatorFeed
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


def prefix_of(archive: MemoryArchive, number: int, node: str = "node-1") -> str:
    """How the name of that row begins."""
    ledger = next(k for k in archive.objects if k.startswith(f"ledgers/{node}/")).split("/")[2]
    return f"ledgers/{node}/{ledger}/{number:012d}/"


def row_of(archive: MemoryArchive, number: int, node: str = "node-1") -> str:
    """Name of a ledger's row."""
    (key,) = (k for k in archive.objects if k.startswith(prefix_of(archive, number, node)))
    return key


def unfolded(key: str) -> str:
    """A name without the ledger's identity."""
    return re.sub(r"(ledgers/[^/]+/)[0-9a-f]{16}/", r"\1", key)


def content_of(archive: MemoryArchive, number: int) -> str:
    """Name of a certificate of node-1."""
    return archive_names.certificate(archive_names.read_row(row_of(archive, number)).digest)


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


def _swell(archive: MemoryArchive) -> None:
    (stored, content), *_ = archive.objects[(key := _of(archive_names.RUNS)(archive))]
    archive.objects[key] = [(replace(stored, size=300_000_000), content)]


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
    "row without a ledger": (
        lambda a: a.lay(f"ledgers/node-1/000000000001/{'0' * 64}.{'0' * 64}.v", b""),
        "extra-object",
        "ledgers/node-1/000000000001/",
    ),
    "ledger of another name": (
        lambda a: a.lay(f"ledgers/node-1/{'0' * 16}/{row_of(a, 1).split('/', 3)[3]}", b""),
        "extra-object",
        "ledgers/node-1/000000000001/",
    ),
    "key that fills the memory": (
        lambda a: a.lay(_of("keys/nodes/node-1")(a), b"x" * (64 * 1024 + 1)),
        "oversized-object",
        "keys/nodes/node-1/",
    ),
    "run that fills the memory": (_swell, "oversized-object", "runs/"),
    "stranger's certificate": (
        lambda a: a.lay(archive_names.certificate(Digest(f"sha256:{'0' * 64}")), b"{}"),
        "extra-object",
        "certificates/0000",
    ),
    "stranger's folder": (lambda a: a.lay("other/x", b""), "extra-object", "other/"),
    "lookup taken": (
        _take(_of(archive_names.BY_TIME)),
        "missing-object",
        "ledgers/node-1/000000000001",
    ),
    "lookup added": (
        lambda a: a.lay(_of(archive_names.BY_DEVICE)(a) + "0", b""),
        "extra-object",
        "by-device/",
    ),
    "head taken": (_take(_of(archive_names.HEADS)), "missing-heads", "heads"),
    "ledger taken": (
        lambda a: (
            [a.objects.pop(k) for k in [*a.objects] if k.startswith("ledgers/node-2")] and None
        ),
        "missing-ledger",
        "heads/",
    ),
    "key of another name": (
        lambda a: a.lay(archive_names.public_key("0" * 64, "node-1"), b"nothing"),
        "key-unusable",
        "keys/nodes/node-1/",
    ),
    "key taken": (_take(_of("keys/nodes/node-1")), "unknown-key", "ledgers/node-1/000000000001"),
    "run changed": (
        lambda a: a.objects.update(
            {_of(archive_names.RUNS)(a): [(a.objects[_of("runs/")(a)][0][0], b"{}")]}
        ),
        "altered-file",
        "runs/",
    ),
}


def test_an_older_list_of_keys_hides_no_revocation(site: Site, archive: MemoryArchive) -> None:
    """E3, B48: the highest signed number counts, under whatever name; each way back is told."""
    coordinator = KeyRing([site.coordinator.public()])
    made: list[bytes] = []
    for number in (1, 2):
        previous = dsse.digest_of(made[-1]) if made else None
        listed = {k: Listed(k, "node-1", 0.0) for k in [site.key("node-1").key_id]}
        if number == 2:
            listed = {k: replace(one, revoked_at=START) for k, one in listed.items()}
        key = site.coordinator
        made.append(key_list.sign(listed, number=number, previous=previous, key=key, now=START))
        archive.lay(archive_names.key_list(number, dsse.digest_of(made[-1])), made[-1])

    def told() -> set[str]:
        found = archived.collect(archive, coordinator_keys=coordinator)
        assert found.key_list == made[1]
        return {damage.code for damage in verify(found).defects}

    assert told() == {"revoked-key"}
    archive.lay(archive_names.key_list(999, dsse.digest_of(made[0])), made[0])
    assert told() == {"revoked-key", "misnamed-key-list"}
    newest = archive_names.key_list(2, dsse.digest_of(made[1]))
    archive.lay(newest, b"{}")
    archive.lay(newest, b"", marker=True)
    assert {"overwritten-object", "hidden-object", "revoked-key"} <= told()


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_tampering_is_found_and_located(archive: MemoryArchive, kind: str) -> None:
    """E3: missing, changed and extra objects are found, each at its own name."""
    change, code, place = TAMPERINGS[kind]
    change(archive)
    report = judged(archive)
    found = [(damage.code, unfolded(damage.place.file)) for damage in report.defects]
    assert any(c == code and p.startswith(f"{PLACE}/{place}") for c, p in found), found


def test_b48_a_forged_newest_version_is_named_and_not_read(archive: MemoryArchive) -> None:
    """B48: the row names the version, so the forged one is told and the certificate still good."""
    archive.lay(content_of(archive, 3), b"{}")
    report = judged(archive)
    assert {damage.code for damage in report.defects} == {"overwritten-object"}
    assert (report.certificates, report.omitted) == (8, 0)


def test_a_copy_of_a_bucket_is_verified_with_the_versions_it_has(archive: MemoryArchive) -> None:
    """E3: restored or copied elsewhere, an archive has other versions and is proof all the same."""
    copied = MemoryArchive()
    for key, versions in archive.objects.items():
        stored, content = versions[0]
        copied.objects[key] = [(replace(stored, version=f"other-{stored.version}"), content)]
    report = judged(copied)
    assert report.ok, report.defects
    assert (report.certificates, report.countersigned) == (8, 6)
    (note,) = (note for note in report.notes if "node-1/" in note and "another version" in note)
    assert ": 6 certificates were read" in note
    stored, content = copied.objects[content_of(copied, 3)][0]
    copied.objects[content_of(copied, 3)] = [(stored, content.replace(b"sig", b"gis"))]
    assert "missing-file" in {damage.code for damage in judged(copied).defects}


def test_a_replaced_node_has_two_ledgers_of_which_none_convicts_the_other(tmp_path: Path) -> None:
    """B62, promise 5: a disk that was lost is not tampering, and each ledger is verified."""
    site, archive = Site(tmp_path / "state"), MemoryArchive()
    site.certify("node-1")
    site.certify("node-2", rounds=1)
    site.countersign()
    copy(site, archive)
    shutil.rmtree(layout.node_directory(site.state, "node-1"))
    site.keys.clear()
    site.certify("node-1", rounds=1)
    site.countersign()
    copy(site, archive)
    report = judged(archive)
    assert report.ok, report.defects
    assert (report.ledgers, report.certificates, report.countersigned) == (3, 8, 8)
    assert {one.node for one in judge(archived.collect(archive)).certificates} == {
        "node-1",
        "node-2",
    }
    export(archived.collect(archive), tmp_path / "copy")
    copied = verify(collect(tmp_path / "copy"))
    assert copied.ok, copied.defects
    assert (copied.ledgers, copied.certificates, copied.countersigned) == (3, 8, 8)
    rows = [key for key in archive.objects if key.startswith("ledgers/node-1/")]
    ledgers = {key.split("/")[2] for key in rows}
    assert len(ledgers) == 2
    for ledger in ledgers:
        cut = MemoryArchive(objects=dict(archive.objects))
        rows = [key for key in cut.objects if key.startswith(f"ledgers/node-1/{ledger}/")]
        del cut.objects[max(rows)]
        found = {(damage.code, damage.place.file) for damage in judged(cut).defects}
        assert ("tail-cut", f"{PLACE}/ledgers/node-1/{ledger}") in found


@pytest.fixture(name="moved")
def moved_fixture(tmp_path: Path) -> MemoryArchive:
    """A coordinator signed twice, once on another host with a key of its own, and twice again."""
    site, archive, aside = Site(tmp_path / "state"), MemoryArchive(), tmp_path / "first host"
    here = layout.coordinator_directory(site.state)

    def sign(times: int) -> None:
        for _ in range(times):
            site.certify("node-1", rounds=1)
            site.countersign()
        copy(site, archive)

    site.certify("node-2", rounds=1)
    sign(2)
    here.rename(aside)
    sign(1)
    here.rename(tmp_path / "second host")
    aside.rename(here)
    sign(2)
    return archive


def test_a_coordinator_that_moved_has_two_logs_and_breaks_none(
    tmp_path: Path, moved: MemoryArchive
) -> None:
    """B62, E3: each host's log of countersignatures is verified for itself."""
    report = judged(moved)
    assert report.ok, report.defects
    assert (report.countersignatures, report.certificates, report.countersigned) == (5, 12, 12)
    signed = sorted(key for key in moved.objects if key.startswith(archive_names.HEADS))
    assert [archive_names.number_of(key) for key in signed] == [1, 1, 2, 3, 4]
    found = [key for key in signed if cut_without(moved, key)]
    assert [archive_names.number_of(key) for key in found] == [1, 2, 3], "all that others follow"
    export(archived.collect(moved), tmp_path / "copy")
    copied = verify(collect(tmp_path / "copy"))
    assert copied.ok, copied.defects
    assert (copied.countersignatures, copied.countersigned) == (5, 12)


def cut_without(archive: MemoryArchive, key: str) -> set[str]:
    """What is found once the object is gone."""
    objects = {name: kept for name, kept in archive.objects.items() if name != key}
    return {damage.code for damage in judged(MemoryArchive(objects=objects)).defects}


def test_a_coordinator_that_signs_two_ends_under_one_number_is_found(
    tmp_path: Path, moved: MemoryArchive
) -> None:
    """E3: a log has one end; who signs another one in its place says two things at once."""
    key = SigningKey.load_or_create(layout.coordinator_key(tmp_path / "state"))
    (second,) = (k for k in moved.objects if k.startswith(f"{archive_names.HEADS}{2:012d}/"))
    former = heads.read(moved.objects[second][0][1])
    ends = {NodeName("node-1"): LedgerHead()}
    made = heads.countersign(ends, former.previous, number=2, key=key, now=START)
    moved.keep(archive_names.head(2, heads.read(made).digest), made)
    assert {"sequence-gap", "missing-link"} & {one.code for one in judged(moved).defects}


def test_an_upload_that_was_not_finished_is_proof_and_no_defect(
    site: Site, archive: MemoryArchive
) -> None:
    """A node lost between a certificate and its row leaves proof, told as a note."""
    with site.ledger("node-1") as ledger:
        device = device_named("node-1-a")
        one = site.issue(ledger, device)
    archive.lay(archive_names.certificate(one.digest), one.envelope)
    found = parsed.read(one.envelope)
    archive.lay(next(archive_names.lookups(found, 7)), b"")
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
    coordinator = KeyRing([site.coordinator.public()])
    report = verify(archived.collect(archive, trust, coordinator_keys=coordinator))
    assert {damage.code for damage in report.defects} >= {"unknown-key"}
    assert not any("come from the place" in note for note in report.notes)
    notes = verify(archived.collect(archive, trust)).notes
    assert any("coordinator's keys come from the place" in note for note in notes)


def test_a_place_without_evidence_is_told(archive: MemoryArchive) -> None:
    """An empty prefix proves nothing and is no whole evidence."""
    with pytest.raises(InputInvalid, match="holds no evidence"):
        archived.collect(MemoryArchive())
