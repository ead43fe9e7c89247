"""`make kubelet-demo`: what it refuses. The whole story is told once, in test_demo.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.kubelet.__main__ import main


@pytest.mark.parametrize("profile", ["strict", "loose", ""])
def test_only_profiles_that_need_no_coordinator_are_shown(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`strict` waits for conditions that nobody sets here: refused, exit 2, nothing made."""
    place = tmp_path / "new"
    with pytest.raises(SystemExit, match="2"):
        main(["--dir", str(place), "--profile", profile])
    told = capsys.readouterr()
    assert f"invalid choice: {profile!r}" in told.err
    assert "fast" in told.err
    assert told.out == ""
    assert not place.exists()


def test_a_directory_in_use_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in a directory already is somebody's: refused, exit 2, untouched."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        main(["--dir", str(tmp_path)])
    assert "is not empty" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [kept]
