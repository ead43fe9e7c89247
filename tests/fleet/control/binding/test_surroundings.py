"""What the coordinator binds by, from the settings."""

from __future__ import annotations

import pytest

from fleet.control.binding.surroundings import BinderTerms, in_turn
from fleet.core.settings import KubernetesSettings, Settings


@pytest.mark.parametrize(("word", "until"), [("with-hold", False), ("until-verified", True)])
def test_terms_are_what_the_settings_say(word: str, until: bool) -> None:
    """B6, D3: deadline, freshness and the way the finalizer goes come from the settings."""
    kubernetes = KubernetesSettings.model_validate(
        {"driver": "gpu.example.com", "binding_timeout_s": 90, "finalizer": word}
    )
    settings = Settings().model_copy(update={"kubernetes": kubernetes})
    terms = BinderTerms.from_settings(settings)
    assert terms.rules.marks.driver == "gpu.example.com"
    assert terms.rules.binding_timeout_s == 90
    assert terms.rules.fresh_s == settings.health.fresh_s
    assert terms.rules.until_verified is until


def test_jobs_are_done_in_turn() -> None:
    """Every job is done, in order."""
    done: list[int] = []
    in_turn([lambda: done.append(1), lambda: done.append(2)])
    assert done == [1, 2]
