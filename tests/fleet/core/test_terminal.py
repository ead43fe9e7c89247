"""What a terminal would act on is written out instead."""

from __future__ import annotations

import pytest

from fleet.core.terminal import visible


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain words", "plain words"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("one\ntwo\r", "one\\ntwo\\r"),
        ("\u202eturned", "\\u202eturned"),
        ("Grüße 你好", "Grüße 你好"),
        ("\ud800", "\\ud800"),
    ],
)
def test_nothing_acts_and_everything_is_said(given: str, shown: str) -> None:
    """A tenant's words neither move the cursor nor forge a line; twice changes nothing more."""
    assert visible(given) == shown
    assert visible(shown) == shown
