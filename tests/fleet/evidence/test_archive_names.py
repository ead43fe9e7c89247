"""Names in an archive say everything about what they name, in one spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.core.model import ClaimUid, RunId
from fleet.evidence import archive_names, parsed
from fleet.evidence.dsse import digest_of
from fleet.evidence.keys import SigningKey
from tests.fleet.evidence.samples import Site, device_named

DIGEST = digest_of(b"x")
CHAIN = "c" * 64
LEDGER = archive_names.ledger_id(DIGEST)


@pytest.fixture(name="found")
def found_fixture(tmp_path: Path) -> parsed.Certificate:
    """A certificate of a partition, made for a claim in a run."""
    site = Site(tmp_path)
    with site.ledger() as ledger:
        issued = site.issue(
            ledger,
            device_named("a/1", accelerator="a"),
            claim=ClaimUid("uid-1"),
            run=RunId("run/1"),
        )
    return parsed.read(issued.envelope)


def test_a_row_is_read_back_from_its_name() -> None:
    """A listing alone rebuilds a ledger: node, number, digest, chain and version."""
    row = archive_names.Row("node-1", LEDGER, 12, DIGEST, CHAIN, "a/b+c=~.d")
    assert archive_names.read_row(archive_names.row(row)) == row
    rows = [archive_names.Row("n", LEDGER, number, DIGEST, CHAIN, "v") for number in (9, 10, 100)]
    names = [archive_names.row(row) for row in rows]
    assert names == sorted(names), "numbers sort as text"


@pytest.mark.parametrize(
    "key",
    [
        f"ledgers/n/{LEDGER}/12",
        f"ledgers/n/{LEDGER}/000000000000/{'a' * 64}.{CHAIN}.v",
        f"ledgers/n/{LEDGER}/000000000001/{'a' * 64}.{CHAIN}.a/b",
        f"ledgers/n/{LEDGER}/000000000001/{'a' * 64}.{CHAIN}.a b",
        f"ledgers/n/{LEDGER}/000000000001/{'A' * 64}.{CHAIN}.v",
        f"ledgers/n/000000000001/{'a' * 64}.{CHAIN}.v",
        f"ledgers/n/{LEDGER.upper()}/000000000001/{'a' * 64}.{CHAIN}.v",
        f"ledgers/a b/{LEDGER}/000000000001/{'a' * 64}.{CHAIN}.v",
        f"ledgers/../{LEDGER}/000000000001/{'a' * 64}.{CHAIN}.v",
    ],
)
def test_another_spelling_is_no_row(key: str) -> None:
    """One spelling only: what is spelled otherwise was not put by us."""
    with pytest.raises(EvidenceInvalid):
        archive_names.read_row(key)


def test_a_name_that_leads_elsewhere_is_refused() -> None:
    """A node's name is one component of a path."""
    with pytest.raises(InputInvalid):
        archive_names.row(archive_names.Row("../x", LEDGER, 1, DIGEST, CHAIN, "v"))


def test_a_certificate_is_found_by_time_device_claim_and_run(found: parsed.Certificate) -> None:
    """E3: deterministic names, listable by each; whatever others named is quoted."""
    issued = found.predicate["issued_at"]
    name = f"{issued}.node-1.000000000007.{archive_names.hex_of(found.digest)}"
    assert list(archive_names.lookups(found, 7)) == [
        f"by-time/2023/11/14/{name}",
        f"by-device/SIM-a%2F1/{name}",
        f"by-claim/uid-1/{name}",
        f"by-run/run%2F1/{name}",
    ]
    assert all(
        archive_names.looked_up(key) == found.digest for key in archive_names.lookups(found, 7)
    )
    with pytest.raises(EvidenceInvalid):
        archive_names.looked_up("by-time/x")


def test_a_content_must_be_what_its_name_says() -> None:
    """A name with a digest admits one content, a row none, a key's any."""
    started = "2023-11-14T22:13:20.250000Z"
    names = [
        archive_names.certificate(DIGEST),
        archive_names.head(3, DIGEST),
        archive_names.key_list(3, DIGEST),
        archive_names.run("run/1", started, DIGEST),
    ]
    assert all(archive_names.digest_named(name) == DIGEST for name in names)
    assert all(
        archive_names.matches(name, b"x") and not archive_names.matches(name, b"y")
        for name in names
    )
    assert archive_names.matches("by-time/x", b"")
    assert not archive_names.matches("by-time/x", b"x")
    assert archive_names.matches(archive_names.public_key("0" * 64, "node-1"), b"anything")


def test_numbers_and_owners_are_read_from_names(tmp_path: Path) -> None:
    """Countersignatures are in order, keys bound to nodes."""
    assert archive_names.number_of(archive_names.head(41, DIGEST)) == 41
    key = SigningKey.load_or_create(tmp_path / "x.key").public()
    assert archive_names.key_owner(archive_names.public_key(key.key_id, "node-1")) == "node-1"
    assert archive_names.key_owner(archive_names.public_key(key.key_id)) == ""
    for wrong in (archive_names.number_of, archive_names.key_owner):
        with pytest.raises(EvidenceInvalid):
            wrong("keys/x")


def test_each_kind_of_name_has_a_size_that_its_content_cannot_have() -> None:
    """B48: what fills a reader's memory is known by its size, before it is read."""
    mib = 1024 * 1024
    started = "2023-11-14T22:13:20.250000Z"
    assert archive_names.most_bytes(archive_names.certificate(DIGEST)) == mib
    assert archive_names.most_bytes(archive_names.head(3, DIGEST)) == mib
    assert archive_names.most_bytes(archive_names.key_list(3, DIGEST)) == 16 * mib
    assert archive_names.most_bytes(archive_names.run("run-1", started, DIGEST)) == 64 * mib
    rest = (
        archive_names.public_key("0" * 64, "n"),
        archive_names.IDENTITY,
        f"{archive_names.CANARY}x",
        "by-time/x",
    )
    assert {archive_names.most_bytes(key) for key in rest} == {64 * 1024}
