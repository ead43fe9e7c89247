"""The language of ``--select``: which devices a campaign takes. Pure.

``key=value``, ``key!=value`` and ``key~glob``, separated by commas. All must hold, except that
several ``=`` or ``~`` of the same key are alternatives (``node=a,node=b`` takes both nodes). Keys
are `KEYS` and ``label.<name>``. All mistakes are reported at once, each with its position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from fleet.core import errors
from fleet.core.messages import DeviceView, NodeView

KEYS = ("node", "rack", "pool", "device", "uuid", "product", "state", "profile")
LABEL = "label."

_TERM = re.compile(r"(?P<key>[^=!~]*)(?P<operator>!=|=|~)(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison."""

    key: str
    operator: str
    value: str

    def holds(self, facts: dict[str, str]) -> bool:
        """Whether it holds; a device without the fact has it empty."""
        fact = facts.get(self.key, "")
        if self.operator == "~":
            return fnmatchcase(fact, self.value)
        return (fact == self.value) == (self.operator == "=")


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selection; without terms it takes every device."""

    terms: tuple[Term, ...] = ()

    def matches(self, view: NodeView, device: DeviceView) -> bool:
        """Whether the device of this node is selected."""
        facts = facts_of(view, device)
        alternatives: dict[str, bool] = {}
        for term in self.terms:
            held = term.holds(facts)
            if term.operator == "!=":
                if not held:
                    return False
            else:
                alternatives[term.key] = alternatives.get(term.key, False) or held
        return all(alternatives.values())

    def excludes_node(self, node: str) -> bool:
        """Whether no device of this node can match, whatever it has: known from its name alone."""
        facts = {"node": node}
        ours = [term for term in self.terms if term.key == "node"]
        positive = [term.holds(facts) for term in ours if term.operator != "!="]
        negative = [term.holds(facts) for term in ours if term.operator == "!="]
        return not all(negative) or (bool(positive) and not any(positive))


ALL = Selector()


def facts_of(view: NodeView, device: DeviceView) -> dict[str, str]:
    """What a selection can ask about a device."""
    labels = {f"{LABEL}{name}": value for name, value in view.labels.items()}
    return {
        **labels,
        "node": view.node,
        "rack": view.labels.get("rack", ""),
        "pool": view.labels.get("pool", ""),
        "device": device.name,
        "uuid": device.uuid,
        "product": device.attributes.get("product", ""),
        "state": device.state,
        "profile": device.profile,
    }


def parse(text: str) -> Selector:
    """Read a selection. Raises `InputInvalid`; its field ``problems`` lists every mistake."""
    if not text.strip():
        return ALL
    terms: list[Term] = []
    problems: list[str] = []
    position = 0
    for part in text.split(","):
        found = _parse_term(part)
        if isinstance(found, Term):
            terms.append(found)
        else:
            problems.append(f"at position {position + 1} ({part.strip()!r}): {found}")
        position += len(part) + 1
    if problems:
        raise errors.InputInvalid(
            f"selection {text!r}: " + "; ".join(problems),
            remedy=f"write key=value, key!=value or key~glob with keys {', '.join(KEYS)}"
            f" or {LABEL}<name>, separated by commas",
            problems=problems,
        )
    return Selector(tuple(terms))


def _parse_term(part: str) -> Term | str:
    """The term, or what is wrong with it."""
    if not part.strip():
        return "there is nothing between the commas"
    match = _TERM.fullmatch(part)
    if match is None:
        return "there is no =, != or ~ in it"
    key, value = match["key"].strip(), match["value"].strip()
    if key not in KEYS and not (key.startswith(LABEL) and len(key) > len(LABEL)):
        near = get_close_matches(key, (*KEYS, LABEL + "name"), n=1, cutoff=0.0)[0]
        return f"there is no key {key!r}; the nearest is {near!r}"
    if not value:
        return f"{key} has no value"
    upper = value.upper() if key == "state" else value
    return Term(key, match["operator"], upper)
