"""The checks as truth tables: every check, every verdict it can reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core.model import Source
from fleet.core.settings import HealthPolicy
from fleet.devices.health import checks, reasons
from fleet.devices.health.checks import CHECKS, Action, Finding, Verdict, judge, needs_reset, passed
from fleet.devices.health.readings import COUNTERS, Logged, Readings
from fleet.devices.health.xids import Severity

POLICY = HealthPolicy()
GOOD = Readings(
    at=100.0,
    present=True,
    ecc_uncorrected_volatile=0,
    ecc_uncorrected_aggregate=0,
    ecc_corrected_volatile=3,
    sram_uncorrected=0,
    row_remap_pending=False,
    row_remap_failed=False,
    uncorrectable_remaps=0,
    retired_pages=0,
    retired_pages_pending=False,
    pcie_gen=1,
    pcie_gen_max=5,
    pcie_width=16,
    pcie_width_max=16,
    pcie_replays=0,
    aer_fatal=0,
    aer_nonfatal=0,
    aer_corrected=5,
    nvlinks_up=18,
    nvlinks_expected=18,
    nvlink_errors=0,
    temperature_c=40,
    hw_slowdown=False,
    thermal_slowdown=False,
    xids=(),
    logged=(),
    recovery_action="NONE",
    reset_required=False,
    scrub_on_free=True,
    driver_version="595.45.04",
    sram_threshold_exceeded=False,
    repair_pending=False,
    inforom_valid=True,
    fabric_state="completed",
    fabric_healthy=True,
    pcie_gen_device_max=5,
    pstate=8,
    power_brake=False,
    memory_temperature_c=45,
    persistence=True,
    ecc_enabled=True,
    ecc_change_pending=False,
    mig_enabled=False,
    mig_change_pending=False,
    unpartitioned=False,
    preserves_memory=False,
    accounting=False,
)
LOADED = replace(GOOD, under_load=True, pcie_gen=5, pstate=0)

PASS, FAIL, WARN = Verdict.PASS, Verdict.FAIL, Verdict.WARN
UNKNOWN, NOT_APPLICABLE = Verdict.UNKNOWN, Verdict.NOT_APPLICABLE


def one(
    check: str,
    now: dict[str, Any] | None = None,
    *,
    before: dict[str, Any] | None = None,
    load: dict[str, Any] | None = None,
    policy: HealthPolicy = POLICY,
) -> Finding:
    """One check over good readings with these changes."""
    found = judge(
        replace(GOOD, **(now or {})),
        policy,
        before=None if before is None else replace(GOOD, **before),
        under_load=None if load is None else replace(LOADED, **load),
    )
    return next(finding for finding in found if finding.check == check)


# check, readings now, before, under load, verdict, reason
TABLE: list[tuple[str, dict[str, Any], dict[str, Any] | None, dict[str, Any] | None, Verdict, str]]
TABLE = [
    ("present", {}, None, None, PASS, ""),
    ("present", {"present": False}, None, None, FAIL, "device-lost"),
    ("present", {}, None, {"present": False}, FAIL, "device-lost"),
    ("reset-required", {}, None, None, PASS, ""),
    ("reset-required", {"reset_required": True}, None, None, FAIL, "reset-required"),
    ("recovery-action", {"recovery_action": "none"}, None, None, PASS, ""),
    ("recovery-action", {"recovery_action": "GPU_RESET"}, None, None, FAIL, "reset-required"),
    ("recovery-action", {"recovery_action": "NODE_REBOOT"}, None, None, FAIL, "recovery-action"),
    ("recovery-action", {"recovery_action": "DRAIN_P2P"}, None, None, WARN, ""),
    ("recovery-action", {"recovery_action": "NEW_WORD"}, None, None, FAIL, "recovery-action"),
    ("xid", {}, None, None, PASS, ""),
    ("xid", {"xids": (13, 31, 43, 45)}, None, None, PASS, ""),
    ("xid", {"xids": (109,)}, None, None, WARN, ""),
    ("xid", {"xids": (48,)}, None, None, FAIL, "xid"),
    ("xid", {"xids": (64,)}, None, None, FAIL, "remap-failed"),
    ("xid", {"xids": (79,)}, None, None, FAIL, "device-lost"),
    ("xid", {"xids": (31,)}, {}, None, FAIL, "xid"),
    ("xid", {"xids": (31,)}, {"xids": (31,)}, None, PASS, ""),
    ("xid", {}, {"xids": None}, None, UNKNOWN, "health-unknown"),
    ("xid", {"xids": (48,)}, {"xids": None}, None, FAIL, "xid"),
    ("ecc-uncorrected", {"ecc_uncorrected_volatile": 1}, None, None, FAIL, "ecc-uncorrectable"),
    ("ecc-uncorrected-lifetime", {"ecc_uncorrected_aggregate": 2}, None, None, WARN, ""),
    ("ecc-uncorrected-lifetime", {"ecc_uncorrected_aggregate": 2}, {}, None, FAIL,
     "ecc-uncorrectable"),
    ("ecc-corrected", {"ecc_corrected_volatile": 13}, {}, None, PASS, ""),
    ("ecc-corrected", {"ecc_corrected_volatile": 14}, {}, None, FAIL, "corrected-ecc-rate"),
    ("sram-uncorrected", {"sram_uncorrected": 1}, None, None, FAIL, "sram-uncorrected"),
    ("remap-failed", {"row_remap_failed": True}, None, None, FAIL, "remap-failed"),
    ("remap-pending", {"row_remap_pending": True}, None, None, FAIL, "remap-pending"),
    ("remaps", {"uncorrectable_remaps": 512}, None, None, PASS, ""),
    ("remaps", {"uncorrectable_remaps": 513}, None, None, FAIL, "remaps-exhausted"),
    ("remaps", {"uncorrectable_remaps": 1}, {}, None, FAIL, "counters-rose"),
    ("retired-pages", {"retired_pages": 62}, None, None, PASS, ""),
    ("retired-pages", {"retired_pages": 63}, None, None, FAIL, "retired-pages"),
    ("retired-pages", {"retired_pages": 1}, {}, None, FAIL, "counters-rose"),
    ("retirement-pending", {"retired_pages_pending": True}, None, None, FAIL, "retired-pages"),
    ("link-speed", {"pcie_gen": 1}, None, None, NOT_APPLICABLE, ""),
    ("link-speed", {}, None, {"pcie_gen": 5}, PASS, ""),
    ("link-speed", {}, None, {"pcie_gen": 1}, FAIL, "link-degraded"),
    ("link-speed", {}, None, {"pcie_gen": None}, UNKNOWN, "health-unknown"),
    ("link-speed", {"pcie_gen_max": 4}, {"pcie_gen_max": 5}, None, FAIL, "link-degraded"),
    ("link-width", {"pcie_width": 8}, None, None, WARN, ""),
    ("link-width", {"pcie_width": 8}, None, {"pcie_width": 16}, PASS, ""),
    ("link-width", {}, None, {"pcie_width": 8}, FAIL, "link-degraded"),
    ("link-width", {}, None, {"pcie_width": 63}, UNKNOWN, "health-unknown"),
    ("link-width", {"pcie_width_max": None}, None, None, UNKNOWN, "health-unknown"),
    ("link-width", {"pcie_width_max": None}, {}, None, UNKNOWN, "health-unknown"),
    ("link-width", {"pcie_width": None}, None, None, UNKNOWN, "health-unknown"),
    ("link-width", {}, None, {"pcie_width": None}, UNKNOWN, "health-unknown"),
    ("link-width", {"pcie_width": None, "pcie_width_max": 8}, {}, None, FAIL, "link-degraded"),
    ("link-speed", {"pcie_gen": None}, None, None, NOT_APPLICABLE, ""),
    ("link-speed", {"pcie_gen": None}, None, {"pcie_gen": None}, UNKNOWN, "health-unknown"),
    ("pcie-replays", {"pcie_replays": 31}, {}, None, PASS, ""),
    ("pcie-replays", {"pcie_replays": 32}, {}, None, FAIL, "link-degraded"),
    ("aer-fatal", {"aer_fatal": 1}, None, None, FAIL, "aer-fatal"),
    ("aer-nonfatal", {"aer_nonfatal": 1}, None, None, WARN, ""),
    ("aer-nonfatal", {"aer_nonfatal": 1}, {}, None, FAIL, "counters-rose"),
    ("aer-corrected", {"aer_corrected": 5}, {}, None, PASS, ""),
    ("aer-corrected", {"aer_corrected": 6}, {}, None, WARN, ""),
    ("aer-corrected", {"aer_corrected": 105}, {}, None, WARN, ""),
    ("aer-corrected", {"aer_corrected": 106}, {}, None, FAIL, "link-degraded"),
    ("nvlink", {"nvlinks_up": 17}, None, None, FAIL, "nvlink-down"),
    ("nvlink", {"nvlinks_up": 0, "nvlinks_expected": 0}, None, None, NOT_APPLICABLE, ""),
    ("nvlink", {"nvlinks_expected": None}, None, None, UNKNOWN, "health-unknown"),
    ("nvlink-errors", {"nvlink_errors": 1}, {}, None, FAIL, "counters-rose"),
    ("hw-slowdown", {"hw_slowdown": True}, None, None, WARN, ""),
    ("hw-slowdown", {}, None, {"hw_slowdown": True}, FAIL, "hw-slowdown"),
    ("thermal-slowdown", {}, None, {"thermal_slowdown": True}, FAIL, "thermal-slowdown"),
    ("thermal-slowdown", {"thermal_slowdown": True}, None, None, FAIL, "thermal-slowdown"),
    ("scrub-on-free", {"scrub_on_free": False}, None, None, WARN, ""),
    ("sram-threshold", {"sram_threshold_exceeded": True}, None, None, FAIL, "sram-uncorrected"),
    ("ecc-enabled", {"ecc_enabled": False}, None, None, WARN, ""),
    ("ecc-change-pending", {"ecc_change_pending": True}, None, None, WARN, ""),
    ("inforom", {"inforom_valid": False}, None, None, FAIL, "inforom-corrupt"),
    ("repair-pending", {"repair_pending": True}, None, None, FAIL, "reset-required"),
    ("slot-speed", {"pcie_gen_max": 4}, None, None, WARN, ""),
    ("slot-speed", {"pcie_gen_max": None}, None, None, UNKNOWN, ""),
    ("power-brake", {}, None, {"power_brake": True}, WARN, ""),
    ("temperature", {"temperature_c": 91}, None, None, WARN, ""),
    ("memory-temperature", {}, None, {"memory_temperature_c": 96}, WARN, ""),
    ("memory-temperature", {}, None, {"memory_temperature_c": 95}, PASS, ""),
    ("persistence", {"persistence": False}, None, None, WARN, ""),
    ("mig-change-pending", {"mig_change_pending": True}, None, None, FAIL, "reset-required"),
    ("unpartitioned", {"unpartitioned": True}, None, None, WARN, ""),
    ("preserves-memory", {"preserves_memory": True}, None, None, WARN, ""),
    ("accounting", {"accounting": True}, None, None, WARN, ""),
]  # fmt: skip


@pytest.mark.parametrize(("check", "now", "before", "load", "verdict", "reason"), TABLE)
def test_truth_table(
    check: str,
    now: dict[str, Any],
    before: dict[str, Any] | None,
    load: dict[str, Any] | None,
    verdict: Verdict,
    reason: str,
) -> None:
    """B1, B40, gpus-8.20, gpus-8.21, gpus-8.23, gpus-8.24, gpus-8.28, gpus-8.38: each reading leads
    to exactly this verdict and reason.
    """
    found = one(check, now, before=before, load=load)
    assert (found.verdict, found.reason) == (verdict, reason), found.detail


def test_a_good_device_passes_every_check() -> None:
    """B1: good readings before, under load and after pass; nothing is asked of the device."""
    found = judge(GOOD, POLICY, before=GOOD, under_load=LOADED)
    assert {finding.verdict for finding in found} == {PASS}
    assert passed(found, POLICY)
    assert checks.reasons_of(found, since=1.0) == frozenset()
    assert not needs_reset(found)


@pytest.mark.parametrize("check", [c for c in CHECKS if c.rule != "link"], ids=lambda c: c.name)
def test_no_answer_is_unknown_and_no_such_thing_is_not_applicable(check: checks.Check) -> None:
    """B40, gpus-8.19: not answered is not 0 and not good; what does not exist is no fault."""
    silent = one(check.name, {check.reading: None})
    assert silent.verdict is UNKNOWN
    assert silent.reason == ("health-unknown" if check.mandatory else "")
    absent = one(check.name, {check.reading: None, "not_applicable": frozenset({check.reading})})
    assert (absent.verdict, absent.reason) == (NOT_APPLICABLE, "")


@pytest.mark.parametrize("check", [c for c in CHECKS if c.rule == "count"], ids=lambda c: c.name)
@pytest.mark.parametrize("misread", [0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, -1])
def test_a_register_of_all_ones_was_not_read(check: checks.Check, misread: int) -> None:
    """gpus-8.24: all ones is a failed read-out, now or at the start, never a count."""
    assert one(check.name, {check.reading: misread}).verdict is UNKNOWN
    assert one(check.name, before={check.reading: misread}).verdict is UNKNOWN


@pytest.mark.parametrize("check", [c for c in CHECKS if c.rule == "count"], ids=lambda c: c.name)
def test_a_counter_that_shrank_is_unknown(check: checks.Check) -> None:
    """gpus-8.24: a counter that got smaller was reset or misread: nothing can be concluded."""
    # 9 is within every limit that has room, and above zero where none has: then FAIL comes first.
    found = one(check.name, {check.reading: 0}, before={check.reading: 9})
    assert found.verdict is UNKNOWN
    assert "down to" in found.detail


def test_a_counter_not_read_at_the_start_hides_no_rise() -> None:
    """Without the reading before the wipe, a rise during it cannot be excluded."""
    found = one("aer-nonfatal", before={"aer_nonfatal": None})
    assert (found.verdict, found.reason) == (UNKNOWN, "health-unknown")


def test_every_counter_has_a_check() -> None:
    """DESIGN 6: each fault counter is compared before and after."""
    counted = {check.reading for check in CHECKS if check.rule == "count" and "rise" in check.rules}
    assert counted == set(COUNTERS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
def test_every_check_has_a_remedy_and_a_source(check: checks.Check) -> None:
    """What an operator is told to do, and where the rule comes from, is never empty."""
    assert check.remedy
    assert check.source
    assert check.rule in checks.RULES


def test_unknown_blocks_only_where_policy_says_so() -> None:
    """B1, gpus-8.19: unknown on a mandatory check blocks by default, on an optional one never."""
    lenient = HealthPolicy(unknown_blocks=False)
    readings = replace(GOOD, aer_fatal=None)
    assert not passed(judge(readings, POLICY), POLICY)
    assert {r.code for r in checks.reasons_of(judge(readings, POLICY), since=0)} == {
        "health-unknown"
    }
    found = judge(readings, lenient)
    assert passed(found, lenient)
    assert checks.reasons_of(found, since=0) == frozenset()
    assert passed(judge(replace(GOOD, sram_uncorrected=None), POLICY), POLICY)


def test_a_warning_neither_blocks_nor_quarantines() -> None:
    """History and posture are shown; they take nothing out of service."""
    found = judge(replace(GOOD, scrub_on_free=False, aer_nonfatal=4), POLICY)
    assert [f.check for f in found if f.verdict is WARN] == ["aer-nonfatal", "scrub-on-free"]
    assert passed(found, POLICY)


def test_thresholds_are_the_policys() -> None:
    """The operator's limit decides, not a number in the code."""
    strict = HealthPolicy(ecc_corrected_rate_max=0, retired_pages_max=0)
    assert one("ecc-corrected", {"ecc_corrected_volatile": 4}, before={}, policy=strict).verdict \
        is FAIL  # fmt: skip
    assert one("retired-pages", {"retired_pages": 1}, policy=strict).verdict is FAIL


@pytest.mark.parametrize(
    ("now", "resets"),
    [
        ({"reset_required": True}, True),
        ({"row_remap_pending": True}, True),
        ({"recovery_action": "DRAIN_AND_RESET"}, True),
        ({"xids": (119,)}, True),
        ({"recovery_action": "NODE_REBOOT"}, False),
        ({"row_remap_failed": True}, False),
        ({"xids": (45,)}, False),
        ({}, False),
    ],
)
def test_what_asks_for_a_reset(now: dict[str, Any], resets: bool) -> None:
    """B3: a device that must be reset says so; one that must be replaced is not reset for it."""
    assert needs_reset(judge(replace(GOOD, **now), POLICY)) is resets


def test_a_rise_of_remaps_asks_for_a_reset_not_for_a_replacement() -> None:
    """B40: a new remap is not the end of the device's life."""
    assert one("remaps", {"uncorrectable_remaps": 1}, before={}).action is Action.RESET
    assert one("remaps", {"uncorrectable_remaps": 513}, before={}).action is Action.REPLACE


def test_reasons_gather_the_facts_of_all_their_findings() -> None:
    """One reason per code, with every fact; a lost device is one cause, not twenty."""
    found = judge(replace(GOOD, pcie_replays=99, aer_corrected=999), POLICY, before=GOOD)
    (reason,) = checks.reasons_of(found, since=5.0)
    assert (reason.code, reason.source, reason.since) == ("link-degraded", Source.HEALTH, 5.0)
    assert "pcie-replays" in reason.detail
    assert "aer-corrected" in reason.detail
    lost = judge(Readings(at=1.0, present=False), POLICY)
    assert {reason.code for reason in checks.reasons_of(lost, since=0)} == {"device-lost"}


def test_b40_pending_and_failed_remaps_by_reading_alone() -> None:
    """B40, gpus-8.21: remap state counts without any log line; failed is never lifted by rule,
    even where no remap was ever counted.
    """
    (pending,) = checks.reasons_of(judge(replace(GOOD, row_remap_pending=True), POLICY), since=0)
    (failed,) = checks.reasons_of(judge(replace(GOOD, row_remap_failed=True), POLICY), since=0)
    assert (pending.code, pending.liftable) == ("remap-pending", True)
    assert (failed.code, failed.liftable) == ("remap-failed", False)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 2**64), st.just(63))
READINGS = st.builds(
    lambda changes, gone: replace(GOOD, **changes, not_applicable=frozenset(gone)),
    st.dictionaries(st.sampled_from([c.reading for c in CHECKS if c.rule == "count"]), VALUES),
    st.sets(st.sampled_from([check.reading for check in CHECKS]), max_size=3),
)


@given(READINGS, st.one_of(st.none(), READINGS), st.one_of(st.none(), READINGS), st.booleans())
def test_any_readings_are_judged(
    now: Readings, before: Readings | None, load: Readings | None, blocks: bool
) -> None:
    """No reading makes the judgement fail; passed means exactly that no reason is given."""
    policy = HealthPolicy(unknown_blocks=blocks)
    found = judge(now, policy, before=before, under_load=load)
    assert len(found) == len(CHECKS)
    assert passed(found, policy) is (checks.reasons_of(found, since=0) == frozenset())
    assert all(bool(f.reason) >= (f.verdict is FAIL) for f in found)


def test_an_unknown_reading_says_why_where_that_is_known() -> None:
    """gpus-8.19: whoever must give a right or repair a path is told which one it is."""
    found = Readings(at=0.0, why={"xids": "/dev/kmsg: no permission"})
    (xid,) = (judged for judged in judge(found, POLICY) if judged.check == "xid")
    assert xid.verdict is Verdict.UNKNOWN
    assert "/dev/kmsg: no permission" in xid.detail


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
def test_f47_only_what_is_wrong_has_a_remedy(check: checks.Check) -> None:
    """F47: a check that passed, does not apply, or got no answer that matters asks for nothing; an
    unknown that blocks says what to do about the answer, and never to repair the device.
    """
    assert one(check.name).remedy == ""
    assert one(check.name, {"not_applicable": frozenset({check.reading})}).remedy == ""
    silent = one(check.name, {check.reading: None})
    expected = reasons.entry("health-unknown").remedy if check.mandatory else ""
    if silent.verdict is UNKNOWN:
        assert silent.remedy == expected


def test_f47_what_failed_or_warns_keeps_its_own_remedy() -> None:
    """F47: remedies of faults and warnings are those of their rows."""
    assert one("aer-fatal", {"aer_fatal": 1}).remedy.startswith("read the kernel log, reseat")
    assert one("persistence", {"persistence": False}).remedy.startswith("run the driver's")
    told = one("xid", {"xids": (48,)}).remedy
    assert told == checks.remedy_of(Severity.RESET), "a rule's own word comes first"


def test_f20_errors_only_the_log_counts_count_before_and_after() -> None:
    """F20: an error logged during the wipe is a rise, also where nobody keeps totals; totals that
    count more than the log are believed.
    """
    none = {"aer_nonfatal": None, "not_applicable": frozenset({"aer_nonfatal"})}
    record = Logged("aer-firmware", "nonfatal", sequence=1)
    quiet = {**none, "logged": (record,)}
    found = one("aer-nonfatal", {**none, "logged": (record, record)}, before=quiet)
    assert (found.verdict, found.reason) == (FAIL, "counters-rose")
    assert one("aer-nonfatal", quiet).verdict is WARN
    assert one("aer-nonfatal", {"aer_nonfatal": 4, "logged": (record,)}).detail.startswith(
        "aer_nonfatal is 4"
    )
    assert one("aer-corrected", {**quiet}, before={}).verdict is PASS
    zero = {"aer_fatal": 0, "logged": (Logged("aer", "fatal"),)}
    assert one("aer-fatal", zero).detail == "aer_fatal is 1, allowed 0"


@pytest.mark.parametrize(
    ("check", "logged", "verdict", "reason"),
    [
        ("switch", (), PASS, ""),
        ("switch", (Logged("switch", "fatal", "a"),), FAIL, "switch-fault"),
        ("switch", (Logged("switch", "nonfatal", "a"),), WARN, ""),
        ("switch", (Logged("needs", "", "a"),), PASS, ""),
        ("driver-needs", (Logged("needs", "", "a"),), FAIL, "reset-required"),
        ("driver-needs", (Logged("switch", "fatal", "a"),), PASS, ""),
    ],
)
def test_f04_f06_what_the_log_has_without_a_code(
    check: str, logged: tuple[Logged, ...], verdict: Verdict, reason: str
) -> None:
    """F04, F06: each kind of record is judged by its own row, and a milder one only shown."""
    found = one(check, {"logged": logged})
    assert (found.verdict, found.reason) == (verdict, reason)


def test_b58_history_that_is_not_known_is_no_pass() -> None:
    """B58: codes the driver told by itself are judged; without the log the rest stays unknown."""
    why = {"xids": "the kernel log is not read"}
    assert one("xid", {"xids": (13,), "why": why}).verdict is UNKNOWN
    assert one("xid", {"xids": (48,), "why": why}).verdict is FAIL
    assert one("xid", {"xids": (13,)}).verdict is PASS
