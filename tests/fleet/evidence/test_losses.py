"""Data-loss records: signed, numbered, written once, and readable whatever lies beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import EvidenceInvalid, LedgerUnavailable
from fleet.core.model import ClaimUid, Digest, NodeName, Reason, Source, Token, UnitId, Uuid
from fleet.evidence import dsse, losses
from fleet.evidence.keys import SigningKey
from fleet.evidence.losses import Loss, LossLog, LostDevice
from tests.crowding import exhausted

NOW = 1_700_000_000.25
REASON = Reason("verify-failed", Source.WIPE, liftable=True, detail="word 7 differs", since=NOW)
DEVICE = LostDevice(Uuid("GPU-1"), (UnitId("GPU-1/0"),), (REASON,), {UnitId("GPU-1/0"): None})
LOSS = Loss(
    node=NodeName("node-1"),
    claim=ClaimUid("claim-a"),
    namespace="team",
    name="train",
    token=Token(1, 7),
    devices=(DEVICE,),
    began_at=NOW - 5.0,
    simulated=False,
)


@pytest.fixture(name="key")
def key_fixture(tmp_path: Path) -> SigningKey:
    """A node's key."""
    return SigningKey.load_or_create(tmp_path / "node.key")


def append(log: LossLog, key: SigningKey, loss: Loss = LOSS) -> Digest:
    """Record it."""
    return log.append(loss, key=key, now=NOW, version="1.0")


def test_a_record_says_which_claim_left_what_and_who_signed_it(
    tmp_path: Path, key: SigningKey
) -> None:
    """D3: the claim's data-loss record is signed and names claim, devices, reasons."""
    digest = append(LossLog(tmp_path / "losses"), key)
    ((place, content),) = losses.contents(tmp_path / "losses")
    found = losses.read(content)
    assert (found.digest, found.number, found.previous, place.entry) == (digest, 1, None, 1)
    assert (found.node, found.claim, found.devices) == ("node-1", "claim-a", ("GPU-1",))
    assert (found.recorded_at, found.simulated) == (NOW, False)
    assert found.envelope.signed_by(key.public())
    said = found.envelope.predicate
    assert said["claim"] == {"uid": "claim-a", "namespace": "team", "name": "train"}
    (device,) = said["devices"]
    assert device["reasons"] == [
        {
            "code": "verify-failed",
            "source": "wipe",
            "detail": REASON.detail,
            "since": dsse.moment(NOW),
        }
    ]
    assert (said["token"], device["last_certificates"]) == (str(LOSS.token), {"GPU-1/0": None})


def test_the_same_end_of_a_claim_is_recorded_once(tmp_path: Path, key: SigningKey) -> None:
    """Promise 7: a teardown repeated after a crash leaves one record; one more device, another."""
    log = LossLog(tmp_path / "losses")
    first = append(log, key)
    assert append(LossLog(tmp_path / "losses"), key) == first
    more = replace(LOSS, devices=(DEVICE, replace(DEVICE, uuid=Uuid("GPU-2"))))
    second = append(log, key, more)
    assert append(log, key) == first
    found = list(log.records())
    assert [(one.number, one.previous) for one in found] == [(1, None), (2, first)]
    assert found[1].digest == second


def test_a_damaged_record_keeps_no_claim_from_ending(tmp_path: Path, key: SigningKey) -> None:
    """D3: what cannot be read is told by verification; the next record is written all the same."""
    log = LossLog(tmp_path / "losses")
    append(log, key)
    (tmp_path / "losses" / losses.file_name(1)).write_bytes(b"{")
    (tmp_path / "losses" / losses.file_name(2)).mkdir()
    append(log, key)
    assert [one.number for one in log.records()] == [3]


def test_a_record_that_cannot_be_written_is_a_retryable_error(
    tmp_path: Path, key: SigningKey
) -> None:
    """D3, D6: without its record the claim is not let go; the teardown is repeated."""
    (tmp_path / "losses").write_text("a file")
    with pytest.raises(LedgerUnavailable) as caught:
        append(LossLog(tmp_path / "losses"), key)
    assert "losses" in caught.value.detail


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("devices", []),
        ("number", True),
        ("number", 2),
        ("previous", "sha256:00"),
        ("recorded_at", "yesterday"),
        ("claim", None),
        ("signer", {"key_id": "other"}),
    ],
)
def test_what_is_no_record_is_not_read_as_one(key: SigningKey, field: str, value: object) -> None:
    """E3: a signature over nonsense makes no record of it."""
    content = losses.sign(LOSS, number=1, previous=None, key=key, now=NOW, version="1.0")
    statement = dsse.open_envelope(content).statement
    said = {**statement["predicate"], field: value}
    changed = dsse.seal(losses.PREDICATE_TYPE, statement["subject"], said, key=key)
    with pytest.raises(EvidenceInvalid):
        losses.read(changed)
    other = dsse.seal("https://example.org/x", statement["subject"], said, key=key)
    with pytest.raises(EvidenceInvalid, match="not a data-loss record"):
        losses.read(other)


def test_what_cannot_be_read_for_a_while_is_not_written_down_for_good(
    tmp_path: Path, key: SigningKey
) -> None:
    """E3: without descriptors a record is neither doubled nor taken for a damaged one."""
    log = LossLog(tmp_path / "losses")
    first = append(log, key)
    with exhausted(), pytest.raises(LedgerUnavailable, match="cannot be read now"):
        append(log, key)
    assert append(log, key) == first
    assert [one.number for one in log.records()] == [1]


def test_no_words_of_an_error_keep_a_record_from_being_read(
    tmp_path: Path, key: SigningKey
) -> None:
    """D3: a message of any length, or with half a character in it, is kept as far as it goes."""
    words = "half \udcff, and long " + "x" * losses.MOST_BYTES
    device = replace(DEVICE, reasons=(replace(REASON, detail=words),))
    log = LossLog(tmp_path / "losses")
    append(log, key, replace(LOSS, devices=(device,)))
    (found,) = log.records()
    said = found.envelope.predicate["devices"][0]["reasons"][0]["detail"]
    assert said.startswith("half ?, and long")
    assert len(said) == losses.DETAIL_MAX
