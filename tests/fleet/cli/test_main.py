"""The command line: exit codes, errors with remedies, nothing but the document with --json."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli.main import main, refused
from fleet.wiring import adapters


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


@pytest.mark.parametrize(
    ("arguments", "verb"),
    [
        (["node", "drain", "n", "--reason", "fans", "--wait"], "fleet node drain"),
        (["evidence", "keys", "revoke", "--reason"], "fleet evidence keys revoke"),
        (["devices", "--state"], "fleet devices"),
        (["scrub", "--bogus"], "fleet scrub"),
        (["node", "bogus"], "fleet node"),
    ],
)
def test_a_usage_error_names_the_help_of_its_own_verb(
    arguments: list[str], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: an option without its value, one that is none: the help named is that verb's own."""
    assert main(arguments) == 2
    assert f"do: see `{verb} --help`\n" in capsys.readouterr().err


def test_an_error_comes_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Promise 10: an absent driver is exit 2 with a remedy, never "all clean"."""
    assert main(["scrub", "--state", str(tmp_path)]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert "no accelerator" in found.err
    assert "do: " in found.err
    assert "--simulate" in found.err


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EISDIR])
def test_a_file_that_the_system_refuses_is_no_fault_of_the_product(number: int) -> None:
    """E7: a state directory that cannot be written: which file, why, and what to do about it."""
    found = refused(OSError(number, os.strerror(number), "/state/create.lock"))
    assert found.detail == f"/state/create.lock: {os.strerror(number)}"
    assert found.exit_code == 2
    assert found.remedy


def test_a_state_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """E7: whatever verb it is, and never as a traceback or a fault of ours."""
    adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20)
    (tmp_path / "nodes").write_text("no directory can be made below a file")
    for verb in (["status"], ["devices"], ["quarantine", "list"], ["sweep"], ["node", "adopt"]):
        assert main([*verb, "--state", str(tmp_path)]) == 2
        told = capsys.readouterr().err
        assert str(tmp_path / "nodes") in told
        assert "fault of the product" not in told


def test_f56_an_error_with_json_is_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F56: with --json an error is the one document on stdout, and words on stderr."""
    assert main(["devices", "--state", str(tmp_path), "--json"]) == 2
    found = capsys.readouterr()
    document = json.loads(found.out)
    assert (document["version"], document["kind"]) == (1, "error")
    assert document["error"] == "DriverAbsent"
    assert document["remedy"] in found.err


def test_an_error_cannot_write_to_the_terminal(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was typed or found comes back in an error as text."""
    device = "t\x1b[2J\n\x1b]0;pwn[red]"
    assert main(["quarantine", "clear", device, "--reason", "x", "--state", str(state)]) == 2
    assert main(["bogus\x1b[2J\n[red]"]) == 2
    found = capsys.readouterr().err
    assert "\x1b" not in found
    assert "pwn[red]" in found
    assert r"bogus\x1b[2J\n[red]" in found


def test_nothing_in_the_state_is_for_others(tmp_path: Path) -> None:
    """Whatever the umask, keys, journal and store are their owner's; only CDI specs are read."""
    directory = tmp_path / "deep" / "state"
    adapters.plan_fleet(tmp_path / "plan", simulate="1x1", memory_bytes=8 << 20)
    directory.mkdir(parents=True, mode=0o700)
    (directory / "fleet.json").write_bytes((tmp_path / "plan" / "fleet.json").read_bytes())
    (directory / "fleet.json").chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", "fleet.cli.main", "prove", "--state", str(directory)],
        check=False,
        capture_output=True,
        text=True,
        umask=0o000,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*")}
    assert [path for path, mode in modes.items() if mode & 0o022] == []
    directories = {path: mode for path, mode in modes.items() if path.is_dir()}
    assert {mode for path, mode in directories.items() if path.name == "cdi"} == {0o755}
    assert {mode for path, mode in directories.items() if path.name != "cdi"} == {0o700}
    private = [path for path in modes if path.suffix in (".db", ".lock", ".pem", ".key")]
    assert {path.name for path in private} >= {"journal.db", "journal.lock", "store.db"}
    assert {modes[path] for path in private} == {0o600}
