"""The base of all sections."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleet.core.settings_section import Section


class Small(Section):
    """A section for the test."""

    period_s: float = 1.0


@pytest.mark.parametrize(
    "given", [{"perid_s": 2.0}, {"period_s": "2"}, {"period_s": float("inf")}], ids=str
)
def test_a_section_is_closed_and_strict(given: dict[str, object]) -> None:
    """A misspelt field, a text for a number and an infinite time are refused, never guessed."""
    with pytest.raises(ValidationError):
        Small.model_validate(given)
