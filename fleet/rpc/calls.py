"""An interface written once: what crosses between two processes follows from its annotations.

A class derived from `Interface` declares verbs. Called on the caller's side, a verb hands its name
and its arguments, as JSON values, to `ask`; on the other side `served` reads them again, calls the
method of the same name, and answers with a JSON value. Whoever does the work derives from the same
class and overrides the verbs, so that mypy holds both sides to one signature.

A list crosses as an array and is read as a tuple. A field that has its default stays away: a side
of an earlier version refuses a field that it does not know, and then only where it says something.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Concatenate,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from fleet.core import errors
from fleet.rpc import wire

BUDGET = "budget_s"
"""Parameter that says how long the other side may work, s: the caller waits a little longer."""
MARGIN_S = 3.0

_VERB = "verb"
"""Attribute of a declared method that has its `Verb`."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
_VERBS: dict[Any, Mapping[str, Verb]] = {}
Call = Callable[[Mapping[str, Any]], Any]
"""Arguments to an answer, both JSON values. Raises a `FleetError`."""
_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")
_Self = TypeVar("_Self", bound="Interface")
_Method = Callable[Concatenate[_Self, _Parameters], _Answer]


def _refusal(found: Any) -> errors.FleetError:
    if isinstance(found, errors.FleetError):
        return found
    if isinstance(found, Mapping) and {"kind", "detail"} <= found.keys():
        return wire.heard(found)
    raise ValueError("it tells no error")


Refusal = Annotated[errors.FleetError, PlainValidator(_refusal), PlainSerializer(wire.told)]
"""An error that stands in the place of an answer."""


class Interface:
    """One side of a conversation."""

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:
        """The other side's answer, a JSON value, to `given`. Raises its errors.

        `timeout_s` is None for a call that takes no longer than any other.
        """
        raise NotImplementedError(f"{type(self).__name__} does not answer {verb.name}")


class Verb:
    """One call: how its arguments and its answer cross. `looks`: it changes nothing."""

    def __init__(
        self, declared: Callable[..., Any], *, timeout_s: float | None = None, looks: bool = False
    ) -> None:
        self.name = declared.__name__
        self.timeout_s = timeout_s
        self.looks = looks
        self._declared = declared
        self._signature = inspect.signature(declared)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of its arguments, in order."""
        return tuple(self._signature.parameters)[1:]

    def pack(self, *arguments: object, **named: object) -> dict[str, Any]:
        """The arguments as JSON values. Raises `InputInvalid`, and TypeError as the call would."""
        bound = self._signature.bind(None, *arguments, **named)
        bound.apply_defaults()
        return {
            name: self._crossing[name].dump(self._argument(name, bound.arguments[name]))
            for name in self._crossing
            if name != "return"
        }

    def unpack(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments out of JSON values; what is unknown is left. Raises `InputInvalid`."""
        missing = object()
        found = {}
        for name, parameter in list(self._signature.parameters.items())[1:]:
            value = given.get(name, missing)
            if value is not missing:
                found[name] = self._argument(name, value)
            elif parameter.default is inspect.Parameter.empty:
                raise errors.InputInvalid(f"{self.name} was asked for without {name}")
        return found

    def dump(self, answer: object) -> Any:
        """The answer as a JSON value."""
        return self._crossing["return"].dump(answer, whole=True)

    def load(self, found: object) -> Any:
        """The answer out of a JSON value. Raises `InputInvalid` for one of another version."""
        try:
            return self._crossing["return"].read(found)
        except ValidationError as error:
            raise errors.InputInvalid(
                f"{self.name} was answered in a way this process does not know: {error}",
                remedy="run all services and plugins in one version; an update ends this",
            ) from error

    def wait_s(self, given: Mapping[str, Any]) -> float | None:
        """How long the caller waits for the answer to `given`, s; None: as for any call."""
        return given[BUDGET] + MARGIN_S if BUDGET in given else self.timeout_s

    def _argument(self, name: str, value: object) -> Any:
        try:
            return self._crossing[name].read(value)
        except ValidationError as error:
            said = "; ".join(
                f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in error.errors()
            )
            raise errors.InputInvalid(
                f"{name} of {self.name} is {str(value)[:200]!r}: {said}"
            ) from error

    @functools.cached_property
    def _crossing(self) -> Mapping[str, _Crossing]:
        # Built when first used: most processes speak few verbs, and this is most of a start.
        hints = get_type_hints(self._declared, include_extras=True)
        return {name: _Crossing(hint) for name, hint in hints.items()}


def _plain_types(hint: Any) -> Iterator[Any]:
    """What a type is made of, without what is said about it."""
    if get_origin(hint) is Annotated:
        yield from _plain_types(get_args(hint)[0])
    elif parts := [one for one in get_args(hint) if one is not ...]:
        for one in parts:
            yield from _plain_types(one)
    else:
        yield getattr(hint, "__supertype__", hint)


class _Crossing:
    """How values of one type cross."""

    def __init__(self, hint: Any) -> None:
        self._listed = get_origin(hint) is Sequence
        if self._listed:
            hint = tuple.__class_getitem__((*get_args(hint), ...))
        # Texts are no numbers and no truth values; models say for themselves what they take.
        scalar = _SCALARS.issuperset(_plain_types(hint))
        self._adapter: TypeAdapter[Any] = TypeAdapter(
            hint, config=ConfigDict(strict=True) if scalar else None
        )

    def read(self, value: Any) -> Any:
        if self._listed and isinstance(value, list):
            value = tuple(value)
        return self._adapter.validate_python(value)

    def dump(self, value: Any, *, whole: bool = False) -> Any:
        if self._listed:
            value = tuple(value)
        return self._adapter.dump_python(value, mode="json", exclude_defaults=not whole)


def verb(
    *, timeout_s: float | None = None, looks: bool = False
) -> Callable[[_Method[_Self, _Parameters, _Answer]], _Method[_Self, _Parameters, _Answer]]:
    """Declare a method of an `Interface`; its body stays empty."""

    def declare(
        declared: _Method[_Self, _Parameters, _Answer],
    ) -> _Method[_Self, _Parameters, _Answer]:
        made = Verb(declared, timeout_s=timeout_s, looks=looks)

        @functools.wraps(declared)
        def call(self: _Self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Answer:
            given = made.pack(*args, **kwargs)
            found: _Answer = made.load(self.ask(made, given, made.wait_s(given)))
            return found

        setattr(call, _VERB, made)
        return cast("_Method[_Self, _Parameters, _Answer]", call)

    return declare


def verbs(interface: Any) -> Mapping[str, Verb]:
    """The verbs of an `Interface` by name."""
    found = _VERBS.get(interface)
    if found is None:
        members = {name: getattr(one, _VERB, None) for name, one in inspect.getmembers(interface)}
        found = {name: one for name, one in members.items() if isinstance(one, Verb)}
        _VERBS[interface] = found
    return found


def answer(one: Verb, by: Interface, given: Mapping[str, Any]) -> Any:
    """What `by` answers to `given`, both JSON values. Raises `InputInvalid`, and its errors."""
    return one.dump(getattr(by, one.name)(**one.unpack(given)))


def served(interface: type[Interface], by: Interface) -> dict[str, Call]:
    """What answers each verb of an interface, by name."""
    return {name: functools.partial(answer, one, by) for name, one in verbs(interface).items()}
