"""What a rule is: a sentence, a function over the object, and the same in CEL. Pure.

A rule exists once. Its function gives findings with their path, for `fleet lint` and the webhook;
its CEL goes into the generated policies. Rules for pods are written in CEL alone
(`fleet.admission.elements`); those for claims, which the webhook judges under load, have both, held
to each other by one corpus, `tests/corpus`. A rule without CEL says why: what the API server drops
or fills in before admission cannot be asked there, and advice refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fleet.admission.ground import Ground, told
from fleet.kube.shapes import Path, written

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Where a rule is broken, and how."""

    path: Path
    wrong: str
    instead: str = ""
    """What to write instead, where it is not the same for all; "": as the rule says."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule, as people read it."""

    rule: str
    path: Path
    wrong: str
    remedy: str
    refuses: bool = True
    """Whether anything is refused by it; False: it is advice."""

    @property
    def place(self) -> str:
        """The path as Kubernetes writes it, as in ``spec.containers[0].image``."""
        return written(self.path)

    def __str__(self) -> str:
        where = f"{self.place}: " if self.path else ""
        return f"{self.rule} {where}{self.wrong} — {self.remedy}"


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule in CEL, over the variables of its subject (`fleet.admission.policies`)."""

    holds: str
    """True: the object keeps the rule."""
    culprit: str = ""
    """Text of what breaks it, for the message; evaluated only where `holds` is false."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[V]):
    """One row of the table."""

    id: str
    """Requirement or case, and a word: ``A5-privileged``."""
    says: str
    """What is wrong where it is broken, in one clause."""
    remedy: str
    """What to write instead."""
    judge: Callable[[V, Ground], Iterable[Flaw]]
    cel: Cel | None = None
    why_lint_only: str = ""
    """Why admission has no part in it; "" where it has."""
    is_advice: bool = False
    """Whether nothing is refused by it: `fleet lint` says it, and succeeds."""
    spares_requesters: bool = False
    """Whether the ground's `requesters` may do it."""

    @property
    def requirement(self) -> str:
        """The id of the requirement or case it is for."""
        return self.id.partition("-")[0]

    def findings(self, view: V, ground: Ground, requester: str | None = None) -> Iterable[Finding]:
        """Each place in `view` that breaks the rule; `requester`: who asks, None: any tenant."""
        if self.spares_requesters and requester in ground.requesters:
            return
        for flaw in self.judge(view, ground):
            wrong = told(flaw.wrong, ground)
            remedy = told(flaw.instead or self.remedy, ground)
            yield Finding(self.id, flaw.path, wrong, remedy, not self.is_advice)
