"""What each driver fault code means between two tenants (case B40)."""

from __future__ import annotations

import pytest

from fleet.devices.health.xids import ROWS, Severity, Xid, classify


@pytest.mark.parametrize(
    ("codes", "severity"),
    [
        ((13,), Severity.NONE),
        ((31,), Severity.NONE),
        ((43,), Severity.NONE),
        ((45,), Severity.NONE),
        ((63,), Severity.ELSEWHERE),
        ((64,), Severity.REPLACE),
        ((48,), Severity.RESET),
        ((79,), Severity.REBOOT),
        ((94,), Severity.RESET),
        ((95,), Severity.RESET),
        ((119,), Severity.RESET),
        ((163,), Severity.REVIEW),
        ((163, 162), Severity.ELSEWHERE),
        ((162, 163), Severity.REVIEW),
        ((777,), Severity.REVIEW),
        ((45, 79, 64), Severity.REPLACE),
        ((109,), Severity.NOTE),
    ],
)
def test_b40_the_fault_table(codes: tuple[int, ...], severity: Severity) -> None:
    """B40: each row of the case's table; 162 ends 163, unknown codes are taken seriously."""
    assert classify(codes)[0].severity is severity


@pytest.mark.parametrize(
    ("code", "before", "severity"),
    [
        (31, (), Severity.OURS),
        (31, (31,), Severity.NONE),
        (109, (), Severity.OURS),
        (109, (109,), Severity.NOTE),
        (63, (), Severity.ELSEWHERE),
        (48, (48,), Severity.RESET),
    ],
)
def test_a_code_raised_by_our_wipe(code: int, before: tuple[int, ...], severity: Severity) -> None:
    """gpus-8.13: an application's fault during the wipe is ours; before it, the tenant's."""
    assert classify((code,), before=before)[0].severity is severity


def test_a_repeated_code_is_new_the_second_time() -> None:
    """One code before and two after is one raised during the wipe."""
    found = classify((31, 31), before=(31,))
    assert [xid.severity for xid in found] == [Severity.OURS, Severity.NONE]


@pytest.mark.parametrize(
    ("driver", "severity"),
    [("570.86", Severity.RESET), ("595.45.04", Severity.RESET), ("550.1", Severity.NONE),
     (None, Severity.NONE), ("beta", Severity.NONE)],
)  # fmt: skip
def test_meanings_may_depend_on_the_driver(driver: str | None, severity: Severity) -> None:
    """B40: a row for newer drivers replaces the older one from its branch on, as data."""
    rows = (
        {"code": 1, "text": "old", "outcome": "none"},
        {"code": 1, "text": "new", "outcome": "reset", "driver_min": 570},
    )
    assert classify((1,), driver_version=driver, rows=rows)[0].severity is severity


def test_a_code_is_told_with_its_meaning() -> None:
    """The operator reads code, text and what is asked for."""
    assert str(Xid(79, "fallen off the bus", Severity.REBOOT, "xid")) == (
        "79 fallen off the bus (reboot)"
    )


LISTED = frozenset(
    [
        *(13, 31, 32, 38, 43, 44, 45, 46, 48, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95),
        *(109, 110, 119, 120, 121, 136, 137, 140, 141, 143, *range(144, 152), 154, 155, 156),
        *(157, 158, 160, 161, 167, 168, 169, 171, 172, 173),
    ]
)
"""Every code of the reference's catalogue (section 2)."""


def test_every_code_of_the_catalogue_has_a_row() -> None:
    """B40: no code the reference explains falls to the default; each outcome is a severity."""
    assert {row["code"] for row in ROWS} >= LISTED
    outcomes = {
        row[name] for row in ROWS for name in ("outcome", "fatal", "nonfatal") if name in row
    }
    assert {word.upper() for word in outcomes} <= set(Severity.__members__)


@pytest.mark.parametrize("code", range(144, 151))
@pytest.mark.parametrize(
    ("said", "severity"),
    [("fatal", Severity.RESET), ("nonfatal", Severity.NOTE), ("", Severity.REVIEW)],
)
def test_a_link_unit_is_as_bad_as_its_message_says(
    code: int, said: str, severity: Severity
) -> None:
    """gpus-8.42: Fatal asks for a reset, Nonfatal is shown; without a word somebody must look."""
    assert classify((code,), severities=(said,))[0].severity is severity


def test_severities_of_other_codes_are_never_mixed_up() -> None:
    """As many severities as codes or none: a list that lost one would blame the wrong code."""
    assert classify((145,), severities=("nonfatal", ""))[0].severity is Severity.REVIEW
    assert classify((48,), severities=("nonfatal",))[0].severity is Severity.RESET
