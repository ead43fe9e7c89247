"""The manifests for clusters without Helm say what the chart says."""

from __future__ import annotations

import pytest

from tests.deploy.chart import plain, strict
from tests.deploy.manifests import objects

pytestmark = pytest.mark.chart


@pytest.mark.parametrize("name", plain.FILES)
def test_each_file_is_fresh(name: str) -> None:
    """Rights that are written down twice drift apart."""
    stale = "run: python -m tests.deploy.chart.plain"
    assert (plain.DIRECTORY / name).read_text() == plain.text(name), stale


def test_they_are_what_the_api_knows() -> None:
    """The example included, which no chart makes."""
    assert [problem for one in objects() for problem in strict.problems(one)] == []
