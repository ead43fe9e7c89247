"""Answers that nest deeper, spell numbers longer, or hold other bytes than the JSON reader takes.

Pure. Opaque parameters are stored by the API server as they come, whatever is in them: 2 KB of
brackets, or two bytes that are no UTF-8, in one tenant's claim would make a whole list unreadable.
So an answer the reader refuses is scanned without recursion; what lies deeper than `DEPTH_MAX` is
cut out of it, and bytes that are no text are replaced by words that say so. The object stays there,
with its name, status and marks: one that was left out would pass for gone, and its lease with it.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from fleet.core import errors
from fleet.kube.base import Object, name_of

DEPTH_MAX = 128
"""Levels kept. Nothing of ours is deeper than 20; the reader gives up near 1,000."""
CUT = "(cut out: nested too deep)"
"""What stands in the place of what was cut."""
NO_TEXT = "(cut out: no UTF-8)"
"""What stands, within a text, in the place of bytes that are none."""

_DIGITS_MAX = 1000
"""Digits of a whole number above which it is read as a fraction: such a one cannot be a count."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)


class Cut(dict[str, Any]):
    """An answer that was not read whole."""


def parsed(body: bytes) -> Any:
    """What `body` says, cut where it is too deep or no text; None: no JSON at all."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        pass
    try:
        text = pruned(body).decode("utf-8", _HANDLER)
        found = json.loads(text, parse_int=_whole)
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
        if isinstance(one, str) and (one == CUT or NO_TEXT in one):
            return True
        if isinstance(one, dict):
            left.extend((*one, *one.values()))
        elif isinstance(one, list):
            left.extend(one)
    return False


def refuse_cut(body: Object, what: str) -> None:
    """Raises `InputInvalid` for an object that was not read whole: it must not be written back."""
    if was_cut(body):
        raise errors.InputInvalid(
            f"{what} nests deeper than {DEPTH_MAX} levels or is no UTF-8: it was read in part, and"
            " a replacement would destroy the rest",
            remedy="have its owner create it anew with flat parameters of plain text",
        )


def told(entries: Iterable[Object]) -> str:
    """The names of those of these objects that were cut; "" for none."""
    return ", ".join(str(name_of(entry)) for entry in entries if was_cut(entry))


def _no_text(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return NO_TEXT, error.end


_HANDLER = "fleet-no-text"
codecs.register_error(_HANDLER, _no_text)


def _whole(digits: str) -> int | float:
    if len(digits) <= _DIGITS_MAX:
        return int(digits)
    return -math.inf if digits.startswith("-") else math.inf
