"""PCI addresses: one spelling for a slot."""

from __future__ import annotations

import pytest

from fleet.slices.pci import address


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        (" 0001:43:00.1 ", "0001:43:00.1"),
        ("00010000:07:00.0", "10000:07:00.0"),
        ("10000:07:00.0", "10000:07:00.0"),
    ],
)
def test_every_spelling_of_a_slot_becomes_the_one_of_sysfs(given: str, canonical: str) -> None:
    """B57: eight digits or four, either case, with or without a domain: one canonical form."""
    assert address(given) == canonical


@pytest.mark.parametrize(
    "given", ["", ":07:00.0", "0000:1b:00", "0000:1b:20.0", "0000:1b:00.8", "x"]
)
def test_what_is_no_address_stays_none(given: str) -> None:
    """B57: bad input is no address, never a wrong slot."""
    assert address(given) == ""
