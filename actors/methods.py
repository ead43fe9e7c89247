"""The methods of our actors, one for each verb of their interfaces, and how they are asked.

Ray keeps the class of a detached actor as it was when the actor was made, with each of its methods,
private ones too, by its name in this code. An actor that outlives an upgrade, or a rollback, starts
again only where all those names are there. So the names stay as they are (a test holds them), and
what they take: a model crosses as JSON in a text, everything else as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from actors.node_api import ActorApi
from fleet.control.coordinator_api import CoordinatorApi
from fleet.core import errors
from fleet.core.model import Token
from fleet.rpc import wire
from fleet.rpc.calls import BUDGET, Verb, answer, verbs

NODE = (
    "view", "head", "scrub", "cancel", "prepare", "unprepare", "abandon", "quarantine_add",
    "quarantine_clear", "adopt", "retire", "partition", "follow_epoch", "sweep",
)  # fmt: skip
"""Verbs a node's actor has; what kubelet's side tells comes in at the door."""
PLAIN = frozenset({"head", "cancel", "retire", "follow_epoch"})
"""Verbs of a node that are answered as they are; all others as JSON in a text."""
LEASES = {"acquire": "acquire", "renew_all": "renew", "release_all": "release"}
"""Verbs about leases with the methods of the coordinator's actor, which answer in a list."""
RUNS = {
    "view": "view", "leases": "leases", "open": "open", "resume": "resume", "append": "append",
    "close": "close_run", "run": "run", "runs": "runs", "unfinished": "unfinished",
    "sign_heads": "sign_heads",
}  # fmt: skip
SILENT = frozenset({"append", "close", "sign_heads"})
TEXTS = frozenset({"order", "orders", "requests", "renewals", "releases", "record", "results"})
"""Arguments that cross as JSON in a text."""

Method = Callable[..., Any]


def node_method(name: str, serving: Callable[..., Any]) -> Method:
    """A node's method for a verb. `serving(actor, node, name)`: a context with its service."""
    verb = verbs(ActorApi)[name]

    def method(self: Any, node: str, *arguments: Any) -> Any:
        with serving(self, node, name) as service:
            found = answer(verb, service, dict(_given(verb, arguments)))
            return found if name in PLAIN else json.dumps(found)

    return _named(method, "actors.node_actor.NodeActor", name)


def coordinator_method(name: str, answered: Callable[..., Any]) -> Method:
    """The coordinator's method for a verb. `answered(actor, verb, given)`: the answer, JSON."""
    verb = verbs(CoordinatorApi)[name]

    def method(self: Any, *arguments: Any) -> Any:
        found = answered(self, verb, dict(_given(verb, arguments)))
        if name in SILENT:
            return None
        if name not in LEASES:
            return json.dumps(found)
        told = zip(found, verb.load(found), strict=True)
        return [
            one if isinstance(one, bool | errors.FleetError) else json.dumps(text)
            for text, one in told
        ]

    owner = "actors.coordinator_actor.CoordinatorActor"
    return _named(method, owner, {**LEASES, **RUNS}[name])


def arguments(verb: Verb, given: Mapping[str, Any]) -> Iterator[Any]:
    """Arguments of a verb, JSON values, as the method for it takes them."""
    for name, value in given.items():
        if verb.name == "unprepare" and name == "order":
            yield value["uid"]
        elif name != BUDGET:
            yield json.dumps(value) if name in TEXTS else value


def node_answer(verb: Verb, found: Any) -> Any:
    """What a node's method answered, as a JSON value; an error stays one."""
    try:
        return json.loads(found) if isinstance(found, str) and verb.name not in PLAIN else found
    except ValueError as error:
        return errors.InputInvalid(f"{verb.name} was answered with no JSON: {error}")


def coordinator_answer(ask: Callable[..., Any], verb: Verb, given: Mapping[str, Any]) -> Any:
    """The coordinator's answer to a verb as a JSON value; `ask` calls a method of its actor."""
    if verb.name == "newest":
        return verb.dump(Token.parse(json.loads(ask("view"))["newest"]))
    found = ask({**LEASES, **RUNS}[verb.name], *arguments(verb, given))
    if verb.name not in LEASES:
        return None if found is None else json.loads(found)
    return [_told(one) for one in found]


def _told(one: object) -> Any:
    if isinstance(one, errors.FleetError):
        return wire.told(one)
    return json.loads(one) if isinstance(one, str) else one


def _given(verb: Verb, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for name, value in zip(verb.parameters, arguments, strict=False):
        if verb.name == "unprepare" and name == "order":
            yield name, {"uid": value}
        else:
            yield name, _read(verb, name, value) if name in TEXTS else value


def _read(verb: Verb, name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise errors.InputInvalid(f"{name} of {verb.name} is no JSON: {error}") from error


def _named(method: Method, owner: str, name: str) -> Method:
    """Found again by Ray, which keeps a method by its name."""
    module, _, _ = owner.rpartition(".")
    method.__module__, method.__name__ = module, name
    method.__qualname__ = f"{owner.removeprefix(module + '.')}.{name}"
    return method
