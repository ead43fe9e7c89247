"""A copy of all quarantine reasons beside the journal, so that losing the journal loses none.

A new journal holds every unit and would forget why some were out of service. The copy is replaced
atomically whenever reasons change and is read when a journal is new, or begins another boot and may
be an older one. A copy that cannot be read says so: nothing is taken for "no reasons".
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.core.disk import read_regular
from fleet.core.model import Reason, UnitId
from fleet.node.journal import records

MOST_BYTES = 16 * 1024 * 1024
"""A copy of thousands of reasons is below 1 MiB."""

Reasons = Mapping[UnitId, frozenset[Reason]]


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the copy says; `trouble` when it is there and cannot be read."""

    reasons: Reasons = field(default_factory=dict)
    trouble: str = ""


def read(path: Path) -> Remembered:
    """The reasons kept, none when there is no copy."""
    try:
        found = json.loads(read_regular(path, most_bytes=MOST_BYTES, follow_links=True))
        return Remembered(
            {
                UnitId(unit): frozenset(records.reason_from(reason) for reason in kept)
                for unit, kept in found.items()
            }
        )
    except FileNotFoundError:
        return Remembered()
    except (*errors.MALFORMED, OSError) as error:
        return Remembered(trouble=f"the copy of quarantine reasons {path} is unreadable: {error!r}")


def write(path: Path, reasons: Reasons) -> None:
    """Replace the copy, durably. Raises OSError."""
    spelled = {
        unit: [records.reason_fields(reason) for reason in sorted(found)]
        for unit, found in sorted(reasons.items())
        if found
    }
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(spelled))  # `dump` encodes piece by piece, ten times slower
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
