"""The state tables as Mermaid diagrams, so that the README shows what the code runs. Pure.

Guards are abbreviated to a word each, and rows that lead between the same two states share one
arrow: a diagram is read for its shape, the table itself for the rest.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeVar

from fleet.core import claim_states, errors, unit_states
from fleet.core.claim_states import ClaimFact
from fleet.core.model import State
from fleet.core.table import Table
from fleet.core.unit_states import Fact

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
F = TypeVar("F", bound=StrEnum)

SHORT: dict[str, str] = {
    Fact.NO_PROCESS: "unused",
    Fact.NO_CONTAINER: "no container",
    Fact.NO_SURVIVOR: "no survivor",
    Fact.WORKER_JOURNALLED: "journalled",
    Fact.WORKER_GONE: "gone",
    Fact.NO_CLAIM_RECORD: "unclaimed",
    Fact.CERTIFICATE_DURABLE: "certified",
    Fact.CERTIFICATE_ACCEPTED: "accepted",
    Fact.LEASE_OF_CLAIM: "leased",
    Fact.SAME_BOOT: "same boot",
    Fact.HOLDERS_REREAD: "re-read",
    Fact.TENANT_GONE: "tenant gone",
    Fact.SPEC_GONE: "spec gone",
    Fact.NO_OPEN_REASON: "no reason",
    Fact.REASONS_LIFTABLE: "liftable",
    Fact.FEW_INTERRUPTIONS: "fewer than 3",
    ClaimFact.PREPARE_JOINED: "joined",
    ClaimFact.IDLE: "idle",
    ClaimFact.SPEC_WRITTEN: "spec",
    ClaimFact.UNITS_IN_USE: "in use",
    ClaimFact.UNITS_RELEASED: "settled",
    ClaimFact.LIVE_CONSUMER: "live pod",
}
"""One short word for every fact; a fact without one fails the test of this module."""

BLOCK = re.compile(r"(<!-- diagram:(?P<name>\w+) -->\n).*?(<!-- /diagram:(?P=name) -->)", re.DOTALL)


def diagram(table: Table[S, E, F], start: S) -> str:
    """A Mermaid `stateDiagram-v2` of the table, with `start` as its first state."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        guards = ", ".join(sorted(SHORT[fact] for fact in row.requires))
        label = f"{row.event} [{guards}]" if guards else str(row.event)
        labels = arrows.setdefault((str(row.state), str(row.to)), [])
        if label not in labels:
            labels.append(label)
    lines = ["stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {one} --> {two}: {'<br/>'.join(text)}" for (one, two), text in arrows.items()]
    return "\n".join(lines) + "\n"


def diagrams() -> dict[str, str]:
    """Both diagrams by the name their marks in the README carry."""
    return {
        unit_states.TABLE.name: diagram(unit_states.TABLE, State.HELD),
        claim_states.TABLE.name: diagram(claim_states.TABLE, claim_states.ClaimState.ABSENT),
    }


def embed(readme: str) -> str:
    """The text with every marked block replaced by its diagram; everything else is kept.

    A block begins with ``<!-- diagram:unit -->`` and ends with ``<!-- /diagram:unit -->``. Raises
    `InputInvalid` when a name is unknown or one of the diagrams has no place.
    """
    known = diagrams()
    found = {match["name"] for match in BLOCK.finditer(readme)}
    if found != set(known):
        raise errors.InputInvalid(
            f"marked blocks {sorted(found)} do not match the diagrams {sorted(known)}",
            remedy="mark one place for each: <!-- diagram:NAME --> ... <!-- /diagram:NAME -->",
        )
    return BLOCK.sub(lambda m: f"{m[1]}```mermaid\n{known[m['name']]}```\n{m[3]}", readme)
