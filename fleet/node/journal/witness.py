"""The witness: a small file outside the journal's disk that must never be ahead of the journal.

It lives where a restored backup does not reach (/run) and is gone after a reboot. A journal older
than its witness was restored, another journal's witness means the file was swapped; either way
the journal is set aside like a lost one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path

from fleet.core import errors
from fleet.core.disk import own_directory, read_regular

MOST_BYTES = 64 * 1024
"""A witness has a few hundred."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What was last known of a journal. `node_uid` is the Node object's, empty off Kubernetes."""

    journal_id: str
    sequence: int
    machine_id: str
    node_uid: str
    boot_id: str


_NAMES = tuple(field.name for field in fields(Witness))
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def read(path: Path) -> Witness | None:
    """The witness, or None when there is none or it is not readable as one."""
    try:
        content = read_regular(path, most_bytes=MOST_BYTES, follow_links=True)
        found = dict(json.loads(content))
        sequence = found.pop("sequence")
        if not isinstance(sequence, int) or not all(isinstance(one, str) for one in found.values()):
            return None
        return Witness(sequence=sequence, **found)
    except (*errors.MALFORMED, OSError):
        return None


def write(path: Path, witness: Witness) -> None:
    """Replace the witness atomically; no fsync, since /run does not survive a power cut anyway."""
    # With every commit: as texts, which cost a third of what paths do.
    directory, _, name = str(path).rpartition("/")
    temporary = f"{directory}/.{name}.{os.getpid()}"
    content = json.dumps({name: getattr(witness, name) for name in _NAMES}).encode()
    try:
        descriptor = os.open(temporary, _FLAGS, 0o644)
    except FileNotFoundError:
        own_directory(path.parent, allowed=0o755)
        descriptor = os.open(temporary, _FLAGS, 0o644)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        file.write(content)
    os.replace(temporary, path)  # noqa: PTH105 - as above


def contradicts(witness: Witness, *, journal_id: str, sequence: int, machine_id: str) -> str:
    """Why the journal must not be believed, or "" when witness and journal agree."""
    if witness.machine_id != machine_id:
        return ""
    if witness.journal_id != journal_id:
        return f"the witness is of journal {witness.journal_id}, this is {journal_id}"
    if witness.sequence > sequence:
        return f"the witness has seen commit {witness.sequence}, the journal ends at {sequence}"
    return ""
