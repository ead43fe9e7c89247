"""Strategies that take something valid and change it: documents by structure, texts by bytes."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

NUMBERS = {
    "@long@": "9" * 5000,
    "@infinite@": "1e999",
    "@tiny@": "1e-999",
    "@nan@": "NaN",
    "@minus@": "-Infinity",
    "@negative zero@": "-0",
}
"""Texts that `spelled` replaces by numbers Python would not write, or not read."""
DEPTH = 3000
"""Levels of what is nested too deep for any reader that recurses."""


def nested(levels: int, inner: Any = None) -> Any:
    """`inner` inside that many lists and objects in turn."""
    found = inner
    for level in range(levels):
        found = [found] if level % 2 else {"x": found}
    return found


ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**64,
    10**400,
    0.5,
    1e308,
    "",
    " ",
    "x",
    "0",
    "\x00",
    "\x1b[2J\r\n",
    "\ud800",
    "\u202e\U0001f512",
    "../../../etc/passwd",
    "a/b",
    "x" * 5000,
    "{{ .Values }}",
    "sha256:" + "0" * 64,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"x": {}},
    ["x", "x"],
    nested(60),
    *NUMBERS,
)
"""Values of every kind that JSON has, and some at its edges."""


@st.composite
def documents(draw: st.DrawFn, valid: Any, *, most: int = 3, odd: tuple[Any, ...] = ODD) -> Any:
    """`valid` with one to `most` changes somewhere in it, at any depth."""
    holder = {"": deepcopy(valid)}
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(holder))
        container, key = places[draw(st.integers(0, len(places) - 1))]
        _change(draw, container, key, odd)
    return holder.get("")


def _places(found: Any) -> Any:
    """Every place in a document, as the container and its key or index."""
    waiting = [found]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            yield one, key
            if isinstance(one[key], dict | list):
                waiting.append(one[key])


def _change(draw: st.DrawFn, container: Any, key: Any, odd: tuple[Any, ...]) -> None:
    kind = draw(st.integers(0, 6))
    value = container[key]
    if kind == 0 and (len(container) > 1 or isinstance(container, list)):
        del container[key]
    elif kind == 1 and isinstance(container, list):
        container.insert(draw(st.integers(0, len(container))), deepcopy(value))
    elif kind == 1 or (kind == 2 and isinstance(container, list)):
        container[key] = [value, deepcopy(value)]
    elif kind == 2 and isinstance(key, str):
        container[draw(st.sampled_from([key + "x", key.upper(), "", "\x00", "\ud800"]))] = value
    elif kind == 3 and isinstance(value, str):
        container[key] = _changed_text(draw, value)
    elif kind == 3 and isinstance(value, int | float):
        container[key] = draw(st.sampled_from([-value, value + 1, str(value), value * 10**30]))
    elif kind == 4:
        container[key] = nested(draw(st.integers(1, 40)), value)
    else:
        container[key] = deepcopy(odd[draw(st.integers(0, len(odd) - 1))])


def _changed_text(draw: st.DrawFn, text: str) -> str:
    at = draw(st.integers(0, len(text)))
    put = draw(
        st.sampled_from(["", "0", "9", "f", "/", " ", "\x00", "\n", "\ud800", "é", "=", "."])
    )
    gone = draw(st.integers(0, 2))
    return text[:at] + put + text[at + gone :]


def spelled(document: Any) -> bytes:
    """The document as JSON, also where Python's own writer or reader would not follow."""
    text = json.dumps(document)
    for word, number in NUMBERS.items():
        text = text.replace(json.dumps(word), number)
    return text.encode()


@st.composite
def damaged(draw: st.DrawFn, content: bytes, *, most: int = 3) -> bytes:
    """`content` with some of its bytes flipped, cut, doubled, zeroed, inserted or moved."""
    found = content
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        long = draw(st.integers(1, 64))
        kind = draw(st.integers(0, 7))
        if kind <= 1 and found:
            flipped = bytes([found[at] ^ (1 << draw(st.integers(0, 7)))])
            found = found[:at] + flipped + found[at + 1 :]
        elif kind == 2:
            found = found[:at]
        elif kind == 3:
            found = found[:at] + found[at + long :]
        elif kind == 4:
            found = (
                found[:at] + found[at : at + long] * draw(st.integers(2, 3)) + found[at + long :]
            )
        elif kind == 5:
            found = found[:at] + bytes(min(long, len(found) - at)) + found[at + long :]
        elif kind == 6:
            found = found[:at] + draw(st.binary(max_size=16)) + found[at:]
        else:
            found = found[at:] + found[:at]
    return found


HOSTILE: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b"null",
    b"[]",
    b"{}",
    b'"x"',
    b"1",
    b"9" * 5000,
    b"[" * DEPTH,
    b"[" * DEPTH + b"]" * DEPTH,
    b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    b'{"a":1,"a":2}',
    b'{"a":NaN}',
    b'{"a":1e999}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"\\ud800":"\\ud800"}',
    b"\xc3\x28",
    b"\x1f\x8b\x08\x00",
    b"SQLite format 3\x00",
    b'{"a":"' + b"x" * 100_000 + b'"}',
    b"{" + b",".join(b'"k%d":0' % n for n in range(30_000)) + b',"k0":1}',
    b"{" + b",".join([b'"a":0'] * 30_000) + b"}",
)
"""Texts that readers of JSON stumble over: depth, doubled keys, numbers, encodings, size."""


def texts(valid: Any, *, most: int = 3) -> st.SearchStrategy[bytes]:
    """JSON made from `valid`: changed by structure, damaged as bytes, hostile, or noise."""
    return st.one_of(
        documents(valid, most=most).map(spelled),
        documents(valid, most=most).map(spelled),
        damaged(spelled(valid), most=most),
        st.sampled_from(HOSTILE),
        st.binary(max_size=64),
    )
