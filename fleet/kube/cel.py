"""CEL: the conditions of our own rules, and device selectors as the scheduler evaluates them. Pure.

The one home of the CEL library. A selector sees what Kubernetes shows it: ``device.driver``,
``device.attributes["<domain>"].<id>``, ``device.capacity["<domain>"].<id>`` and
``device.allowMultipleAllocations``; quantities and semantic versions are values with methods.

An attribute that is missing is an error that ends the choice, not "no match"; a domain nobody
publishes is an empty map. What the server's CEL can say and the library cannot is rewritten
(`fleet.kube.cel_dialect`) or is a function here. A selector that says anything else, or speaks of
an attribute of a kind that is not known, is refused by name: nobody is given a device by guess.
"""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import cel
from cel import stdlib

from fleet.core import errors
from fleet.kube import cel_dialect
from fleet.kube.base import Object
from fleet.kube.slice_equality import quantity

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
_OPTIONAL, _ADDRESS, _NETWORK = "optional", "ip", "cidr"
_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the library raises, by kind of mistake."""
_TEXT_FUNCTIONS = ("lowerAscii", "upperAscii", "trim", "lastIndexOf", "charAt", "substring")
"""Of the extensions what cannot make a text grow."""
GROWN_MAX = 64 * 1024
"""Length of what a function makes: nesting those that make texts grow needs no macro."""
LISTED_MAX = 64
"""Entries of a list that a function makes of a text: a macro may run over it."""
WORK_MAX = 2_000_000
"""Steps that functions of ours may take for one device and selector; some 0.1 s."""
_KINDS = ("int", "bool", "string")
_LISTS = ("ints", "bools", "strings")

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
        _check_length(expression, where)
        try:
            spoken = cel_dialect.rewritten(expression)
            # Of what is run, not of what was written: names bound are macros, comments are gone.
            _check_cost(spoken)
            program = cel.compile(spoken)
        except _FAILURES as error:
            raise _invalid(where, expression, str(error)) from error
        domains = frozenset(one or other for one, other in _INDEX.findall(expression))
        return cls(expression, where, program, domains)

    def matches(self, device: Object, *, driver: str) -> bool:
        """Whether a slice's device is selected. Raises `InputInvalid` where it cannot be told."""
        name = str(device.get("name", ""))
        _WORK.left = WORK_MAX
        try:
            shown = self._shown(device, driver)
            found = self._program.execute(cel.Context({"device": shown}, dict(_FUNCTIONS)))
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
            here = attributes.setdefault(domain, {})
            try:
                here[identifier] = _attribute(value)
            except _UnknownKind:
                # Left out, it would read as "there is none": only who does not ask may not mind.
                if _WALKS.search(self.expression) or identifier in self.expression:
                    raise
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


def _check_length(expression: str, where: str) -> None:
    length = len(expression.encode())
    if length > LENGTH_MAX:
        detail = f"it is {length} bytes long, at most {LENGTH_MAX} are allowed"
        raise _invalid(where, expression[:80] + "...", detail)


def _check_cost(spoken: str) -> None:
    """Bound the work by the text: so many nested macros over so much text, and no more."""
    length = len(spoken.encode())
    depth = len(_MACRO.findall(spoken)) + 1
    if (length / 2 / depth + ENTRIES_MAX) ** depth > STEPS_MAX:
        raise ValueError(f"{depth - 1} macros in {length} bytes are too costly")


def _invalid(where: str, expression: str, detail: str) -> errors.InputInvalid:
    return errors.InputInvalid(
        f"{where}: selector {expression!r}: {detail}",
        remedy='correct the selector, or let it ask `"<id>" in device.attributes[...]` first',
    )


class _UnknownKind(ValueError):
    """An attribute of a kind that did not exist when this was written."""


_WALKS = re.compile(r"\b(attributes|capacity)\s*(?!\s*\[)|" + _MACRO.pattern)
"""Expressions that may look at attributes without naming them."""


def _attribute(value: Mapping[str, Any]) -> Any:
    """The value of an attribute: int, bool, string, version, or a list of one of these."""
    if "version" in value:
        return _semver(str(value["version"]))
    if "versions" in value:
        return [_semver(str(one)) for one in value["versions"]]
    for kind in (*_KINDS, *_LISTS):
        if kind in value:
            return value[kind]
    raise _UnknownKind(f"an attribute is of a kind that is not known here: {', '.join(value)}")


# --- quantities and versions -----------------------------------------------------------------
# Values of these kinds are maps with one entry, so that the library compares them by content.


def _amount(text: object) -> Value:
    found = quantity(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    return _of(found)


def _of(number: Fraction) -> Value:
    return {_QUANTITY: f"{number.numerator}/{number.denominator}"}


def _semver(text: str, *lenient: bool) -> Value:
    given = _canonical(text) if lenient == (True,) else text
    if not _SEMVER.fullmatch(given):
        raise ValueError(f"{text!r} is no semantic version")
    return {_VERSION: given.partition("+")[0]}


def _canonical(text: str) -> str:
    """A version as semver wants it: no v, three numbers, no zeros before them."""
    core, mark, rest = re.fullmatch(r"v?([^-+]*)([-+]?)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr] # it matches everything
    parts = [part.lstrip("0") or "0" if part else "" for part in core.split(".")]
    return ".".join([*parts, *["0"] * (3 - len(parts))]) + mark + rest


def _is_semver(text: str, *lenient: bool) -> bool:
    return _SEMVER.fullmatch(_canonical(text) if lenient == (True,) else text) is not None


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


# --- texts and lists -------------------------------------------------------------------------


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, refusing what would grow too large."""

    def call(*given: Any) -> Any:
        found = function(*given)
        size = sum(len(str(one)) for one in found) if isinstance(found, list) else len(found)
        if size > GROWN_MAX:
            raise ValueError(f"a text longer than {GROWN_MAX} characters is made")
        if isinstance(found, list) and len(found) > LISTED_MAX:
            raise ValueError(f"a list of more than {LISTED_MAX} entries is made")
        return found

    return call


class _Work(threading.local):
    """What is left to an evaluation. Macros call a function any number of times."""

    left = WORK_MAX


_WORK = _Work()


def _spend(steps: int) -> None:
    _WORK.left -= steps
    if _WORK.left < 0:
        raise ValueError("it takes too much work")


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    count = text.count(old) if limit < 0 else limit
    if len(text) + count * len(new) > GROWN_MAX:
        raise ValueError(f"a text longer than {GROWN_MAX} characters is made")
    return text.replace(old, new, limit)


def _split(text: str, by: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if not by:
        found = list(text)
        return found if limit < 0 else [*found[: limit - 1], "".join(found[limit - 1 :])]
    return text.split(by, limit - 1 if limit > 0 else -1)


def _joined(found: list[str], by: str = "") -> str:
    return by.join(found)


def _index_of(found: Any, wanted: Any, start: int = 0) -> int:
    if isinstance(found, str):
        return found.find(wanted, start)
    return next((index for index, one in enumerate(found) if one == wanted), -1)


def _find(text: str, pattern: str) -> str:
    """The first place that matches, "" where none does. By RE2's rules alone: no lookaround."""
    found = _find_all(text, pattern, 1)
    return found[0] if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    # Python's engine may take for ever where RE2 does not: only simple patterns are taken.
    repeated = pattern.count("*") + pattern.count("+")
    if not _SIMPLE.fullmatch(pattern) or repeated > 2 or len(text) > _FOUND_IN_MAX:
        raise ValueError(f"find() with pattern {pattern!r} is not spoken here")
    _spend((len(text) + 1) ** (repeated + 1) << pattern.count("?"))
    found = [match[0] for match in re.finditer(pattern, text, re.ASCII)]
    return found if limit < 0 else found[:limit]


_SIMPLE = re.compile(
    r"[\^]?(?:(?:[A-Za-z0-9 _\-/:.]|\\[.dws\-/]|\[\^?[A-Za-z0-9 _\-/:.]+\])[+*?]?){1,12}[$]?"
)
"""Patterns of plain letters, classes and repetitions, without groups: their time is bounded by a
power of the text, which is short."""
_FOUND_IN_MAX = 128


def _includes(found: Any, wanted: Any) -> bool:
    """Of an attribute: whether it is this, or its list has this."""
    return wanted in found if isinstance(found, list) else bool(found == wanted)


def _contains_all(found: list[Any], wanted: list[Any]) -> bool:
    _spend(len(found) * len(wanted))
    return all(one in found for one in wanted)


def _meets(one: list[Any], other: list[Any]) -> bool:
    _spend(len(one) * len(other))
    return any(each in other for each in one)


# --- what may be missing ---------------------------------------------------------------------


def _optional(*found: Any) -> Value:
    return {_OPTIONAL: list(found)}


def _content(value: Any) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get(_OPTIONAL), list):
        raise TypeError("expected was an optional value")
    kept: list[Any] = value[_OPTIONAL]
    return kept


def _entry(of: Any, key: Any) -> Value:
    """``of.?key`` and ``of[?key]``, where `of` may be such a value itself."""
    if isinstance(of, dict) and _OPTIONAL in of:
        kept = _content(of)
        return _entry(kept[0], key) if kept else _optional()
    if isinstance(of, list):
        return _optional(of[key]) if 0 <= key < len(of) else _optional()
    if not isinstance(of, dict) or _QUANTITY in of or _VERSION in of:
        raise TypeError("a value without fields was asked for one")
    return _optional(of[key]) if key in of else _optional()


def _value(of: Any) -> Any:
    kept = _content(of)
    if not kept:
        raise LookupError("an optional value that is not there")
    return kept[0]


def _or(of: Any, other: Any) -> Any:
    return of if _content(of) else other


def _or_value(of: Any, other: Any) -> Any:
    kept = _content(of)
    return kept[0] if kept else other


# --- addresses -------------------------------------------------------------------------------


def _ip(text: str) -> Value:
    found = ipaddress.ip_address(text)
    mapped = getattr(found, "ipv4_mapped", None)
    if "%" in text or mapped is not None:
        raise ValueError(f"{text!r} is no address that is taken")
    return {_ADDRESS: str(found)}


def _cidr(text: str) -> Value:
    address, slash, length = text.partition("/")
    if not slash or not length.isdecimal():
        raise ValueError(f"{text!r} is no network")
    return {_NETWORK: str(ipaddress.ip_interface(f"{_ip(address)[_ADDRESS]}/{length}"))}


def _network(value: Any) -> Any:
    if not isinstance(value, dict) or _NETWORK not in value:
        raise TypeError("expected was a network")
    return ipaddress.ip_interface(value[_NETWORK]).network


def _address(value: Any) -> Any:
    given = value if isinstance(value, dict) else _ip(value)
    if _ADDRESS not in given:
        raise TypeError("expected was an address")
    return ipaddress.ip_address(given[_ADDRESS])


def _contains_network(value: Any, other: Any) -> bool:
    outer, inner = _network(value), _network(other if isinstance(other, dict) else _cidr(other))
    return bool(outer.version == inner.version and inner.subnet_of(outer))


def _holds(read: Callable[[str], Any]) -> Callable[[Any], bool]:
    """Whether a text can be read so."""

    def is_one(text: Any) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return is_one


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _amount,
    "isQuantity": lambda text: quantity(text) is not None,
    "semver": _semver,
    "isSemver": _is_semver,
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
    "indexOf": _index_of,
    "split": _bounded(_split),
    "replace": _replace,
    "join": _bounded(_joined),
    "find": _find,
    "findAll": _bounded(_find_all),
    "includes": _includes,
    cel_dialect.NAMESPACED["sets.contains"]: _contains_all,
    cel_dialect.NAMESPACED["sets.equivalent"]: lambda one, other: (
        _contains_all(one, other) and _contains_all(other, one)
    ),
    cel_dialect.NAMESPACED["sets.intersects"]: _meets,
    cel_dialect.FIELD: _entry,
    cel_dialect.ENTRY: _entry,
    cel_dialect.NAMESPACED["optional.of"]: _optional,
    cel_dialect.NAMESPACED["optional.none"]: _optional,
    cel_dialect.NAMESPACED["optional.ofNonZeroValue"]: lambda of: _optional(*([of] if of else [])),
    cel_dialect.METHODS["hasValue"]: lambda of: bool(_content(of)),
    cel_dialect.METHODS["value"]: _value,
    cel_dialect.METHODS["or"]: _or,
    cel_dialect.METHODS["orValue"]: _or_value,
    "ip": _ip,
    "isIP": _holds(_ip),
    cel_dialect.NAMESPACED["ip.isCanonical"]: lambda text: _ip(text)[_ADDRESS] == text,
    "family": lambda of: _address(of).version,
    "cidr": _cidr,
    "isCIDR": _holds(_cidr),
    "containsIP": lambda of, one: _address(one) in _network(of),
    "containsCIDR": _contains_network,
    "prefixLength": lambda of: _network(of).prefixlen,
}
_CONDITIONS: Mapping[str, Callable[..., Any]] = {
    "dyn": lambda value: value,  # it concerns the type check of servers alone
    "upperAscii": stdlib.STDLIB_FUNCTIONS["upperAscii"],
}
