"""The health tables kept as data beside this module: read once, by name.

Thresholds that operators tune live in the settings; which signal means what lives in these tables,
each row with the document it was taken from, because the public classifiers disagree and change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def rows(table: str, key: str) -> Sequence[Mapping[str, Any]]:
    """The rows ``[[key]]`` of ``<table>.toml``, in file order. Raises KeyError without any."""
    text = files("fleet.devices.health").joinpath(f"{table}.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)[key])
