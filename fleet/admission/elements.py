"""Rules over the parts of an object, each written once: as CEL. Pure.

A rule asks about every element of a kind, one by one: each container, each volume, each capability
that is added. In a generated policy the same text stands inside the macros that walk the object;
here the object is walked by code, so that a finding has its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from fleet.admission.ground import Ground
from fleet.admission.rule import Cel, Flaw
from fleet.kube import cel
from fleet.kube.shapes import Object, Path, Workload

_NAME = re.compile(r"\bvariables\.(\w+)")
_UNREADABLE = "cannot be judged: a field of it is not of the type that Kubernetes demands"


@dataclass(frozen=True, slots=True)
class Element:
    """A kind of element: what it is called in CEL, and where the elements are."""

    word: str
    """What people call it; "" where it is the pod itself."""
    name: str
    """The variable it is bound to."""
    walk: Callable[[Workload], Iterator[tuple[Path, Mapping[str, Any]]]]
    """The path of each element, and what is bound while it is asked about: itself and its pod."""
    macro: Callable[[str], str]
    """CEL: whether a condition is true of any."""
    first: Callable[[str], str]
    """CEL: the name of the first of which it is true; "" where there is nothing to name."""


def _pods(view: Workload) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for pod in view.pods:
        yield pod.path, {"p": pod.template}


def _containers(view: Workload) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for pod in view.pods:
        for path, container in pod.containers:
            yield path, {"p": pod.template, "c": container}


def _listed(field: str, name: str) -> Callable[[Workload], Iterator[tuple[Path, Object]]]:
    def walk(view: Workload) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        for pod in view.pods:
            for path, found in pod.listed(field):
                yield path, {"p": pod.template, name: found}

    return walk


def _in_list(field: str, name: str) -> Callable[[str], str]:
    return lambda bad: (
        f"variables.pods.exists(p, has(p.spec.{field}) && p.spec.{field}.exists({name}, {bad}))"
    )


def _first_in_list(field: str, name: str) -> Callable[[str], str]:
    def first(bad: str) -> str:
        return (
            f"variables.pods.filter(p, has(p.spec.{field}) && p.spec.{field}.exists({name}, {bad}))"
            f"[0].spec.{field}.filter({name}, {bad})[0].name"
        )

    return first


POD = Element("", "p", _pods, lambda bad: f"variables.pods.exists(p, {bad})", lambda _: "")
CONTAINER = Element(
    "container",
    "c",
    _containers,
    lambda bad: f"variables.containers.exists(g, g.exists(c, {bad}))",
    lambda bad: (
        f"variables.containers.filter(g, g.exists(c, {bad}))[0].filter(c, {bad})"
        ".map(c, has(c.name) ? c.name : 'without a name')[0]"
    ),
)
VOLUME = Element(
    "volume",
    "v",
    _listed("volumes", "v"),
    _in_list("volumes", "v"),
    _first_in_list("volumes", "v"),
)
CLAIM = Element(
    "claim",
    "q",
    _listed("resourceClaims", "q"),
    _in_list("resourceClaims", "q"),
    _first_in_list("resourceClaims", "q"),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One question about every element of a kind."""

    of: Element
    bad: str
    """CEL: true where the rule is broken. ``k`` is the entry of `inside` that is asked about, and
    ``<k>`` what stands under it where that is a mapping."""
    wrong: str
    """What is wrong with it; ``%s`` is `what`."""
    what: str = ""
    """CEL: a text about it."""
    inside: tuple[tuple[str, ...], ...] = ()
    """Where its entries are, each a list or a mapping; none: the element itself is asked about."""
    at: tuple[str, ...] = ()
    """The field a finding points at."""

    def flaws(self, view: Workload, values: Mapping[str, Any]) -> Iterator[Flaw]:
        """Each element, or entry of one, that is not as it must be."""
        for path, bound in self.of.walk(view):
            for place, names, bad, what in self._asked(bound):
                try:
                    if not cel.value(bad, _context(bad, names, values)):
                        continue
                    told = cel.value(what, _context(what, names, values)) if what else ""
                    wrong = self.wrong.replace("%s", str(told))
                except cel.NotEvaluable:
                    wrong = _UNREADABLE
                where = _there(bound[self.of.name], (*place, *self.at))
                yield Flaw(self._placed(path, where), f"{self._called(bound)}{wrong}")

    def holds(self) -> str:
        """CEL: whether no element is bad."""
        return f"!({self.of.macro(self._any())})"

    def culprit(self) -> str:
        """CEL: the name of the first bad element, with what it is."""
        first = self.of.first(self._any())
        return f"'{self.of.word} ' + {first}" if first else ""

    def _any(self) -> str:
        """CEL: whether the element, or any entry of it, is bad."""
        if not self.inside:
            return self.bad
        found = []
        for fields in self.inside:
            steps = [self.of.name, *fields]
            guards = [f"has({'.'.join(steps[:count])})" for count in range(2, len(steps) + 1)]
            where = ".".join(steps)
            bad = self.bad.replace("<k>", f"{where}[k]")
            found.append(" && ".join([*guards, f"{where}.exists(k, {bad})"]))
        return found[0] if len(found) == 1 else " || ".join(f"({one})" for one in found)

    def _asked(
        self, bound: Mapping[str, Any]
    ) -> Iterator[tuple[Path, Mapping[str, Any], str, str]]:
        if not self.inside:
            yield (), bound, self.bad, self.what
            return
        for fields in self.inside:
            found: Any = bound[self.of.name]
            for field in fields:
                found = found.get(field) if isinstance(found, Mapping) else None
            where = ".".join([self.of.name, *fields]) + "[k]"
            bad, what = self.bad.replace("<k>", where), self.what.replace("<k>", where)
            for step, entry in _entries(found):
                yield (*fields, step), {**bound, "k": entry}, bad, what

    def _placed(self, path: Path, where: Path) -> Path:
        """The path of something in an element; of a pod its spec's is given, not its own."""
        if self.of is not POD:
            return (*path, *where)
        return (*path, *where[1:]) if where[:1] == ("spec",) else (*path[:-1], *where)

    def _called(self, bound: Mapping[str, Any]) -> str:
        if not self.of.word:
            return ""
        name = bound[self.of.name].get("name")
        return f"{self.of.word} {name if isinstance(name, str) and name else 'without a name'} "


class Asked(TypedDict):
    """What a rule is judged by, here and in a policy."""

    judge: Callable[[Workload, Ground], Iterator[Flaw]]
    cel: Cel | None


def asked(*questions: Ask) -> Asked:
    """A rule as these questions, in both forms."""
    return {"judge": _judge(questions), "cel": _cel(questions)}


def only_linted(*questions: Ask) -> Asked:
    """A rule that no policy can ask, or should."""
    return {"judge": _judge(questions), "cel": None}


def _judge(questions: Sequence[Ask]) -> Callable[[Workload, Ground], Iterator[Flaw]]:
    def judge(view: Workload, ground: Ground) -> Iterator[Flaw]:
        values = {**ground.variables, **view.variables}
        for question in questions:
            yield from question.flaws(view, values)

    return judge


def _cel(questions: Sequence[Ask]) -> Cel:
    holds = "\n&& ".join(question.holds() for question in questions)
    return Cel(holds, questions[0].culprit() if len(questions) == 1 else "")


def _entries(found: Any) -> Iterator[tuple[str | int, Any]]:
    """The entries of a list or mapping: of a mapping its keys, as CEL walks it."""
    if isinstance(found, Mapping):
        yield from ((key, key) for key in found)
    elif isinstance(found, Sequence) and not isinstance(found, str | bytes):
        yield from enumerate(found)


def _there(found: Any, path: Path) -> Path:
    """As much of a path as is there."""
    for length, step in enumerate(path):
        try:
            found = found[step]
        except (LookupError, TypeError):
            return path[:length]
    return path


def _context(text: str, names: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Only what a text speaks of: whatever is handed over is copied."""
    wanted = {name: values[name] for name in _NAME.findall(text)}
    spoken = {name: one for name, one in names.items() if re.search(rf"\b{name}\b", text)}
    return {**spoken, "variables": wanted}
