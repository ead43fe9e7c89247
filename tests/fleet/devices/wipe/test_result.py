"""A wipe's result: verified only when every condition holds, and unchanged by the journey."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fleet.core.model import Process, ProcessKind, UnitId, Uuid
from fleet.devices.base import Coverage, Mismatch, ResetScrub
from fleet.devices.health.readings import Readings
from fleet.devices.wipe.result import PASSES, Failure, Kind, Pass, WipeResult

GOOD = WipeResult(
    accelerator=Uuid("SIM-1"),
    units=(UnitId("SIM-1/all"),),
    started_at=1.0,
    ended_at=9.0,
    coverage=Coverage(100, 10, 90),
    passes=tuple(Pass(name, 90, 0.5) for name in PASSES),
    self_test_passed=True,
    pattern="p",
    nonce_sha256="ab",
    before=Readings(at=1.0, xids=(48,)),
    holders=(Process(7, "nvidia-persistenced", ProcessKind.INFRASTRUCTURE),),
    extra={"device": "SIM-1"},
)


def test_a_whole_wipe_is_verified() -> None:
    """Every pass over every byte covered, self-test passed, nothing mismatched."""
    assert GOOD.verified
    assert (GOOD.seconds, GOOD.rate) == (2.0, 180.0)


@pytest.mark.parametrize(
    "change",
    [
        {"failure": Failure.SLOW},
        {"self_test_passed": False},
        {"passes": GOOD.passes[:3]},
        {"passes": GOOD.passes[::-1]},
        {"passes": (Pass("fill", 89, 1.0), *GOOD.passes[1:])},
        {"coverage": Coverage(100, 10, 0), "passes": tuple(Pass(n, 0, 1.0) for n in PASSES)},
        {"mismatches": (Mismatch(UnitId("SIM-1/all"), 0, 8),)},
        {"mismatched_bytes": 8},
        {"nonce_sha256": ""},
    ],
)
def test_less_is_not_verified(change: dict[str, object]) -> None:
    """Promise 8: the absence of a failure alone proves nothing."""
    fields = {name: getattr(GOOD, name) for name in GOOD.__slots__}
    assert not WipeResult(**{**fields, **change}).verified


def test_a_result_survives_json() -> None:
    """What the worker found is what the node reads."""
    failed = replace(GOOD, failure=Failure.HOLDER, detail="x", after=Readings(at=2.0))
    for result in (GOOD, failed):
        assert WipeResult.from_json(json.loads(json.dumps(result.as_json()))) == result


@pytest.mark.parametrize("missing", ["units", "passes", "failure", "holders", "before"])
def test_a_report_with_a_hole_is_refused(missing: str) -> None:
    """A malformed report is an error, never a result with defaults filled in."""
    report = GOOD.as_json()
    del report[missing]
    with pytest.raises(KeyError):
        WipeResult.from_json(report)


SCRUB = ResetScrub(
    performed=True,
    method="flr",
    vendor_scrub="on",
    switch="a switch",
    before=(Process(7, "nvidia-persistenced", ProcessKind.INFRASTRUCTURE),),
)
RESET = replace(
    GOOD,
    coverage=Coverage(100, 0, 0),
    passes=(),
    self_test_passed=False,
    pattern="",
    kind=Kind.RESET,
    scrub=SCRUB,
)
TENANT = Process(9, "tenant", ProcessKind.FOREIGN)


def test_a_reset_with_nobody_there_is_all_that_can_be_done() -> None:
    """Issue 5: of a device whose memory is out of reach the result says no more than that."""
    assert RESET.verified
    assert RESET.rate == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"failure": Failure.BACKEND},
        {"scrub": None},
        {"scrub": replace(SCRUB, performed=False)},
        {"scrub": replace(SCRUB, method="")},
        {"scrub": replace(SCRUB, problem="the switch is off")},
        {"scrub": replace(SCRUB, after=(TENANT,))},
        {"holders": (TENANT,)},
        {"coverage": Coverage(100, 0, 100)},
        {"passes": GOOD.passes},
        {"kind": Kind.MEMORY},
    ],
)
def test_less_than_a_reset_is_not_verified(change: dict[str, Any]) -> None:
    """Promise 8, gpus-8.41: no reset, a holder, or a claim of bytes: each is enough to refuse."""
    assert not replace(RESET, **change).verified


def test_results_of_both_kinds_survive_json() -> None:
    """What a worker did is what the node reads; a document of an older release is of memory."""
    assert WipeResult.from_json(json.loads(json.dumps(RESET.as_json()))) == RESET
    old = GOOD.as_json()
    del old["kind"], old["scrub"]
    assert WipeResult.from_json(json.loads(json.dumps(old))) == GOOD
