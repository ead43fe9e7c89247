"""Nothing that others rely on changes unless a commit says so."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from tests.goldens import FROZEN, recorded

SHOWN = 60


def test_what_others_rely_on_is_as_it_was_frozen(tmp_path: Path) -> None:
    """Answers about old states, bodies at the API, evidence, CDI specs and gRPC stay as they are.

    Where a change is meant, `python -m tests.goldens` writes them anew.
    """
    frozen = {
        str(path.relative_to(FROZEN)): path.read_text()
        for path in FROZEN.rglob("*")
        if path.is_file()
    }
    today = recorded(tmp_path)
    differences = [
        line
        for name in sorted(frozen.keys() | today.keys())
        if frozen.get(name) != today.get(name)
        for line in unified_diff(
            frozen.get(name, "").splitlines(),
            today.get(name, "").splitlines(),
            f"frozen/{name}",
            f"today/{name}",
            lineterm="",
        )
    ]
    assert not differences, "\n".join(differences[:SHOWN])
