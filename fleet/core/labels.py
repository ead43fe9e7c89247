"""Label selectors as Kubernetes writes them, judged here instead of at the server. Pure.

Who watches all Nodes anyway and wants to know of each whether it is meant needs no request for it,
and hears of a label that changes as soon as the watch tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.core import errors

SHOWN_MAX = 80
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
_KEY = rf"(?P<key>(?:(?P<domain>{_DOMAIN})/)?{_PART})"
_VALUE = rf"(?:{_PART})?"
_EQUAL = re.compile(rf"{_KEY}\s*(?P<sign>==|=|!=)\s*(?P<value>{_VALUE})")
_SET = re.compile(rf"{_KEY}\s+(?P<sign>in|notin)\s*\((?P<values>[^()]*)\)")
_EXISTS = re.compile(rf"(?P<sign>!?)\s*{_KEY}")
_COMMA = re.compile(r",(?![^(]*\))")
_DOMAIN_MAX = 253

Labels = Mapping[str, str]
Term = Callable[[Labels], bool]


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All terms of one selector; equal where the texts are."""

    text: str
    terms: tuple[Term, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSelector) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def matches(self, labels: Labels) -> bool:
        """Whether an object with these labels is meant."""
        return all(term(labels) for term in self.terms)


def selector(text: str) -> LabelSelector:
    """A selector of at least one term: ``a=b``, ``a!=b``, ``a in (b,c)``, ``a notin (b)``, ``a``,
    ``!a``, separated by commas. Raises `InputInvalid`, naming the term.
    """
    parts = [part.strip() for part in _COMMA.split(text)]
    return LabelSelector(text, tuple(_term(part, text) for part in parts))


def _term(part: str, text: str) -> Term:
    match = _EQUAL.fullmatch(part) or _SET.fullmatch(part) or _EXISTS.fullmatch(part)
    if match is None or len(match["domain"] or "") > _DOMAIN_MAX:
        raise _refused(part, text)
    key, sign = match["key"], match["sign"]
    if sign in ("in", "notin"):
        values = frozenset(value.strip() for value in match["values"].split(","))
        if not all(re.fullmatch(_VALUE, value) for value in values):
            raise _refused(part, text)
        within = sign == "in"
        return lambda labels: (key in labels and labels[key] in values) is within
    if sign in ("=", "==", "!="):
        value, wanted = match["value"], sign != "!="
        return lambda labels: (labels.get(key) == value) is wanted
    return lambda labels: (key in labels) is not bool(sign)


def _refused(part: str, text: str) -> errors.InputInvalid:
    of = f" (in {_shown(text)})" if part != text else ""
    return errors.InputInvalid(
        f"{_shown(part)}{of} is no term of a label selector",
        remedy="write terms like pool=a, pool!=a, pool in (a,b), pool notin (a), pool or !pool,"
        " separated by commas",
    )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "...")
