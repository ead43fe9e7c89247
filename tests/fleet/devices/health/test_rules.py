"""The rules that need more than one reading: links, power states, the fabric, faults together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.core.settings import HealthPolicy
from fleet.devices.health import checks
from fleet.devices.health.checks import Verdict
from fleet.devices.health.readings import Readings

POLICY = HealthPolicy()
IDLE = Readings(
    at=1.0, pcie_gen=1, pcie_gen_max=5, pcie_width=16, pcie_width_max=16, pstate=8, xids=()
)
FULL = replace(IDLE, under_load=True, pcie_gen=5, pstate=0)


def verdict(
    check: str,
    now: Readings,
    load: Readings | None = None,
    before: Readings | None = None,
) -> Verdict:
    """The verdict of one check."""
    found = checks.judge(now, POLICY, before=before, under_load=load)
    return next(finding.verdict for finding in found if finding.check == check)


@pytest.mark.parametrize(
    ("load", "speed", "width"),
    [
        (None, Verdict.NOT_APPLICABLE, Verdict.PASS),
        ({}, Verdict.PASS, Verdict.PASS),
        ({"pcie_width": 8}, Verdict.PASS, Verdict.FAIL),
        ({"pcie_gen": 1}, Verdict.FAIL, Verdict.PASS),
        ({"pcie_gen": 1, "pstate": 8}, Verdict.UNKNOWN, Verdict.PASS),
        ({"pcie_width": 8, "pstate": 2}, Verdict.PASS, Verdict.UNKNOWN),
        ({"pcie_gen": 1, "pstate": None}, Verdict.UNKNOWN, Verdict.PASS),
    ],
)
def test_the_link_is_judged_at_full_speed_only(
    load: dict[str, Any] | None, speed: Verdict, width: Verdict
) -> None:
    """gpus-8.23: an idle device at generation 1 is no fault, a slow link under load is, and one
    that never reached full speed cannot be judged.
    """
    loaded = None if load is None else replace(FULL, **load)
    assert verdict("link-speed", IDLE, loaded) is speed
    assert verdict("link-width", IDLE, loaded) is width


def test_an_idle_device_with_half_its_lanes_is_only_shown() -> None:
    """gpus-8.23: width warns when idle."""
    assert verdict("link-width", replace(IDLE, pcie_width=8)) is Verdict.WARN


def test_a_device_without_power_states_is_judged_under_any_load() -> None:
    """gpus-8.23: hardware that has no such states has none to wait for."""
    without = frozenset({"pstate"})
    slow = replace(FULL, pcie_gen=1, pstate=None, not_applicable=without)
    now = replace(IDLE, pstate=None, not_applicable=without)
    assert verdict("link-speed", now, slow) is Verdict.FAIL
    assert verdict("full-speed", now, slow) is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("now", "load", "expected"),
    [
        (8, None, Verdict.NOT_APPLICABLE),
        (8, 0, Verdict.PASS),
        (8, 2, Verdict.UNKNOWN),
        (None, None, Verdict.UNKNOWN),
    ],
)
def test_full_speed_is_a_matter_of_load(
    now: int | None, load: int | None, expected: Verdict
) -> None:
    """gpus-8.23: a device that never reaches P0 under load is unknown; idle it has no need to."""
    loaded = None if load is None else replace(FULL, pstate=load)
    assert verdict("full-speed", replace(IDLE, pstate=now), loaded) is expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"fabric_state": "completed", "fabric_healthy": True}, Verdict.PASS),
        ({"fabric_state": "completed", "fabric_healthy": False}, Verdict.FAIL),
        ({"fabric_state": "completed"}, Verdict.UNKNOWN),
        (
            {"fabric_state": "completed", "not_applicable": frozenset({"fabric_healthy"})},
            Verdict.PASS,
        ),
        ({"fabric_state": "failed-999"}, Verdict.FAIL),
        ({"fabric_state": "in-progress", "fabric_waited_s": 5.0}, Verdict.UNKNOWN),
        ({"fabric_state": "not-started", "fabric_waited_s": 119.0}, Verdict.UNKNOWN),
        ({"fabric_state": "in-progress", "fabric_waited_s": 120.0}, Verdict.FAIL),
        ({"fabric_state": "in-progress"}, Verdict.FAIL),
        ({"not_applicable": frozenset({"fabric_state"})}, Verdict.NOT_APPLICABLE),
        ({}, Verdict.UNKNOWN),
    ],
)
def test_only_a_completed_and_healthy_fabric_passes(now: dict[str, Any], expected: Verdict) -> None:
    """gpus-8.27: one on its way has until the deadline and then fails; a status other than success
    fails; a device without fabric is not judged.
    """
    assert verdict("fabric", replace(IDLE, **now)) is expected


def test_pages_are_judged_where_rows_are_not() -> None:
    """gpus-8.22, B40: on a device that retires pages, pending there is what blocks, and rows that
    do not exist are neither zero nor unknown.
    """
    rows = frozenset({"row_remap_pending", "row_remap_failed", "uncorrectable_remaps"})
    old = replace(IDLE, retired_pages=3, retired_pages_pending=True, not_applicable=rows)
    found = {finding.check: finding for finding in checks.judge(old, POLICY)}
    assert found["retirement-pending"].reason == "retired-pages"
    assert found["retirement-pending"].action is checks.Action.RESET
    assert found["retired-pages"].verdict is Verdict.PASS
    assert {found[name].verdict for name in ("remap-pending", "remap-failed", "remaps")} == {
        Verdict.NOT_APPLICABLE
    }


@pytest.mark.parametrize(
    ("codes", "said", "expected"),
    [
        ((145,), ("fatal",), Verdict.FAIL),
        ((145,), ("nonfatal",), Verdict.WARN),
        ((145,), (), Verdict.FAIL),
    ],
)
def test_the_messages_severity_reaches_the_verdict(
    codes: tuple[int, ...], said: tuple[str, ...], expected: Verdict
) -> None:
    """gpus-8.42: what the log says of a link unit decides about the device."""
    assert verdict("xid", replace(IDLE, xids=codes, xid_severities=said)) is expected


@pytest.mark.parametrize("setting", [False, None])
def test_posture_is_shown_and_blocks_nothing(*, setting: bool | None) -> None:
    """gpus-8.38: a driver that does not scrub is reported; nothing of ours relies on it."""
    found = checks.judge(replace(IDLE, scrub_on_free=setting), POLICY)
    (one,) = [finding for finding in found if finding.check == "scrub-on-free"]
    assert one.verdict is (Verdict.WARN if setting is False else Verdict.UNKNOWN)
    assert one.reason == ""


B40 = [
    ((13,), (0, 0), "", ""),
    ((31,), (0, 0), "", ""),
    ((43,), (0, 0), "", ""),
    ((45,), (0, 0), "", ""),
    ((63,), (1, 0), "remap-pending", "reset"),
    ((), (1, 0), "remap-pending", "reset"),
    ((64,), (0, 1), "remap-failed", "replace"),
    ((), (0, 1), "remap-failed", "replace"),
    ((48,), (0, 0), "xid", "reset"),
    ((79,), (0, 0), "device-lost", "reboot"),
    ((94,), (0, 0), "xid", "reset"),
    ((95,), (0, 0), "xid", "reset"),
    ((119,), (0, 0), "xid", "reset"),
    ((163, 162), (0, 0), "", ""),
    ((777,), (0, 0), "xid", ""),
]
"""The case's table: codes, (pending, failed), reason and action expected."""


@pytest.mark.parametrize(("codes", "remap", "reason", "action"), B40)
def test_b40_codes_and_remaps_together(
    codes: tuple[int, ...], remap: tuple[int, int], reason: str, action: str
) -> None:
    """B40: each row of the case's table, judged as readings: reason, and what must happen first."""
    readings = replace(
        IDLE, xids=codes, row_remap_pending=bool(remap[0]), row_remap_failed=bool(remap[1])
    )
    found = checks.judge(readings, HealthPolicy(unknown_blocks=False))
    faults = [finding for finding in found if finding.verdict is Verdict.FAIL]
    assert {finding.reason for finding in faults} == ({reason} if reason else set())
    assert {finding.action.value for finding in faults} == ({action} if faults else set())


def test_b40_a_reset_clears_pending_and_never_a_failed_remap() -> None:
    """B40, gpus-8.21: judged again after the reset, pending is over; failed stays for good."""
    pending = replace(IDLE, row_remap_pending=True, row_remap_failed=False)
    assert checks.needs_reset(checks.judge(pending, POLICY))
    assert verdict("remap-pending", replace(pending, row_remap_pending=False)) is Verdict.PASS
    failed = checks.judge(replace(IDLE, row_remap_failed=True), POLICY)
    assert not checks.needs_reset([f for f in failed if f.check == "remap-failed"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"unpartitioned": True, "mig_enabled": True, "mig_change_pending": False}, Verdict.PASS),
        ({"unpartitioned": False, "mig_enabled": True, "mig_change_pending": False}, Verdict.PASS),
        ({"unpartitioned": True, "mig_enabled": True, "mig_change_pending": True}, Verdict.WARN),
        ({"unpartitioned": True, "mig_enabled": True, "mig_change_pending": None}, Verdict.WARN),
        ({"unpartitioned": None, "mig_enabled": True}, Verdict.UNKNOWN),
    ],
)
def test_8_33_no_instance_is_how_a_partitioned_device_rests(
    changes: dict[str, Any], expected: Verdict
) -> None:
    """gpus-8.33: partitions are made for each wipe and claim; only an unsettled mode is noted."""
    assert verdict("unpartitioned", replace(IDLE, **changes)) is expected
