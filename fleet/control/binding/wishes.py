"""What a claim asks for: its requests, alternatives, constraints and configuration. Pure.

The claim and its classes are raw JSON. What only the scheduler can serve (adminAccess, shared
capacity, distinctAttribute) is refused with its name and place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.core import errors
from fleet.kube.base import Object, name_of
from fleet.kube.cel import Selector

RESULTS_MAX = 32
"""Devices an allocation may hold."""
CONFIG_MAX = 64
"""Configurations an allocation may hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """One request, or one alternative of it."""

    name: str
    """As the allocation names it: ``request`` or ``request/alternative``."""
    selectors: tuple[Selector, ...]
    """Of the class, then of the request."""
    every: bool
    """All devices selected (allocationMode All) instead of `count`."""
    count: int
    tolerations: tuple[Object, ...]
    config: tuple[Object, ...]
    """Configuration of the class."""

    @property
    def request(self) -> str:
        """Name of the request alone."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Constraint:
    """All devices of `requests` (empty: of all) have the same value of `attribute`."""

    requests: frozenset[str]
    attribute: str

    def covers(self, wish: Wish) -> bool:
        """Whether the constraint is about this request."""
        return not self.requests or not self.requests.isdisjoint({wish.name, wish.request})


@dataclass(frozen=True, slots=True)
class Wishes:
    """The whole claim: for each request its alternatives, best first."""

    requests: tuple[tuple[Wish, ...], ...]
    constraints: tuple[Constraint, ...]
    given: tuple[Object, ...]
    """Configuration of the claim."""

    def config(self, chosen: Iterable[str]) -> tuple[Object, ...]:
        """What is copied into the allocation: of the classes, then of the claim (it overrides)."""
        names = list(dict.fromkeys(chosen))
        wishes = {wish.name: wish for request in self.requests for wish in request}
        found: list[Object] = [
            {"source": "FromClass", "requests": [name], **entry}
            for name in names
            for entry in wishes[name].config
        ]
        known = {*names, *(wishes[name].request for name in names)}
        for entry in self.given:
            asked = entry.get("requests") or []
            if not asked or not known.isdisjoint(asked):
                found.append({"source": "FromClaim", **entry})
        if len(found) > CONFIG_MAX:
            raise errors.InputInvalid(
                f"the allocation would hold {len(found)} configurations, at most {CONFIG_MAX} may",
                remedy="merge configurations of the claim or of its device classes",
            )
        return tuple(found)


def read(claim: Object, classes: Mapping[str, Object]) -> Wishes:
    """The claim's wishes. Raises `InputInvalid` for what cannot be served or understood."""
    place = f"claim {name_of(claim)}"
    devices = _mapping(_mapping(claim.get("spec"), place).get("devices") or {}, place)
    requests = tuple(
        tuple(_alternatives(_mapping(request, place), classes, place))
        for request in _list(devices.get("requests"), place)
    )
    if not requests:
        raise errors.InputInvalid(f"{place} asks for no device", remedy="name a claim that does")
    least = sum(
        min((1 if wish.every else wish.count) for wish in request) if request else 0
        for request in requests
    )
    if least > RESULTS_MAX:
        raise errors.InputInvalid(
            f"{place} asks for {least} devices, an allocation holds at most {RESULTS_MAX}",
            remedy="split it into several claims",
        )
    constraints = tuple(
        _constraint(_mapping(found, place), place)
        for found in _list(devices.get("constraints"), place)
    )
    given = tuple(_mapping(found, place) for found in _list(devices.get("config"), place))
    return Wishes(requests, constraints, given)


def _alternatives(request: Object, classes: Mapping[str, Object], claim: str) -> Iterator[Wish]:
    name = str(request.get("name", ""))
    if request.get("exactly") is not None:
        yield _wish(name, _mapping(request["exactly"], claim), classes, claim)
        return
    subrequests = _list(request.get("firstAvailable"), claim)
    if not subrequests:
        raise _unsupported(f"{claim}, request {name}", "neither `exactly` nor `firstAvailable`")
    for found in subrequests:
        alternative = _mapping(found, claim)
        yield _wish(f"{name}/{alternative.get('name', '')}", alternative, classes, claim)


def _wish(name: str, asked: Object, classes: Mapping[str, Object], claim: str) -> Wish:
    where = f"{claim}, request {name}"
    if asked.get("adminAccess"):
        raise _unsupported(where, "adminAccess")
    if asked.get("capacity"):
        raise _unsupported(where, "a share of a device's capacity")
    mode = asked.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise _unsupported(where, f"allocationMode {mode}")
    count = asked.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise errors.InputInvalid(f"{where}: count {count!r} is no number above zero")
    named = str(asked.get("deviceClassName", ""))
    if named not in classes:
        raise errors.InputInvalid(
            f"{where}: there is no DeviceClass {named!r}",
            remedy="create the class, or correct deviceClassName",
        )
    spec = _mapping(classes[named].get("spec") or {}, f"DeviceClass {named}")
    selectors = [
        *_selectors(spec, f"{where}, DeviceClass {named}"),
        *_selectors(asked, where),
    ]
    return Wish(
        name=name,
        selectors=tuple(selectors),
        every=mode == "All",
        count=count,
        tolerations=tuple(_mapping(one, where) for one in _list(asked.get("tolerations"), where)),
        config=tuple(_mapping(one, where) for one in _list(spec.get("config"), where)),
    )


def _selectors(holder: Object, where: str) -> Iterator[Selector]:
    for found in _list(holder.get("selectors"), where):
        expression = _mapping(_mapping(found, where).get("cel") or {}, where).get("expression")
        if not isinstance(expression, str):
            raise _unsupported(where, "a selector that is no CEL expression")
        yield Selector.parse(expression, where=where)


def _constraint(found: Object, claim: str) -> Constraint:
    attribute = found.get("matchAttribute")
    if found.get("distinctAttribute") is not None:
        raise _unsupported(claim, "constraint distinctAttribute")
    if not isinstance(attribute, str) or not attribute:
        raise _unsupported(claim, "a constraint without matchAttribute")
    requests = _list(found.get("requests"), claim)
    return Constraint(frozenset(str(name) for name in requests), attribute)


def _unsupported(where: str, what: str) -> errors.InputInvalid:
    return errors.InputInvalid(
        f"{where}: {what} is not supported here",
        remedy="let the kube-scheduler allocate this claim, or ask for whole devices",
    )


def _mapping(found: Any, where: str) -> Object:
    if not isinstance(found, dict):
        raise errors.InputInvalid(f"{where}: {found!r} is no object")
    return found


def _list(found: Any, where: str) -> Sequence[Any]:
    if found is None:
        return ()
    if not isinstance(found, list):
        raise errors.InputInvalid(f"{where}: {found!r} is no list")
    return found
