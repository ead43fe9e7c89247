"""The commands that README and quick start have for a laptop, typed one after the other."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import commands
from tests.document import ROOT, differs
from tests.shell import Shell, environment

LIMIT_S = 600
"""Two campaigns over 16 devices are most of it: half a minute on a machine that is idle."""

pytestmark = [pytest.mark.ray, pytest.mark.timeout(LIMIT_S)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a clone, as far as a command can tell: its state is of its own."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", ".state"):
            (clone / path.name).symlink_to(path)
    (clone / "manifests").mkdir()
    shutil.copy(ROOT / "deploy" / "kubernetes" / "example-pod.yaml", clone / "manifests")
    synced = subprocess.run(["make", "--question", ".venv/.synced-run"], cwd=clone, check=False)
    # What `make` would install now would be this directory, in everybody's environment.
    assert synced.returncode == 0, "the environment is older than pyproject.toml: run make test"
    with Shell(clone, tmp_path, environment(TMPDIR=str(tmp_path))) as found:
        yield found


def test_what_a_laptop_is_told_to_type_does_what_the_pages_say(shell: Shell) -> None:
    """E2, F77: every command of README and quick start for a laptop ends as the page says, and
    prints what it shows: the secret is found before the wipe and not after it, the broken device
    goes out of service with its reason, and comes back by a decision and a wipe."""
    said: dict[str, str] = {}
    for page in commands.PAGES:
        for block in commands.typed(page, "laptop"):
            first = commands.plain(block.commands[0])
            if first in said:  # the same over the same state
                assert not differs(block.output or "...", said[first])
            else:
                said[first] = shell.type(block, placeholders(shell))
    assert "make scrub" in said


def placeholders(shell: Shell) -> dict[str, str]:
    """What stands for the words in capitals: the newest run, and a certificate of it."""
    code, told = shell.run(".venv/bin/fleet runs --json --state .state")
    if code:
        return {}
    run = json.loads(told)["runs"][0]
    (result, *_) = run["results"].values()
    return {"RUN": run["id"], "DIGEST": str(result["certificate"])}
