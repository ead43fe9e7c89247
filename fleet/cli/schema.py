"""`fleet schema`: the shape of what verbs answer with --json, as one JSON Schema."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import models_json_schema

from fleet import cli
from fleet.cli.output import VERSION, VerbAnswer


def answers() -> dict[str, type[VerbAnswer]]:
    """Every kind of answer, by its name."""
    for module in pkgutil.iter_modules(cli.__path__):
        importlib.import_module(f"{cli.__name__}.{module.name}")
    found = {}
    for one in _kinds(VerbAnswer):
        name = one.model_fields["kind"].default
        ours = one.__module__.startswith(f"{cli.__name__}.")
        if ours and isinstance(name, str):  # what has none is a base of others
            found[name] = one
    return dict(sorted(found.items()))


def _kinds(base: type[VerbAnswer]) -> Iterator[type[VerbAnswer]]:
    for one in base.__subclasses__():
        yield one
        yield from _kinds(one)


def document() -> dict[str, Any]:
    """The schema: one of the kinds, told apart by `kind`."""
    kinds = answers()
    places, shapes = models_json_schema(
        [(one, "serialization") for one in kinds.values()], ref_template="#/$defs/{model}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://fleetscrub.dev/answers/v{VERSION}",
        "title": "What the verbs of fleet answer with --json",
        "oneOf": [places[one, "serialization"] for one in kinds.values()],
        "$defs": shapes["$defs"],
    }


def schema() -> None:
    """Times are RFC 3339 in UTC, null for never; sizes are bytes, durations seconds.

    `version` grows when a field is taken away or means something else; new fields may appear.
    """
    sys.stdout.write(json.dumps(document(), indent=2) + "\n")
