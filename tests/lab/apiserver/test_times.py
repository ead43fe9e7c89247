"""Rules of API times."""

from __future__ import annotations

import pytest

from tests.lab.apiserver.times import microseconds, stamp, whole_seconds


def test_a_stamp_is_whole_seconds_in_utc() -> None:
    """Fractions of a second are cut, never rounded up."""
    assert stamp(1_764_000_000.999) == "2025-11-24T16:00:00Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-29T13:13:23Z", "2026-11-29T13:13:23Z"),
        ("2026-11-29T13:13:23.999999Z", "2026-11-29T13:13:23Z"),
        ("2026-11-29T13:13:23+02:00", "2026-11-29T11:13:23Z"),
        ("2026-11-29T13:13:23-01:30", "2026-11-29T14:43:23Z"),
    ],
)
def test_a_time_is_stored_in_whole_seconds(text: str, expected: str) -> None:
    """What is read back is in UTC and whole seconds."""
    assert whole_seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-29T13:13:23", 'cannot parse "" as "Z07:00"'),
        ("yesterday", 'cannot parse "yesterday"'),
        ("2026-13-29T13:13:23Z", "out of range"),
        ("2026-11-29T13:13:23Z.", "extra text"),
    ],
)
def test_a_time_that_does_not_parse_says_why(text: str, words: str) -> None:
    """The words are the server's, since they end up in a Status."""
    with pytest.raises(ValueError, match="parsing time") as caught:
        whole_seconds(text)
    assert words in str(caught.value)


def test_a_lease_wants_six_digits() -> None:
    """A lease's time has microseconds, exactly six digits."""
    assert microseconds("2026-11-29T13:13:23.000001Z") == "2026-11-29T13:13:23.000001Z"
    with pytest.raises(ValueError, match="cannot parse the fraction"):
        microseconds("2026-11-29T13:13:23Z")
