"""What others rely on, as it was when it was frozen: files on disk, answers, bodies at the API.

`python -m tests.goldens` writes them again. A change of one of them needs a reason in the commit
that makes it. States (`states/`) are never made again: they are files of a release, and whatever
comes later must read them.
"""

from __future__ import annotations

from pathlib import Path

from tests.goldens import answers, writes

FROZEN = Path(__file__).parent / "frozen"


def recorded(scratch: Path) -> dict[str, str]:
    """Every golden of today's code by name. `scratch`: an empty directory to work in."""
    return {
        **{f"answers/{name}": text for name, text in answers.answers(scratch / "states")},
        **dict(writes.stories()),
        **dict(writes.statements(scratch / "evidence")),
        **dict(writes.specs()),
        **dict(writes.wire()),
    }
