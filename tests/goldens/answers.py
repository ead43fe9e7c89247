"""What the verbs that read answer with --json about the states that releases left on disk."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest

from fleet.cli.main import main

STATES = Path(__file__).parent / "states"
PLACE = "@STATE@"
"""Stands in the files for where the state is, as it did where it was made."""
VERBS = (
    "status",
    "devices",
    "runs",
    "report nothing",
    "report --requirement SEC21-05",
    "evidence list",
    "evidence losses",
    "evidence admin-access",
    "evidence verify",
    "evidence keys list",
    "quarantine list",
    "quarantine clear nothing --reason none",
)
INCARNATION = re.compile(r"(?<=\"incarnation\": \")[0-9a-f]{32}")
MOMENT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def answers(scratch: Path) -> Iterator[tuple[str, str]]:
    """Name and content of each answer: exit code, then the document.

    Times from now on read `NOW`, the place of the state `@STATE@`.
    """
    for state in sorted(path for path in STATES.glob("*/*") if path.is_dir()):
        copy = scratch / state.parent.name / state.name
        shutil.copytree(state, copy)
        for path in copy.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)  # git keeps no modes, keys need theirs
            if path.is_file() and PLACE.encode() in (content := path.read_bytes()):
                path.write_bytes(content.replace(PLACE.encode(), str(copy).encode()))
        where = copy / "state" if (copy / "state").is_dir() else copy
        began = time.time()
        for verb in VERBS:
            with (
                redirect_stdout(StringIO()) as written,
                redirect_stderr(StringIO()),
                pytest.MonkeyPatch.context() as changed,
            ):
                changed.setenv("KUBECONFIG", str(copy / "kubeconfig"))  # there is no such file
                code = main([*verb.split(), "--state", str(where), "--json"])
            said = _since(began, written.getvalue().replace(str(copy), PLACE))
            name = "-".join(re.findall(r"[a-z0-9]+", verb.lower()))
            yield f"{state.parent.name}/{state.name}/{name}.json", f"{code}\n{said}"


def _since(began: float, text: str) -> str:
    """`text` without what differs from run to run."""

    def told(found: re.Match[str]) -> str:
        return "NOW" if datetime.fromisoformat(found[0]).timestamp() >= began else found[0]

    return MOMENT.sub(told, INCARNATION.sub("INCARNATION", text))
