"""The receipt on a claim: written by the coordinator, read by the tenant."""

from __future__ import annotations

import pytest

from fleet.control.binding.receipt import WORDS, Standing, receipt, written
from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import Token
from fleet.kube import claim_bodies
from fleet.kube.base import Object
from fleet.kube.claim import ClaimReading, read
from fleet.kube.claim_bodies import Told, Word
from tests.fleet.control.binding.benches import CONDITIONS, MARKS, NOW
from tests.fleet.control.binding.scenes import DRIVER, allocated, result

DIGEST = "sha256:" + "ab" * 32
PROOF = DeviceResult(
    node="n1",
    device="gpu-0",
    uuid="GPU-1",
    outcome=Outcome.CERTIFIED,
    state="CLEAN",
    certificate=DIGEST,
    ended_at=NOW,
)


def claim(**more: object) -> Object:
    """A claim whose one device the scheduler waits for."""
    one = {
        **result("gpu-0"),
        "bindingConditions": CONDITIONS,
        "bindingFailureConditions": [MARKS.failed],
        **more,
    }
    found = allocated(one)
    found["metadata"]["resourceVersion"] = "1"
    return found


def told(found: Object, *words: Word, data: bool = True) -> ClaimReading:
    """The claim after our write of these words."""
    reading = read(found, MARKS)
    said = Told(reading.devices[0], words, written(Token(1, 7), PROOF) if data else None)
    body = claim_bodies.status(reading, MARKS, told=[said], now=NOW)
    return read({**found, "status": {**found["status"], **body["status"]}}, MARKS)


def both(*, true: bool) -> tuple[Word, ...]:
    """Both conditions."""
    return tuple(Word(kind, "Said", true=true) for kind in CONDITIONS)


def test_a_proven_device_says_everything_a_tenant_asks() -> None:
    """E3: device by UUID, wiped when, under which token, by which certificate, how to verify."""
    found = receipt(told(claim(), *both(true=True)), MARKS)
    (one,) = found.devices
    assert (one.standing, one.uuid, one.token) == (Standing.PROVEN, "GPU-1", "1.7")
    assert (one.certificate, one.wiped_at) == (DIGEST, "2023-11-14T22:13:20Z")
    assert one.verify[0] == f"sha256sum certificates/n1/*-{'ab' * 8}.json"
    assert one.verify[-1].endswith("--key n1=KEY.pub")


def test_what_is_not_proven_is_never_shown_as_proven() -> None:
    """B2: pending, failed and ended are told apart; a failure comes with the reason given."""
    (pending,) = receipt(read(claim(), MARKS), MARKS).devices
    assert (pending.standing, pending.certificate) == (Standing.PENDING, "")
    failure = Word(MARKS.failed, "Ecc", "7 uncorrectable errors", true=True)
    (failed,) = receipt(told(claim(), failure, data=False), MARKS).devices
    assert (failed.standing, failed.why) == (Standing.FAILED, "7 uncorrectable errors")
    (ended,) = receipt(told(claim(), *both(true=False)), MARKS).devices
    assert (ended.standing, ended.why) == (Standing.ENDED, WORDS[Standing.ENDED])
    (looking,) = receipt(told(claim(adminAccess=True), *both(true=True)), MARKS).devices
    assert looking.standing is Standing.LOOKING


def test_a_pool_that_writes_no_receipts_is_said_so() -> None:
    """In `fast` and `lab` nothing is written before the bind: it is said, not left blank."""
    found = read(allocated(result("gpu-0")), MARKS)
    (one,) = receipt(found, MARKS).devices
    assert one.standing is Standing.UNRECORDED
    assert "fleet evidence list" in one.why


@pytest.mark.parametrize("data", ["text", 7, [], {"certificate": {"a": 1}, "token": None}])
def test_a_receipt_somebody_else_wrote_breaks_nothing(data: object) -> None:
    """B19: a status is written by others too; whatever is in it, an answer comes."""
    found = claim()
    found["status"]["devices"] = [
        {"driver": DRIVER, "pool": "n1", "device": "gpu-0", "data": data},
        "no object",
    ]
    (one,) = receipt(read(found, MARKS), MARKS).devices
    assert one.device == "gpu-0"


@pytest.mark.parametrize("node", ["n1;reboot", "$(x)", "../.."])
def test_commands_are_made_of_plain_names_alone(node: str) -> None:
    """What a tenant is told to run holds nothing that a shell would act on."""
    found = allocated(result("gpu-0", pool=node))
    found["status"]["devices"] = [
        {"driver": DRIVER, "pool": node, "device": "gpu-0", "data": {"certificate": DIGEST}}
    ]
    (one,) = receipt(read(found, MARKS), MARKS).devices
    assert one.certificate == DIGEST
    assert one.verify == ()
