"""Rules of fetching programs; without a network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import debian


def test_a_program_on_the_path_is_taken_as_it_is() -> None:
    """Nothing is fetched that is there."""
    found = debian.find("sh", "no-such-package-at-all")
    assert found.path.name == "sh"
    assert found.environment == {}


def test_what_cannot_be_had_says_why(tmp_path: Path) -> None:
    """A target that needs it prints SKIPPED and this reason."""
    with pytest.raises(debian.Unavailable, match="failed: "):
        debian._run([sys.executable, "-c", "import sys; sys.exit('no network')"], cwd=tmp_path)
    with pytest.raises(debian.Unavailable, match="no-such-program failed"):
        debian._run(["no-such-program"], cwd=tmp_path)
