"""`fleet kubelet-sim`: what it refuses, and its answer as JSON.

The whole story is told once, in tests/node_plugin/kubelet_sim/test_demo.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.kubelet_sim import KubeletStory
from fleet.cli.main import main


@pytest.mark.parametrize("profile", ["strict", "loose", ""])
def test_only_profiles_that_need_no_coordinator_are_shown(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`strict` waits for conditions that nobody sets here: refused, exit 2, nothing made."""
    place = tmp_path / "new"
    assert main(["kubelet-sim", "--dir", str(place), "--profile", profile]) == 2
    told = capsys.readouterr()
    assert f"profile {profile!r} cannot be shown" in told.err
    assert "choose fast or lab" in told.err
    assert told.out == ""
    assert not place.exists()


def test_a_directory_in_use_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in a directory already is somebody's: refused, exit 2, untouched."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    assert main(["kubelet-sim", "--dir", str(tmp_path)]) == 2
    assert "is not empty" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == [kept]


def test_errors_are_json_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json an error is one object on stdout."""
    assert main(["kubelet-sim", "--profile", "strict", "--json"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["error"] == "InputInvalid"


def test_the_document_says_whether_every_promise_held() -> None:
    """Machines read one object: `held`, and the lines that people saw, in order."""
    found = KubeletStory(held=False, lines=("one", "two")).model_dump(mode="json")
    assert (found["held"], found["lines"]) == (False, ["one", "two"])
