"""Answers that nest deeper, or spell numbers longer, than the JSON reader takes. Pure.

Opaque parameters are stored by the API server as they come, whatever is in them: 2 KB of brackets
in one tenant's claim would make a whole list unreadable. So an answer the reader refuses is scanned
without recursion, and what lies deeper than `DEPTH_MAX` is cut out of it. The object stays there,
with its name, status and marks: one that was left out would pass for gone, and its lease with it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from fleet import errors
from fleet.kube.base import Object, name_of

DEPTH_MAX = 128
"""Levels kept. Nothing of ours is deeper than 20; the reader gives up near 1,000."""
CUT = "(cut out: nested too deep)"
"""What stands in the place of what was cut."""

_DIGITS_MAX = 1000
"""Digits of a whole number above which it is read as a fraction: such a one cannot be a count."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)


class Cut(dict[str, Any]):
    """An answer that was not read whole."""


def parsed(body: bytes) -> Any:
    """What `body` says, cut where it is too deep; None: no JSON at all."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    try:
        found = json.loads(pruned(body), parse_int=_whole)
    except (ValueError, RecursionError):
        return None
    return Cut(found) if isinstance(found, dict) else found


def pruned(body: bytes, *, depth_max: int = DEPTH_MAX) -> bytes:
    """`body` with each array and object deeper than `depth_max` replaced by the text `CUT`."""
    depth, kept, begun = 0, 0, 0
    pieces: list[bytes] = []
    for token in _TOKEN.finditer(body):
        mark = token.group()
        if mark in (b"[", b"{"):
            depth += 1
            if depth == depth_max + 1:
                begun = token.start()
        elif mark in (b"]", b"}"):
            if depth == depth_max + 1:
                pieces += [body[kept:begun], json.dumps(CUT).encode()]
                kept = token.end()
            depth -= 1
    return b"".join([*pieces, body[kept:]])


def was_cut(found: object) -> bool:
    """Whether something in here was cut out, or says so."""
    left = [found]
    while left:
        one = left.pop()
        if isinstance(one, str) and one == CUT:
            return True
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
    return False


def refuse_cut(body: Object, what: str) -> None:
    """Raises `InputInvalid` for an object that was not read whole: it must not be written back."""
    if was_cut(body):
        raise errors.InputInvalid(
            f"{what} nests deeper than {DEPTH_MAX} levels: it was read in part, and a replacement"
            " would destroy the rest",
            remedy="have its owner create it anew with flatter parameters",
        )


def told(entries: Iterable[Object]) -> str:
    """The names of those of these objects that were cut; "" for none."""
    return ", ".join(str(name_of(entry)) for entry in entries if was_cut(entry))


def _whole(digits: str) -> int | float:
    if len(digits) <= _DIGITS_MAX:
        return int(digits)
    return -math.inf if digits.startswith("-") else math.inf
