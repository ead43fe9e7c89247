"""What crosses the door: one JSON object per line, a call and its answer. Pure.

A call is ``{"call": name, "with": {...}}``, its answer ``{"answer": ...}`` or ``{"error": {...}}``
with the class of the error, so that both sides know one tree of errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleet.core import errors

LINE_MAX = 32 * 1024 * 1024
"""Longest line, bytes: a view of hundreds of devices with all their reasons is below 1 MiB."""

_OWN = frozenset({"self", "detail", "remedy"})
"""What an error has besides its fields."""


def call(name: str, arguments: Mapping[str, Any]) -> bytes:
    """A call as a line. Raises `InputInvalid` for one that the other side would not read."""
    line = _line({"call": name, "with": dict(arguments)})
    if len(line) > LINE_MAX:
        raise errors.InputInvalid(f"a call of {len(line)} bytes is too long for the node's door")
    return line


def answer(value: Any) -> bytes:
    """An answer as a line."""
    return _line({"answer": value})


def refusal(error: errors.FleetError) -> bytes:
    """An error as a line."""
    return _line({"error": told(error)})


def told(error: errors.FleetError) -> dict[str, Any]:
    """An error as a JSON value; fields that are no JSON cross as text."""
    return {
        "kind": _shared(type(error)),
        "detail": error.detail,
        "remedy": error.remedy,
        "fields": {name: _plain(value) for name, value in error.fields.items()},
    }


def parse_call(line: bytes) -> tuple[str, dict[str, Any]]:
    """The name and arguments of a call. Raises `InputInvalid`, also for a line cut short."""
    if not line.endswith(b"\n"):
        raise errors.InputInvalid(
            f"a line at the node's door was cut short or is longer than {LINE_MAX} bytes"
        )
    found = _object(line)
    name, arguments = found.get("call"), found.get("with", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise errors.InputInvalid("a call at the node's door has no name or no arguments")
    return name, arguments


def parse_answer(line: bytes) -> Any:
    """The value of an answer, or its error raised.

    Raises `NotOwner` for an answer cut short, `InputInvalid` for what is none: who decided nothing
    must not seem to have agreed.
    """
    if not line.endswith(b"\n"):
        raise errors.NotOwner("the owner of the node's journal went away in mid-answer")
    found = _object(line)
    if "error" in found:
        raise heard(found["error"])
    if "answer" not in found:
        raise errors.InputInvalid("a line at the node's door is neither an answer nor an error")
    return found["answer"]


def heard(told: Any) -> errors.FleetError:
    """The error as it was told. What is missing or misshapen in it never hides that it is one."""
    if not isinstance(told, Mapping):
        return errors.Unforeseen(f"the node's door told an error that is none: {str(told)[:200]}")
    kind = getattr(errors, str(told.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.FleetError)):
        kind = errors.Unforeseen
    fields = told.get("fields")
    given = {
        name: value
        for name, value in (fields.items() if isinstance(fields, Mapping) else ())
        if name not in _OWN
    }
    detail = str(told.get("detail") or "the node's door told an error without words")
    built: errors.FleetError = kind(detail, remedy=str(told.get("remedy") or ""), **given)
    return built


def _shared(kind: type[errors.FleetError]) -> str:
    """The nearest class both sides know: that of a module of its own keeps what it derives from."""
    known = (one.__name__ for one in kind.__mro__ if getattr(errors, one.__name__, None) is one)
    return next(known, errors.Unforeseen.__name__)


def _line(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise errors.InputInvalid(f"a line at the node's door is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise errors.InputInvalid("a line at the node's door is no JSON object")
    return found


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value
