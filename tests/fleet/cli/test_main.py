"""The command line: exit codes, errors with remedies, nothing but the document with --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.cli.main import main


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """`fleet --version` names the program and its version."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fleet 0.")


@pytest.mark.parametrize(
    "arguments", [["scrub", "--bogus"], ["bogus"], ["scrub", "--max-parallel", "0"], ["runs", "-x"]]
)
def test_a_usage_error_is_exit_2_with_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A command line that cannot be understood could not run, and says where help is."""
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert "error: " in found.err
    assert "--help" in found.err


def test_an_error_comes_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise 10: an absent driver is exit 2 with a remedy, never "all clean"."""
    assert main(["scrub", "--state", str(tmp_path)]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert "driver" in found.err
    assert "do: " in found.err
    assert "--simulate" in found.err


def test_an_error_with_json_is_json_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json an error is one JSON object on stderr and stdout stays empty."""
    assert main(["devices", "--state", str(tmp_path), "--json"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    document = json.loads(found.err)
    assert document["kind"] == "DriverAbsent"
    assert document["remedy"]
