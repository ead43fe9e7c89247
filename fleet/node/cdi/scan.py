"""What a container runtime sees in a directory of specs.

Direct children whose names end exactly in ``.json`` or ``.yaml``, names with a leading dot
included, sub-directories not. A device defined by two files of one directory exists for nobody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleet.node.cdi import files, rules
from fleet.node.cdi.names import SCANNED


@dataclass(frozen=True, slots=True)
class Scan:
    """One look at a directory."""

    definitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Qualified id to the files that define it."""
    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """File to why a runtime refuses it."""

    @property
    def resolvable(self) -> frozenset[str]:
        """Ids a container can be given."""
        return frozenset(name for name, where in self.definitions.items() if len(where) == 1)

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Each id defined more than once, with its files."""
        return tuple(
            f"{name} is defined by {' and '.join(where)}: no container can get it"
            for name, where in sorted(self.definitions.items())
            if len(where) > 1
        )


def scanned(directory: Path) -> list[str]:
    """Names in the directory that a runtime would look at, sorted. Raises OSError."""
    return sorted(name for name in os.listdir(directory) if name.endswith(SCANNED))  # noqa: PTH208 -- names only, on a path that is read often


def scan(directory: Path) -> Scan:
    """Look at the directory now; a missing one is empty. Raises OSError if it cannot be read.

    A file that vanishes between the listing and its reading is not there.
    """
    definitions: dict[str, tuple[str, ...]] = {}
    problems: dict[str, tuple[str, ...]] = {}
    try:
        names = scanned(directory)
    except FileNotFoundError:
        return Scan()
    for name in names:
        try:
            text = files.content(directory / name)
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as error:
            problems[name] = (f"{name} cannot be read: {error}",)
            continue
        spec, wrong = rules.parsed(text, name)
        if spec is None or wrong:
            problems[name] = tuple(wrong)
            continue
        for device in spec.ids:
            definitions[device] = (*definitions.get(device, ()), name)
    return Scan(definitions, problems)


def conflicts(directory: Path) -> tuple[str, ...]:
    """Devices that two files of the directory define. Raises OSError if it cannot be read."""
    return scan(directory).conflicts
