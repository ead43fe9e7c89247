"""The faults that can be asked for: a table kept as data (faults.toml), and how one is set."""

from __future__ import annotations

import difflib
import functools
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from fleet.core.errors import InputInvalid
from fleet.devices.simulated.registers import Fault


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One row of the table. `times` 0: until cleared."""

    name: str
    text: str
    outcome: str
    times: int
    parameters: Mapping[str, Any]
    readings: Mapping[str, Any] = field(default_factory=dict)
    load_readings: Mapping[str, Any] = field(default_factory=dict)
    reset_clears: bool = False


@functools.cache
def catalogue() -> Mapping[str, FaultKind]:
    """All faults by name, in the table's order."""
    text = resources.files(__package__).joinpath("faults.toml").read_text()
    return {name: FaultKind(name=name, **row) for name, row in tomllib.loads(text).items()}


def make(
    name: str, *, units: list[str], parameters: Mapping[str, str], times: int | None, seed: int
) -> Fault:
    """A fault ready to be set on these units. `times` None: the table's own; 0: until cleared.

    Raises InputInvalid for an unknown fault or parameter (naming the nearest), or a value that is
    not of the parameter's type.
    """
    kind = catalogue().get(name)
    if kind is None:
        raise InputInvalid(
            f"there is no fault {name!r}{_nearest(name, catalogue())}",
            remedy="see `fleet sim fault --list`",
        )
    chosen = dict(kind.parameters)
    for key, text in parameters.items():
        if key not in chosen:
            known = ", ".join(chosen) or "none"
            raise InputInvalid(
                f"fault {name} has no parameter {key!r}{_nearest(key, chosen)}",
                remedy=f"its parameters are: {known}",
            )
        chosen[key] = _typed(name, key, text, chosen[key])
    if chosen.get("at", 0.0) < 0:
        chosen["at"] = round(random.Random(f"{seed}/{name}/{units[0]}").uniform(0.2, 0.8), 3)  # noqa: S311 - a reproducible fault, not a secret
    strikes = kind.times if times is None else times
    return Fault(
        name=name,
        units=units,
        remaining=strikes or None,
        seed=seed,
        parameters=chosen,
        readings=dict(kind.readings),
        load_readings=dict(kind.load_readings),
        reset_clears=kind.reset_clears,
    )


def _typed(fault: str, key: str, text: str, default: object) -> object:
    try:
        return type(default)(text)  # type: ignore[call-arg] # the table holds str, int and float
    except ValueError:
        raise InputInvalid(
            f"{key}={text!r} of fault {fault} is not a value like {default!r}"
        ) from None


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; the nearest is {near[0]!r}" if near else ""
