"""Rules of translation between kubelet's messages and plain values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.plugin.requests import AskedClaim, PreparedClaim, PreparedDevice
from node_plugin import translate
from node_plugin.proto import dra_v1_pb2 as v1

SHARED = PreparedDevice(
    requests=("gpu/big", "gpu/small", "other"),
    pool="node-1",
    device="dev-0",
    cdi_ids=("example.com/gpu=a", "example.com/gpu=b"),
    share_id="share-1",
)


def test_claims_are_read_in_their_order() -> None:
    """Namespace, UID and name are taken from the right fields: on the wire the UID comes second."""
    asked = translate.asked_claims([v1.Claim(namespace="n", uid="u", name="c"), v1.Claim(uid="v")])
    assert asked == [AskedClaim("n", "u", "c"), AskedClaim("", "v", "")]


def test_devices_keep_their_names_and_requests_lose_their_subrequest() -> None:
    """Invariant 12: request names have no "/", each once; pool, device and ids are unchanged."""
    device = translate.prepared_v1({"u": PreparedClaim((SHARED,))}).claims["u"].devices[0]
    assert list(device.request_names) == ["gpu", "other"]
    assert (device.pool_name, device.device_name) == ("node-1", "dev-0")
    assert list(device.cdi_device_ids) == ["example.com/gpu=a", "example.com/gpu=b"]


def test_a_share_id_is_present_only_where_there_is_one() -> None:
    """Invariant 12: v1 carries the share id of a shared device and leaves the field out else."""
    alone = PreparedDevice(("gpu",), "node-1", "dev-1", ("example.com/gpu=c",))
    found = translate.prepared_v1({"u": PreparedClaim((SHARED, alone))}).claims["u"].devices
    assert [device.HasField("share_id") for device in found] == [True, False]
    assert found[0].share_id == "share-1"


def test_the_older_version_says_the_same_without_shares() -> None:
    """Invariant 39: v1beta1 differs from v1 in nothing but the share id."""
    outcomes: dict[str, PreparedClaim | errors.FleetError] = {
        "u": PreparedClaim((SHARED,)),
        "v": errors.DeviceBusy("held", remedy="wait"),
    }
    newer, older = translate.prepared_v1(outcomes), translate.prepared_v1beta1(outcomes)
    newer.claims["u"].devices[0].ClearField("share_id")
    assert newer.SerializeToString(deterministic=True) == older.SerializeToString(
        deterministic=True
    )


def test_a_claim_without_devices_is_prepared() -> None:
    """An empty list of devices is a valid answer and no error."""
    entry = translate.prepared_v1({"u": PreparedClaim()}).claims["u"]
    assert (list(entry.devices), entry.error) == ([], "")


def test_both_versions_report_teardowns_alike() -> None:
    """An entry without an error is a success; a failed one carries detail and remedy."""
    outcomes = {"u": None, "v": errors.Retryable("the tenant runs", remedy="kubelet asks again")}
    expected = {"u": "", "v": "the tenant runs — kubelet asks again"}
    for answer in (translate.unprepared_v1(outcomes), translate.unprepared_v1beta1(outcomes)):
        assert {uid: entry.error for uid, entry in answer.claims.items()} == expected


def test_an_answer_that_cannot_be_sent_stays_with_its_claim() -> None:
    """Invariant 10: text that protobuf refuses becomes that claim's error, not the call's."""
    bad = PreparedClaim((PreparedDevice(("gpu",), "node-1", "dev\udcff", ("a/b=c",)),))
    for answer in (
        translate.prepared_v1({"u": bad, "v": PreparedClaim()}),
        translate.prepared_v1beta1({"u": bad, "v": PreparedClaim()}),
    ):
        assert answer.claims["u"].error
        assert not answer.claims["u"].devices
        assert not answer.claims["v"].error


@given(st.text(), st.text())
def test_an_error_is_never_empty_and_always_fits(detail: str, remedy: str) -> None:
    """Whatever an error says, its text is non-empty, one line, 1024 bytes at most, and sendable."""
    text = translate.error_text(errors.Permanent(detail, remedy=remedy))
    assert text
    assert len(text.encode()) <= translate.ERROR_BYTES_MAX
    assert text.isprintable()


@pytest.mark.parametrize("character", ["x", "é", "漢", "🙂"])
def test_a_cut_falls_between_characters(character: str) -> None:
    """A long text is cut at its limit, with a mark, and never inside a character."""
    text = translate.shortened(character * 2000, limit_bytes=100)
    assert text.endswith("...")
    assert 96 <= len(text.encode()) <= 100
    assert set(text) == {character, "."}


def test_ascii_is_ascii() -> None:
    """Kubelet cuts health messages between bytes: those are sent in ASCII only."""
    assert translate.shortened("ecc — 3\n\tnew", limit_bytes=50, encoding="ascii") == "ecc ? 3 new"
