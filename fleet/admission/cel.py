"""CEL: the conditions of our own rules, and device selectors as the scheduler evaluates them. Pure.

The one home of the CEL library. A selector sees what Kubernetes shows it: ``device.driver``,
``device.attributes["<domain>"].<id>``, ``device.capacity["<domain>"].<id>`` and
``device.allowMultipleAllocations``; quantities and semantic versions are values with methods.

An attribute that is missing is an error that ends the choice, not "no match"; a domain nobody
publishes is an empty map. Not there, because the library has them not: optional fields (``.?``) and
``cel.bind``. Such a selector is refused by name, so that nobody is given a device by guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import cel
from cel import stdlib

from fleet import errors
from fleet.kube.base import Object
from fleet.slices.comparing import quantity

LENGTH_MAX = 10 * 1024
"""Length, bytes, of an expression: the API server's own limit."""
STEPS_MAX = 10_000_000
"""Steps an expression may take by its text alone; far above what the API server admits."""
ENTRIES_MAX = 32
"""Attributes and capacities of a device: what a macro can run over besides the text's own lists."""

_MACRO = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(")
_INDEX = re.compile(r"\[\s*(?:\"([^\"\\]*)\"|'([^'\\]*)')\s*\]")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
_QUANTITY, _VERSION = "quantity", "semver"
_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the library raises, by kind of mistake."""
_TEXT_FUNCTIONS = ("lowerAscii", "upperAscii", "trim", "indexOf", "lastIndexOf", "charAt")
"""Of the extensions only what cannot make a text grow: nesting the others needs no macro."""

Value = dict[str, Any]


@dataclass(frozen=True)
class Selector:
    """One expression, ready to be asked about devices."""

    expression: str
    where: str
    """Claim and request it belongs to, or the device class, for errors."""
    _program: cel.Program
    _domains: frozenset[str]

    @classmethod
    def parse(cls, expression: str, *, where: str) -> Selector:
        """Raises `InputInvalid` on an expression that is no CEL, too long or too costly."""
        _check_cost(expression, where)
        try:
            program = cel.compile(expression)
        except _FAILURES as error:
            raise _invalid(where, expression, str(error)) from error
        domains = frozenset(one or other for one, other in _INDEX.findall(expression))
        return cls(expression, where, program, domains)

    def matches(self, device: Object, *, driver: str) -> bool:
        """Whether a slice's device is selected. Raises `InputInvalid` where it cannot be told."""
        name = str(device.get("name", ""))
        context = cel.Context({"device": self._shown(device, driver)}, dict(_FUNCTIONS))
        try:
            found = self._program.execute(context)
        except LookupError as error:
            detail = f"device {name} has no attribute, capacity or entry {error}"
            raise _invalid(self.where, self.expression, detail) from error
        except _FAILURES as error:
            raise _invalid(self.where, self.expression, f"device {name}: {error}") from error
        if not isinstance(found, bool):
            told = f"device {name}: the result is {type(found).__name__}, expected was bool"
            raise _invalid(self.where, self.expression, told)
        return found

    def _shown(self, device: Object, driver: str) -> Value:
        attributes: dict[str, Value] = {domain: {} for domain in self._domains}
        capacity: dict[str, Value] = {domain: {} for domain in self._domains}
        for name, value in (device.get("attributes") or {}).items():
            domain, identifier = qualified(name, driver)
            attributes.setdefault(domain, {})[identifier] = _attribute(value)
        for name, value in (device.get("capacity") or {}).items():
            domain, identifier = qualified(name, driver)
            capacity.setdefault(domain, {})[identifier] = _amount(value.get("value"))
        return {
            "driver": driver,
            "attributes": attributes,
            "capacity": capacity,
            "allowMultipleAllocations": device.get("allowMultipleAllocations") is True,
        }


class NotEvaluable(ValueError):
    """A condition that has no value for an object: a field of it is of another type."""


@cache
def _condition(text: str) -> cel.Program:
    return cel.compile(text)


def value(text: str, context: Mapping[str, Any]) -> Any:
    """What a condition of our own is worth. Raises `NotEvaluable`."""
    try:
        return _condition(text).execute(cel.Context(dict(context), dict(_CONDITIONS)))
    except _FAILURES as error:
        raise NotEvaluable(str(error)) from error


def qualified(name: str, driver: str) -> tuple[str, str]:
    """Domain and identifier of an attribute's name; without a domain it is the driver's."""
    domain, slash, identifier = name.rpartition("/")
    return (domain, identifier) if slash else (driver, name)


def _check_cost(expression: str, where: str) -> None:
    """Bound the work by the text: so many nested macros over so much text, and no more."""
    length = len(expression.encode())
    if length > LENGTH_MAX:
        detail = f"it is {length} bytes long, at most {LENGTH_MAX} are allowed"
        raise _invalid(where, expression[:80] + "...", detail)
    depth = len(_MACRO.findall(expression)) + 1
    if (length / 2 / depth + ENTRIES_MAX) ** depth > STEPS_MAX:
        raise _invalid(where, expression, f"{depth - 1} macros in {length} bytes are too costly")


def _invalid(where: str, expression: str, detail: str) -> errors.InputInvalid:
    return errors.InputInvalid(
        f"{where}: selector {expression!r}: {detail}",
        remedy='correct the selector, or let it ask `"<id>" in device.attributes[...]` first',
    )


def _attribute(value: Mapping[str, Any]) -> Any:
    """The value of an attribute: int, bool, string, or a version with its methods."""
    if "version" in value:
        return _semver(str(value["version"]))
    return next((value[kind] for kind in ("int", "bool", "string") if kind in value), None)


# --- quantities and versions -----------------------------------------------------------------
# Values of these kinds are maps with one entry, so that the library compares them by content.


def _amount(text: object) -> Value:
    found = quantity(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    return _of(found)


def _of(number: Fraction) -> Value:
    return {_QUANTITY: f"{number.numerator}/{number.denominator}"}


def _semver(text: str) -> Value:
    if not _SEMVER.fullmatch(text):
        raise ValueError(f"{text!r} is no semantic version")
    return {_VERSION: text.partition("+")[0]}


def _number(value: Any) -> Fraction:
    if not isinstance(value, dict) or _QUANTITY not in value:
        raise TypeError("expected was a quantity")
    return Fraction(value[_QUANTITY])


def _order(value: Any) -> tuple[Any, ...]:
    """What sorts values of one kind: numbers, or versions by the rules of semver."""
    if isinstance(value, dict) and _VERSION in value:
        found = _SEMVER.fullmatch(value[_VERSION])
        if found is None:
            raise TypeError("expected was a semantic version")
        parts = found[4].split(".") if found[4] else []
        ranks = tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts)
        return (_VERSION, int(found[1]), int(found[2]), int(found[3]), not parts, ranks)
    return (_QUANTITY, _number(value))


def _compare(one: Any, other: Any) -> int:
    mine, theirs = _order(one), _order(other)
    if mine[0] != theirs[0]:
        raise TypeError("a quantity and a version cannot be compared")
    return (mine > theirs) - (mine < theirs)


def _plus(one: Any, other: Any) -> Value:
    return _of(_number(one) + (other if isinstance(other, int) else _number(other)))


def _minus(one: Any, other: Any) -> Value:
    return _of(_number(one) - (other if isinstance(other, int) else _number(other)))


def _whole(value: Any) -> int:
    found = _number(value)
    if found.denominator != 1:
        raise ValueError("the quantity is no integer")
    return found.numerator


def _version_part(index: int) -> Callable[[Any], int]:
    def part(value: Any) -> int:
        order = _order(value)
        if order[0] != _VERSION:
            raise TypeError("expected was a semantic version")
        return int(order[index])

    return part


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _amount,
    "isQuantity": lambda text: quantity(text) is not None,
    "semver": _semver,
    "isSemver": lambda text: _SEMVER.fullmatch(text) is not None,
    "compareTo": _compare,
    "isLessThan": lambda one, other: _compare(one, other) < 0,
    "isGreaterThan": lambda one, other: _compare(one, other) > 0,
    "add": _plus,
    "sub": _minus,
    "sign": lambda value: (_number(value) > 0) - (_number(value) < 0),
    "isInteger": lambda value: _number(value).denominator == 1,
    "asInteger": _whole,
    "asApproximateFloat": lambda value: float(_number(value)),
    "major": _version_part(1),
    "minor": _version_part(2),
    "patch": _version_part(3),
    **{name: stdlib.STDLIB_FUNCTIONS[name] for name in _TEXT_FUNCTIONS},
}
_CONDITIONS: Mapping[str, Callable[..., Any]] = {
    "dyn": lambda value: value,  # it concerns the type check of servers alone
    "upperAscii": stdlib.STDLIB_FUNCTIONS["upperAscii"],
}
