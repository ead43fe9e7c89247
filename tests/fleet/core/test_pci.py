"""PCI addresses: one spelling for a slot."""

from __future__ import annotations

import pytest

from fleet.core.pci import address, slot

SPELLINGS = [
    ("00000000:1B:00.0", "0000:1b:00.0"),
    ("0000:1B:00.0", "0000:1b:00.0"),
    ("0000:1b:00.0", "0000:1b:00.0"),
    ("1b:00.0", "0000:1b:00.0"),
    ("PCI:0000:1b:00", "0000:1b:00.0"),
    ("00000001:00:00.0", "0001:00:00.0"),
    ("0001:00:00.0", "0001:00:00.0"),
    ("00010000:02:00.0", "10000:02:00.0"),
    ("10000:02:00.0", "10000:02:00.0"),
    ("0000:c3:00.0", "0000:c3:00.0"),
    (" 0001:43:00.1 ", "0001:43:00.1"),
]
"""The case's table, and a function other than the first."""


@pytest.mark.parametrize(("given", "canonical"), SPELLINGS)
def test_every_spelling_of_a_slot_becomes_the_one_of_sysfs(given: str, canonical: str) -> None:
    """B57, gpus-8.2: any width of the domain, either case, the log's form: one canonical form."""
    assert address(given) == canonical


def test_two_slots_never_collapse_into_one() -> None:
    """B57: as many canonical forms as there are slots, with and without the function."""
    assert len({address(given) for given, _ in SPELLINGS}) == 5
    assert len({slot(given) for given, _ in SPELLINGS}) == 5


@pytest.mark.parametrize(
    "given",
    [
        "",
        ":07:00.0",
        "0000:1b:00",
        "0000:1b:20.0",
        "0000:1b:00.8",
        "0000:1g:00.0",
        "PCI:0000:1b:20",
        "0000:1b:00.0 0000:1c:00.0",
        "x",
    ],
)
def test_what_is_no_address_stays_none(given: str) -> None:
    """B57: bad input is no address, never a wrong slot."""
    assert address(given) == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("PCI:0000:DF:00", "0000:df:00"),
        ("0000:df:00", "0000:df:00"),
        ("PCI:DF:00", "0000:df:00"),
        ("00000000:DF:00.0", "0000:df:00"),
        ("df:00.0", "0000:df:00"),
        ("0018:01:00", "0018:01:00"),
        ("00010000:02:00", "10000:02:00"),
        ("12:30", ""),
        ("0000:df:20", ""),
        ("0000:df:00.9", ""),
        ("gf:00.0", ""),
        ("", ""),
    ],
)
def test_a_slot_is_compared_without_its_function(given: str, expected: str) -> None:
    """B39, B57, gpus-8.42: logs leave the function out; what is doubtful matches no slot."""
    assert slot(given) == expected
