"""Rules of canonical quantities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.apiserver.quantity import canonical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("80Gi", "80Gi"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("0.5", "500m"),
        ("1e3", "1e3"),
        ("0", "0"),
        ("0Gi", "0"),
        ("100000m", "100"),
    ],
)
def test_the_canonical_form_is_that_of_the_server(text: str, expected: str) -> None:
    """The largest suffix that leaves a whole number, within the suffix family sent."""
    assert canonical(text) == expected


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(["", "k", "Ki", "Mi", "Gi", "G"]))
def test_the_canonical_form_is_stable(number: int, suffix: str) -> None:
    """Writing back what was read changes nothing: a publisher comes to rest."""
    once = canonical(f"{number}{suffix}")
    assert canonical(once) == once


@pytest.mark.parametrize("text", ["", "a lot", "1 Gi", "1GiB", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """Anything else raises ValueError."""
    with pytest.raises(ValueError, match="quantities must match"):
        canonical(text)
