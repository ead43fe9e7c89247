"""Requirements as data: what each asks, which figures of a certificate answer it, what none does.

The rows are those of requirements.toml; docs/compliance.md is written from them. Pure.

Decisions:

1. A figure is a path into a certificate's predicate, so that a reader finds it in the signed text
   itself. Paths that begin with ``ledger.`` are figures of `fleet.evidence.verify.Report`.
2. What a certificate must say to count (`Demand`) is data too. A figure that is not there is a
   demand not met, never one that does not apply.
3. Some requirements no certificate can answer (`Answer.ORGANISATION`). They are listed all the
   same: what is missing is then always the organisation's act.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from fleet.core.errors import InputInvalid

LEDGER = "ledger."
"""How figures of a whole verification begin."""
_STEP = re.compile(r"(?P<name>[A-Za-z0-9_*-]+)(\[(?P<key>[a-z-]*)\])?")
_KEYS = {"scope": "region", "passes": "name", "findings": "check"}
"""What names the elements of each list."""
_MISSING = object()


class Answer(StrEnum):
    """Who can answer a requirement."""

    CERTIFICATE = "certificate"
    ORGANISATION = "organisation"


@dataclass(frozen=True, slots=True)
class Covered:
    """A claim and the figures that carry it."""

    claim: str
    figures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a certificate must say to count as an answer."""

    figure: str
    words: str
    remedy: str
    value: Any = None
    unlike: bool = False
    """The figure must be anything but `value`."""
    same_as: str = ""
    """The figure must equal this other one; "" when `value` is meant."""


@dataclass(frozen=True, slots=True)
class NotCovered:
    """What a requirement may be read to ask and our evidence does not show."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement of somebody's, in our words."""

    id: str
    title: str
    text: str
    source: str
    answered_by: Answer
    offered: bool
    """Whether a device that is clean or in use must rest on a certificate that answers."""
    countersigned: bool
    """Whether a certificate counts only when a valid countersignature covers it."""
    covered: tuple[Covered, ...]
    demands: tuple[Demand, ...]
    not_covered: tuple[NotCovered, ...]
    operator: tuple[str, ...]
    """What the organisation adds itself."""

    def figures(self) -> tuple[str, ...]:
        """All figures that answer it, each once, in order."""
        return tuple(dict.fromkeys(f for one in self.covered for f in one.figures))

    def against(self, predicate: Mapping[str, Any]) -> Iterator[Demand]:
        """Every demand that a certificate with this predicate does not meet. Never raises."""
        for demand in self.demands:
            found = values(predicate, demand.figure)
            wanted = values(predicate, demand.same_as)[:1] if demand.same_as else [demand.value]
            met = bool(found) and bool(wanted)
            if not met or any(_equal(one, wanted[0]) is demand.unlike for one in found):
                yield demand


def _equal(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1."""
    return type(one) is type(other) and bool(one == other)


@cache
def requirements() -> tuple[Requirement, ...]:
    """All requirements, in the table's order."""
    text = (
        files("fleet.evidence.requirements")
        .joinpath("requirements.toml")
        .read_text(encoding="utf-8")
    )
    return tuple(_requirement(row) for row in tomllib.loads(text)["requirement"])


def requirement(wanted: str) -> Requirement:
    """The requirement with this id, in any case. Raises `InputInvalid` naming all ids."""
    for one in requirements():
        if one.id.lower() == wanted.strip().lower():
            return one
    raise InputInvalid(
        f"there is no requirement {wanted!r}",
        remedy=f"name one of {', '.join(one.id for one in requirements())}",
    )


def _requirement(row: Mapping[str, Any]) -> Requirement:
    return Requirement(
        id=row["id"],
        title=row["title"],
        text=row["text"],
        source=row["source"],
        answered_by=Answer(row["answered_by"]),
        offered=row["offered"],
        countersigned=row.get("countersigned", False),
        covered=tuple(Covered(one["claim"], tuple(one["figures"])) for one in row["covered"]),
        demands=tuple(_demand(one) for one in row.get("demand", ())),
        not_covered=tuple(NotCovered(one["what"], one["why"]) for one in row["not_covered"]),
        operator=tuple(one["what"] for one in row.get("operator", ())),
    )


def _demand(row: Mapping[str, Any]) -> Demand:
    (operator,) = {"is", "is_not", "same_as"} & row.keys()
    return Demand(
        figure=row["figure"],
        words=row["words"],
        remedy=row["remedy"],
        value=None if operator == "same_as" else row[operator],
        unlike=operator == "is_not",
        same_as=row["same_as"] if operator == "same_as" else "",
    )


# --- figures --------------------------------------------------------------------------------------


def values(predicate: Mapping[str, Any], figure: str) -> list[Any]:
    """What a certificate says at `figure`; empty where it says nothing there. Never raises.

    ``a.b`` is a field, ``a[].b`` that of every element, ``a[name].b`` of the element so named (by
    its region, pass or check), ``a.*.b`` of every value of an object.
    """
    found: list[Any] = [predicate]
    for step in figure.split("."):
        match = _STEP.fullmatch(step)
        if match is None:
            return []
        found = [value for one in found for value in _step(one, match["name"], match["key"])]
    return found


def _step(value: Any, name: str, key: str | None) -> Iterator[Any]:
    if not isinstance(value, Mapping):
        return
    chosen = list(value.values()) if name == "*" else [value.get(name, _MISSING)]
    for one in chosen:
        if one is _MISSING:
            continue
        if key is None:
            yield one
        elif isinstance(one, Sequence) and not isinstance(one, str):
            label = _KEYS.get(name, "")
            yield from (
                each
                for each in one
                if not key or (isinstance(each, Mapping) and each.get(label) == key)
            )


# --- the page -------------------------------------------------------------------------------------

_HEAD = """# Compliance: which figures answer which requirement

Generated from `fleet/evidence/requirements/requirements.toml`; `fleet report --requirement ID`
looks the figures up in verified evidence, device by device. Requirements are told in our words:
read the source before you rely on it. Figures are paths into the predicate of a certificate (`fleet
evidence show DIGEST --json`, below `statement`), and `ledger.` figures those of `fleet evidence
verify
--json`. Evidence of simulated devices answers nothing.

Who signed is proven by public keys from elsewhere: `--key` for the nodes', `--coordinator-key` for
the coordinator's. Without them evidence is compared with itself, and the report says so. What a
copy leaves out is proven by nobody either: the newest certificate of a unit, or a whole node, that
a countersignature names and that is not there is missing (exit 1). A wipe after the newest
countersignature (`ledger.countersigned_at`) can be taken out unseen.
"""


def reference() -> str:
    """docs/compliance.md."""
    lines = [_HEAD, "| id | requirement | source | answered by |", "|---|---|---|---|"]
    lines += [
        f"| [{one.id}](#{_anchor(one)}) | {one.title} | {one.source} | {one.answered_by} |"
        for one in requirements()
    ]
    for one in requirements():
        lines += ["", *_section(one)]
    return "\n".join(lines) + "\n"


def _anchor(one: Requirement) -> str:
    return re.sub(r"[^a-z0-9-]", "", one.id.lower())


def _section(one: Requirement) -> Iterator[str]:
    yield f"## {one.id}"
    yield ""
    yield f"**{one.title}.** {one.text}"
    yield ""
    yield f"Source: {one.source}."
    yield ""
    yield "| covered | figures |"
    yield "|---|---|"
    for claim in one.covered:
        yield f"| {claim.claim} | {', '.join(f'`{figure}`' for figure in claim.figures)} |"
    yield ""
    if one.answered_by is Answer.ORGANISATION:
        yield "No certificate answers this: `fleet report` shows the figures and says so (exit 1)."
    else:
        kind = "verified, countersigned" if one.countersigned else "verified"
        yield f"A certificate counts as an answer when it is {kind}, of a real device, and says:"
        yield ""
        yield from (f"- {_asked(demand)}" for demand in one.demands)
    yield ""
    yield "| not covered | why |"
    yield "|---|---|"
    for missing in one.not_covered:
        yield f"| {missing.what} | {missing.why} |"
    yield ""
    yield "The organisation adds:"
    yield ""
    yield from (f"- {what}" for what in one.operator)


def _asked(demand: Demand) -> str:
    if demand.same_as:
        return f"`{demand.figure}` is `{demand.same_as}`"
    value = {True: "true", False: "false", "": "empty"}.get(demand.value, str(demand.value))
    shown = value if demand.value == "" else f"`{value}`"
    return f"`{demand.figure}` is {'not ' if demand.unlike else ''}{shown}"
