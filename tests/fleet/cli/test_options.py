"""Options several verbs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.options import operator_name, state_directory
from fleet.core import errors
from fleet.core.settings_parse import parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("64MiB", 64 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("500MB", 500_000_000),
        (" 2 tib ", 2 * 2**40),
    ],
)
def test_a_size_is_read_with_its_unit(text: str, expected: int) -> None:
    """Binary and decimal units mean what they say."""
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "64 miles", "-1", "0", "0.3", "1e9", "64MiBB"])
def test_what_is_no_size_is_refused_with_a_remedy(text: str) -> None:
    """A size that cannot be read is an error that shows how to write one."""
    with pytest.raises(errors.InputInvalid) as caught:
        parse_size(text)
    assert "64MiB" in caught.value.remedy


def test_the_state_directory_is_absolute() -> None:
    """A relative or home-relative state directory means the same for every process of a run."""
    assert state_directory(Path("x")).is_absolute()
    assert state_directory(None).name == "fleetscrub"
    assert "~" not in str(state_directory(None))


def test_an_operator_given_by_name_is_recorded_by_that_name() -> None:
    """The record names who decided; without a name it is the login name, never empty."""
    assert operator_name("night shift") == "night shift"
    assert operator_name(None)
