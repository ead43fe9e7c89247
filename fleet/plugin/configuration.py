"""What a class and a claim ask for beyond the node's own policy: opaque parameters, judged. Pure.

    apiVersion: fleetscrub.dev/v1   # of the product, whatever name the driver was given
    kind: SanitizationConfig
    profile: strict                 # wipe under this claim's own token, whatever the node accepts
    coverageFloor: 0.995            # fraction of the memory that must be written and verified
    reset: always                   # always | on-fault | never
    deallocation: WipeOnDeallocate  # or ZeroFillMemoryOnRelease: what happens when the claim ends
    isolationTag: fst1.eyJ...       # the right to have the device (docs/isolation-tags.md)

One that is named replaces the one of an earlier entry, and the claim's entries come after those of
its class. A class is written by whoever runs the cluster and may say anything, but not show a tag
for its claims; the node's own policy still holds. A claim is written by a tenant and may only ask
for more: asking for less is refused aloud, so that nobody believes to have what was not granted.
Whether `deallocation` and `isolationTag` may be left out is the node's and admission's to say; the
other fields are optional.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleet.core import errors
from fleet.core.settings import ResetPolicy, WipePolicy
from fleet.core.settings_parse import Problem

API_VERSION = "fleetscrub.dev/v1"
KIND = "SanitizationConfig"

_RESETS = (ResetPolicy.NEVER, ResetPolicy.ON_FAULT, ResetPolicy.ALWAYS)
"""From lax to strict."""
_SHOWN_MAX = 60
"""Characters of a wrong value that are repeated: the message becomes an event of a pod."""


class Deallocation(StrEnum):
    """What is done with memory when a claim ends (C2). There is no way to keep it."""

    ZERO_FILL = "ZeroFillMemoryOnRelease"
    WIPE = "WipeOnDeallocate"

    def covers(self, least: Deallocation) -> bool:
        """Whether this is as strict as `least`."""
        return DEALLOCATIONS.index(self) >= DEALLOCATIONS.index(least)


DEALLOCATIONS = (Deallocation.ZERO_FILL, Deallocation.WIPE)
"""From lax to strict. The node's own wipe (pattern, verify, zeros, verify, best-effort overwrite of
memory on the chip, certificate) is what both come to; the stricter one demands besides that a
device which asks for a reset gets it whatever the node's policy, and only where that is `never`
there is anything to demand."""
TAG_MAX = 4096
"""Characters of an isolation tag."""

NOTHING_ASKED = WipePolicy(
    coverage_floor=1e-9,
    deadline_base_s=1e9,
    deadline_s_per_gib=1e9,
    expected_bytes_per_s=1e-9,
    slow_factor=1e9,
    reset=ResetPolicy.NEVER,
)
"""A wish that tightens no policy (`WipePolicy.tightened_by`). The defaults would: they are a
policy of their own, stricter here and there than what a node may rightly have."""

_DEALLOCATION_WORDS = (
    '"ZeroFillMemoryOnRelease" or "WipeOnDeallocate": memory is never kept from one claim to the'
    " next"
)
_TAG_WORDS = "the tag that `fleet tag issue` printed for the claim's namespace"
_ALLOWED: Mapping[str, str] = {
    "apiVersion": f'"{API_VERSION}"',
    "kind": f'"{KIND}"',
    "profile": '"strict", or leave it out',
    "coverageFloor": "a number at least 0 and at most 1",
    "reset": 'one of "always", "on-fault", "never"',
    "deallocation": _DEALLOCATION_WORDS,
    "isolationTag": _TAG_WORDS,
}


class Origin(StrEnum):
    """Who wrote an entry, in the words of the API."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the allocation's configuration that is meant for our driver."""

    path: str
    """Where its parameters are in the claim."""
    origin: Origin
    requests: tuple[str, ...]
    """Requests (``req`` or ``req/sub``) it is for; empty: all."""
    parameters: Any
    """The opaque parameters as they came."""

    def covers(self, request: str) -> bool:
        """Whether it is for a result of this request: named exactly, or by its base name."""
        named = self.requests
        return not named or request in named or request.partition("/")[0] in named


@dataclass(frozen=True, slots=True)
class Demand:
    """What a claim asks for beyond the node's policy; the fields of a `ClaimOrder`."""

    wipe: WipePolicy | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """What the entries state for one request: what must be there for the device to be given out."""

    deallocation: Deallocation | None = None
    """Of class and claim; None: neither names one."""
    isolation_tag: str = ""
    """The claim's; "": it shows none."""
    path: str = ""
    """Where the claim's last entry for the request is, or would have to be."""


class SanitizationConfig(BaseModel):
    """The parameters, closed and strict; None: not named."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    api_version: Literal["fleetscrub.dev/v1"] = Field(alias="apiVersion")
    kind: Literal["SanitizationConfig"]
    profile: Literal["strict"] | None = None
    coverage_floor: float | None = Field(default=None, alias="coverageFloor", ge=0, le=1)
    reset: ResetPolicy | None = Field(default=None, strict=False)
    deallocation: Deallocation | None = Field(default=None, strict=False)
    isolation_tag: str | None = Field(
        default=None, alias="isolationTag", min_length=1, max_length=TAG_MAX
    )


@dataclass(frozen=True, slots=True)
class _Wish:
    """Fields named so far; of several wishes the strictest or the last is taken."""

    fresh: bool = False
    coverage_floor: float = 0.0
    reset: ResetPolicy = ResetPolicy.NEVER
    deallocation: Deallocation = Deallocation.ZERO_FILL

    def replaced_by(self, config: SanitizationConfig) -> _Wish:
        floor = config.coverage_floor
        return _Wish(
            fresh=self.fresh or config.profile is not None,
            coverage_floor=self.coverage_floor if floor is None else floor,
            reset=self.reset if config.reset is None else config.reset,
            deallocation=config.deallocation or self.deallocation,
        )

    def joined(self, other: _Wish) -> _Wish:
        return _Wish(
            fresh=self.fresh or other.fresh,
            coverage_floor=max(self.coverage_floor, other.coverage_floor),
            reset=max(self.reset, other.reset, key=_RESETS.index),
            deallocation=max(self.deallocation, other.deallocation, key=DEALLOCATIONS.index),
        )

    def demand(self, policy: WipePolicy | None) -> Demand:
        reset = self.reset
        lax = policy is None or policy.reset is ResetPolicy.NEVER
        if self.deallocation is Deallocation.WIPE and lax:
            reset = max(reset, ResetPolicy.ON_FAULT, key=_RESETS.index)
        floor = max(self.coverage_floor, NOTHING_ASKED.coverage_floor)
        if (floor, reset) == (NOTHING_ASKED.coverage_floor, NOTHING_ASKED.reset):
            return Demand(fresh=self.fresh)
        asked = NOTHING_ASKED.model_copy(update={"coverage_floor": floor, "reset": reset})
        return Demand(wipe=asked, fresh=self.fresh)


def demand(
    entries: Sequence[Entry], requests: Iterable[str], *, policy: WipePolicy | None = None
) -> Demand:
    """What the claim demands for its results of these `requests`: the strictest of all of them.

    `policy` is the node's own; without it a claim is measured against its class alone, and the
    node's policy still holds when the demand is applied. Raises `ClaimConfigInvalid`; its field
    ``problems`` lists every `Problem`.
    """
    problems: list[Problem] = []
    return demanded(parsed(entries, problems), requests, policy=policy, problems=problems)


def demanded(
    valid: Sequence[tuple[Entry, SanitizationConfig]],
    requests: Iterable[str],
    *,
    policy: WipePolicy | None,
    problems: list[Problem],
) -> Demand:
    """As `demand`, of entries that are `parsed` already; `problems`: what was wrong with others."""
    if not valid and not problems:
        return Demand()
    asked = _Wish()
    for request in sorted(set(requests)):
        mine = [(entry, config) for entry, config in valid if entry.covers(request)]
        asked = asked.joined(_resolved(mine, policy, problems))
    if problems:
        raise refused(problems)
    return asked.demand(policy)


def refused(problems: Iterable[Problem]) -> errors.ClaimConfigInvalid:
    """The error that lists every problem once."""
    found = list(dict.fromkeys(problems))
    return errors.ClaimConfigInvalid(
        f"{len(found)} wrong in the claim's configuration: " + " | ".join(map(str, found)),
        problems=found,
    )


def parsed(
    entries: Iterable[Entry], problems: list[Problem]
) -> list[tuple[Entry, SanitizationConfig]]:
    """Entries that are well-formed, with what they say; what is wrong with others is added."""
    read = [(entry, _parsed(entry, problems)) for entry in entries]
    return [(entry, config) for entry, config in read if config is not None]


def statement(
    valid: Iterable[tuple[Entry, SanitizationConfig]], request: str, *, default_path: str = ""
) -> Statement:
    """What `parsed` entries state for one request, the class before the claim.

    `default_path`: where the claim's entry would have to be if none is for the request.
    """
    mine = [(entry, config) for entry, config in valid if entry.covers(request)]
    found = Statement(path=default_path)
    for origin in Origin:
        for entry, config in mine:
            if entry.origin is origin:
                own = entry.path if origin is Origin.CLAIM else found.path
                found = Statement(
                    config.deallocation or found.deallocation,
                    config.isolation_tag or found.isolation_tag,
                    own,
                )
    return found


def _resolved(
    entries: Sequence[tuple[Entry, SanitizationConfig]],
    policy: WipePolicy | None,
    problems: list[Problem],
) -> _Wish:
    """The wish for one request, class before claim; what asks for less goes to `problems`."""
    asked = _Wish()
    for entry, config in entries:
        if entry.origin is Origin.CLASS:
            asked = asked.replaced_by(config)
    least = asked
    if policy is not None:
        least = least.joined(_Wish(coverage_floor=policy.coverage_floor, reset=policy.reset))
    for entry, config in entries:
        if entry.origin is Origin.CLAIM:
            problems += _below(entry, config, least)
            asked = asked.replaced_by(config)
    return asked


def _below(entry: Entry, config: SanitizationConfig, least: _Wish) -> Iterable[Problem]:
    floor = config.coverage_floor
    if floor is not None and floor < least.coverage_floor:
        yield Problem(
            f"{entry.path}.coverageFloor",
            f"{floor:g} is less than class and node demand",
            f"a number at least {least.coverage_floor:.10g} and at most 1, or leave it out",
        )
    reset = config.reset
    if reset is not None and _RESETS.index(reset) < _RESETS.index(least.reset):
        stricter = _RESETS[_RESETS.index(least.reset) :]
        yield Problem(
            f"{entry.path}.reset",
            f'"{reset}" is less than class and node demand',
            " or ".join(f'"{choice}"' for choice in stricter) + ", or leave it out",
        )
    end = config.deallocation
    if end is not None and not end.covers(least.deallocation):
        yield Problem(
            f"{entry.path}.deallocation",
            f'"{end}" is less than the class demands',
            f'"{least.deallocation}"',
        )


def _parsed(entry: Entry, problems: list[Problem]) -> SanitizationConfig | None:
    if not isinstance(entry.parameters, Mapping):
        wrong = f"{_shown(entry.parameters)} is no object"
        problems.append(Problem(entry.path, wrong, f"apiVersion: {API_VERSION}, kind: {KIND}, ..."))
        return None
    if entry.origin is Origin.CLASS and "isolationTag" in entry.parameters:
        wrong = "a class cannot show a tag for the claims that name it"
        write = "it in the claim or its template: a tag is for namespaces"
        problems.append(Problem(f"{entry.path}.isolationTag", wrong, write))
        return None
    try:
        return SanitizationConfig.model_validate(dict(entry.parameters))
    except ValidationError as error:
        problems += [
            _problem(entry.path, found["loc"], found["type"], found["input"])
            for found in error.errors(include_url=False, include_context=False)
        ]
        return None
    except RecursionError:  # an enum's own error writes out what it was given
        problems.append(Problem(entry.path, "nested too deep", f"one level: {', '.join(_ALLOWED)}"))
        return None


def _problem(where: str, place: tuple[int | str, ...], kind: str, value: Any) -> Problem:
    if not place and not isinstance(value, str):
        return Problem(where, f"{_shown(value)} is not allowed", "only " + ", ".join(_ALLOWED))
    # A key that is no text (a lone surrogate) has no place: it is itself what is wrong.
    name = str(place[0] if place else value)
    if name not in _ALLOWED:
        path = f"{where}.{_named(name)}"
        return Problem(path, "there is no such field", "only " + ", ".join(_ALLOWED))
    path = f"{where}.{name}"
    if kind == "missing":
        return Problem(path, "missing", _ALLOWED[name])
    return Problem(path, f"{_shown(value)} is not allowed", _ALLOWED[name])


def _named(name: str) -> str:
    """A field's name as it can be written anywhere: no control characters, no surrogates."""
    return _cut(name if name.isprintable() else ascii(name)[1:-1])


def _shown(value: Any) -> str:
    try:
        return _cut(repr(value))
    except (RecursionError, ValueError):  # nested too deep, or more digits than are written out
        return f"a value of type {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
