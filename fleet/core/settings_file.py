"""Reading settings from a file: TOML or JSON by its suffix, mistakes told as file:line."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.disk import read_regular
from fleet.core.settings import Settings
from fleet.core.settings_parse import Problem, named, parse

MOST_BYTES = 1 << 20
"""A ConfigMap holds no more, and all settings with their defaults are below 10 KiB."""
_LINE = re.compile(r"at line (\d+)")


def load(path: Path) -> Settings:
    """The settings in `path`.

    Raises `SettingsInvalid` when it cannot be read or understood, with every problem in its field
    ``problems`` and the file named.
    """
    given = read(path)
    try:
        return parse(given)
    except errors.SettingsInvalid as error:
        raise errors.SettingsInvalid(
            f"{path}: {error.detail}", remedy=error.remedy, problems=error.problems
        ) from error


def read(path: Path) -> dict[str, Any]:
    """The tables of a settings file, not yet judged. Raises `SettingsInvalid` with file:line."""
    try:
        raw = read_regular(path, most_bytes=MOST_BYTES, follow_links=True)
    except OSError as error:
        raise _invalid(str(path), f"cannot be read: {error.strerror}", "a readable file") from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _invalid(f"{path}:{line}", "is not UTF-8", "the file in UTF-8") from error
    if path.suffix == ".toml":
        return _toml(path, text)
    if path.suffix == ".json":
        return _json(path, text)
    raise _invalid(str(path), f"has the unknown suffix {path.suffix!r}", "a .toml or .json file")


def _toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise _invalid(f"{path}:{line}", str(error), "valid TOML there") from error
    except (ValueError, RecursionError) as error:
        raise _invalid(str(path), _unreadable(error), "plain values in sections") from error


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise _invalid(f"{path}:{error.lineno}", error.msg, "valid JSON there") from error
    except _Repeated as error:
        raise _invalid(str(path), f"the key '{error}' is given twice", "it once") from error
    except (ValueError, RecursionError) as error:
        raise _invalid(str(path), _unreadable(error), "plain values in sections") from error
    if not isinstance(found, dict):
        raise _invalid(f"{path}:1", "is not an object", "an object of sections")
    return found


def _unreadable(error: Exception) -> str:
    """What readers of TOML and JSON stumble over without saying where."""
    return "nests too deep" if isinstance(error, RecursionError) else f"cannot be read: {error}"


class _Repeated(ValueError):
    """A key given twice, of which JSON would silently drop one."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Repeated(named(key))
        found[key] = value
    return found


def _invalid(place: str, wrong: str, write: str) -> errors.SettingsInvalid:
    return errors.SettingsInvalid(
        f"{place} {wrong}", remedy=f"write {write}", problems=[Problem(place, wrong, write)]
    )
