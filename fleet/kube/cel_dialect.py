"""What the server's CEL can say and the library cannot, in words that the library has. Pure.

Optional fields (``a.?b.orValue(c)``), ``cel.bind`` and functions with a dot in their names
(``sets.contains``) are rewritten before an expression is read. Texts and comments in it are left
as they are. What cannot be rewritten is left for the library to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

BINDS_MAX = 8
"""Names that one expression may bind: each may double the length of a text."""
FIELD, ENTRY = "_field", "_entry"
"""Functions behind ``a.?b`` and ``a[?b]``."""
NAMESPACED = {
    f"{space}.{name}": f"_{space}_{name}"
    for space, names in {
        "ip": ("isCanonical",),
        "optional": ("none", "of", "ofNonZeroValue"),
        "sets": ("contains", "equivalent", "intersects"),
    }.items()
    for name in names
}
"""Functions with a dot in their names, and what they are called here."""
METHODS = {name: f"_{name}" for name in ("hasValue", "or", "orValue", "value")}
"""Methods of optional values: the library has its own, for values that nothing here makes."""
_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*)
  | (?P<text>[rRbB]{0,2}(?:
        '''(?:\\.|[^\\])*?''' | \"\"\"(?:\\.|[^\\])*?\"\"\"
      | '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*"))
  | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
  | (?P<space>\s+)
  | (?P<sign>\.\?|\[\?|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = "([{", ")]}"


class Unreadable(ValueError):
    """An expression whose brackets do not match, or that binds too many names."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def rewritten(expression: str) -> str:
    """The expression in the library's words. Raises `Unreadable`."""
    found = [
        _Token(match.lastgroup or "", match[0])
        for match in _TOKEN.finditer(expression)
        if match.lastgroup != "comment"
    ]
    if sum(one.text == "bind" for one in found) > BINDS_MAX:
        raise Unreadable(f"more than {BINDS_MAX} names are bound")
    return "".join(_written(found))


def _written(tokens: list[_Token]) -> Iterator[str]:
    at = 0
    while at < len(tokens):
        token = tokens[at]
        named = "".join(one.text for one in tokens[at : at + 3])
        after_dot = at > 0 and tokens[at - 1].text in (".", ".?")
        if token.text == ".?":
            at, field = _word_after(tokens, at)
            yield f'.{FIELD}("{field}")'
        elif token.text == "[?":
            end = _end(tokens, at)
            yield f".{ENTRY}("
            yield from _written(tokens[at + 1 : end])
            yield ")"
            at = end
        elif after_dot and token.text in METHODS and _is_open(tokens, at + 1):
            yield METHODS[token.text]
        elif named in NAMESPACED and not after_dot:
            yield NAMESPACED[named]
            at += 2
        elif named == "cel.bind" and not after_dot and _is_open(tokens, at + 3):
            end = _end(tokens, at + 3)
            yield from _bound(tokens[at + 4 : end])
            at = end
        else:
            yield token.text
        at += 1


def _bound(inside: list[_Token]) -> Iterator[str]:
    """``cel.bind(name, value, body)`` as a list of one that is walked over."""
    parts: list[list[_Token]] = [[]]
    depth = 0
    for token in inside:
        depth += token.kind == "sign" and token.text[0] in _OPENING
        depth -= token.kind == "sign" and token.text in _CLOSING
        if token.text == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    if len(parts) != 3:
        raise Unreadable("cel.bind takes a name, a value and what is made of it")
    name, value, body = ("".join(_written(part)) for part in parts)
    yield f"([{value}].map({name.strip()}, {body})[0])"


def _word_after(tokens: list[_Token], at: int) -> tuple[int, str]:
    for index in range(at + 1, len(tokens)):
        if tokens[index].kind == "word":
            return index, tokens[index].text
        if tokens[index].kind != "space":
            break
    raise Unreadable("a name is missing behind .?")


def _is_open(tokens: list[_Token], at: int) -> bool:
    return at < len(tokens) and tokens[at].text == "("


def _end(tokens: list[_Token], at: int) -> int:
    """Where the bracket closes that is open at a token."""
    depth = 0
    for index in range(at, len(tokens)):
        token = tokens[index]
        if token.kind == "sign":
            depth += token.text[0] in _OPENING
            depth -= token.text in _CLOSING
            if depth == 0:
                return index
    raise Unreadable("a bracket is not closed")
