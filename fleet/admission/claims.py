"""The rules for claims and templates of claims, in whatever API version they are written. Pure.

A request is ours when it names a governed class. Tolerations of our taints and admin access are
refused in every request of a governed namespace: a class nobody listed may hold our devices too.

In CEL ``variables.requests`` are the requests, ``variables.wishes`` for each of them the list of
its forms (`exactly`, flat, or the alternatives), ``variables.entries`` the configuration of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fleet.admission.ground import PARAMETERS, Ground
from fleet.admission.rule import Cel, Flaw, Rule
from fleet.admission.shapes import ClaimSpec, Entry, Wish, listed, text, texts
from fleet.dra.configuration import API_VERSION, KIND, TAG_MAX, Deallocation
from fleet.settings import ResetPolicy

DEALLOCATIONS = tuple(one.value for one in Deallocation)
RESETS = tuple(one.value for one in ResetPolicy)
PROFILES = ("strict",)
TAG = r"^fst1\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$"
"""Shape of an isolation tag; whose signature it carries is judged by the webhook and the node."""
_EVERY_WISH = "(has(r.firstAvailable) ? r.firstAvailable : has(r.exactly) ? [r.exactly] : [r])"
_OURS = "has(w.deviceClassName) && w.deviceClassName in variables.classes"
_PARAMETERS = "e.opaque.parameters"
_COVERS = """(!has(e.requests) || size(e.requests) == 0 || r.name in e.requests
  || (has(w.name) && (r.name + '/' + w.name) in e.requests))"""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def is_ours(wish: Wish, ground: Ground) -> bool:
    """Whether a request asks for a device of a governed class."""
    return wish.device_class in ground.classes


def _tolerations(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    for wish in claim.wishes:
        for path, toleration in listed(wish.fields, "tolerations", wish.path):
            key = text(toleration, "key")
            if not key:
                yield Flaw(path, "tolerates every taint, a quarantined device among them")
            elif key.startswith(f"{ground.driver}/"):
                yield Flaw((*path, "key"), f"tolerates {key}: a device that is not clean")


def _admin_access(claim: ClaimSpec, _ground: Ground) -> Iterator[Flaw]:
    for wish in claim.wishes:
        if wish.fields.get("adminAccess") is True:
            told = "asks for admin access, which opens a device that is somebody else's"
            yield Flaw((*wish.path, "adminAccess"), told)


def _agent(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    for wish in claim.wishes:
        if wish.device_class in ground.agent_classes:
            told = f"class {wish.device_class} reaches every accelerator of a node"
            yield Flaw((*wish.path, "deviceClassName"), told)


def _required(
    field: str, is_good: Callable[[Any], bool], missing: str
) -> Callable[[ClaimSpec, Ground], Iterator[Flaw]]:
    """A parameter that every request of ours must be given, and that must be good where it is."""

    def judge(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
        entries = [
            entry
            for entry in claim.entries(ground.driver)
            if isinstance(entry.parameters, Mapping) and field in entry.parameters
        ]
        for entry in entries:
            value = entry.parameters[field]
            if not is_good(value):
                yield Flaw((*entry.path, field), f"{_cut(value)} is not allowed as {field}")
        for wish in claim.wishes:
            if is_ours(wish, ground) and not any(entry.covers(wish) for entry in entries):
                yield Flaw(wish.path, f"request {'/'.join(wish.names[-1:])} {missing}")

    return judge


def _required_cel(field: str, good: str) -> Cel:
    value = f"{_PARAMETERS}.{field}"
    lacking = f"""({_OURS}) && !variables.entries.exists(e,
  has({value}) && {_COVERS})"""
    return Cel(
        holds=f"""variables.entries.all(e, !has({value}) || ({good}))
&& variables.requests.all(r, {_EVERY_WISH}.all(w, !({lacking})))"""
    )


def _parameters(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    for entry in claim.entries(ground.driver):
        if not isinstance(entry.parameters, Mapping):
            yield Flaw(entry.path, "the parameters are no object")
            continue
        yield from _fields(entry)


def _fields(entry: Entry) -> Iterator[Flaw]:
    found: Mapping[Any, Any] = entry.parameters
    for name in found:
        if name not in PARAMETERS:
            yield Flaw((*entry.path, name), f"there is no parameter {name}")
    for name, allowed in (("apiVersion", (API_VERSION,)), ("kind", (KIND,))):
        if found.get(name) not in allowed:
            where = entry.path if name not in found else (*entry.path, name)
            yield Flaw(where, f"{name} is not {allowed[0]}")
    for name, choices in (("profile", PROFILES), ("reset", RESETS)):
        if name in found and found[name] not in choices:
            yield Flaw((*entry.path, name), f"{_cut(found[name])} is not allowed as {name}")
    floor = found.get("coverageFloor", 0)
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor <= 1:
        yield Flaw((*entry.path, "coverageFloor"), f"{_cut(floor)} is no number from 0 to 1")


def _all_devices(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    for wish in claim.wishes:
        mode = wish.fields.get("allocationMode", "ExactCount")
        if is_ours(wish, ground) and mode != "ExactCount":
            yield Flaw((*wish.path, "allocationMode"), f"asks for devices by {_cut(mode)}")


def _implicit_count(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    for wish in claim.wishes:
        missing = [name for name in ("allocationMode", "count") if name not in wish.fields]
        if is_ours(wish, ground) and wish.fields.get("allocationMode") != "All" and missing:
            yield Flaw(wish.path, f"does not say {' and '.join(missing)}")


def _scattered(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    near = [
        wish
        for wish in claim.wishes
        if is_ours(wish, ground) and wish.device_class not in ground.spread_classes
    ]
    requests = {wish.path[: len(claim.path) + 2] for wish in near}
    if len(requests) < 2 and not any(_many(wish.fields.get("count")) for wish in near):
        return
    for _, constraint in listed(claim.devices, "constraints", claim.path):
        named = texts(constraint, "requests")
        if text(constraint, "matchAttribute") in ground.near_attributes and (
            not named or all(any(name in named for name in wish.names) for wish in near)
        ):
            return
    yield Flaw(claim.path, "asks for several devices that may be far from each other")


def _many(count: Any) -> bool:
    return isinstance(count, int) and count > 1


def _cut(value: Any) -> str:
    shown = f'"{value}"' if isinstance(value, str) else f"a {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:56]}..."


def _is_tag(value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= TAG_MAX
        and re.fullmatch(TAG.strip("^$"), value) is not None
    )


_TOLERATES = """(!has(t.key) || t.key == '' || t.key.startsWith(variables.driver + '/'))"""
_TOLERATION = f"has(w.tolerations) && w.tolerations.exists(t, {_TOLERATES})"
_ADMIN = "has(w.adminAccess) && w.adminAccess"
_AGENT = "has(w.deviceClassName) && w.deviceClassName in variables.agentClasses"
_MODE = f"({_OURS}) && has(w.allocationMode) && w.allocationMode != 'ExactCount'"
_FLOOR = f"{_PARAMETERS}.coverageFloor"
_NUMBER = f"(type({_FLOOR}) == double || type({_FLOOR}) == int)"
_FIELDS_CEL = f"""variables.entries.all(e, type({_PARAMETERS}) == map
  && {_PARAMETERS}.all(k, k in [{_quoted(PARAMETERS)}])
  && has({_PARAMETERS}.apiVersion) && {_PARAMETERS}.apiVersion == '{API_VERSION}'
  && has({_PARAMETERS}.kind) && {_PARAMETERS}.kind == '{KIND}'
  && (!has({_PARAMETERS}.profile) || {_PARAMETERS}.profile in [{_quoted(PROFILES)}])
  && (!has({_PARAMETERS}.reset) || {_PARAMETERS}.reset in [{_quoted(RESETS)}])
  && (!has({_PARAMETERS}.coverageFloor) || {_NUMBER}
    && {_PARAMETERS}.coverageFloor >= 0.0 && {_PARAMETERS}.coverageFloor <= 1.0))"""
_TAG = f"""type({_PARAMETERS}.isolationTag) == string
    && {_PARAMETERS}.isolationTag.matches(r'{TAG}')
    && size({_PARAMETERS}.isolationTag) <= {TAG_MAX}"""
_NEAR_OURS = f"({_OURS}) && !(w.deviceClassName in variables.spreadClasses)"
_NEAR = f"variables.requests.filter(r, {_EVERY_WISH}.exists(w, {_NEAR_OURS}))"
_SCATTERED_CEL = f"""({_NEAR}.size() < 2
  && variables.wishes.all(g, g.all(w, !({_NEAR_OURS}) || !has(w.count) || w.count <= 1)))
|| (has(variables.devices.constraints) && variables.devices.constraints.exists(k,
  has(k.matchAttribute)
  && k.matchAttribute in ['resource.kubernetes.io/pcieRoot', variables.driver + '/numaNode']
  && (!has(k.requests) || size(k.requests) == 0
    || {_NEAR}.all(r, r.name in k.requests || {_EVERY_WISH}.all(w, !({_NEAR_OURS})
      || (has(w.name) && (r.name + '/' + w.name) in k.requests))))))"""


def _wishes_cel(bad: str) -> Cel:
    """No wish `w` is `bad`; the message names the request of the first that is."""
    return Cel(
        holds=f"variables.wishes.all(g, g.all(w, !({bad})))",
        culprit="'request ' + variables.requests"
        f".filter(r, {_EVERY_WISH}.exists(w, {bad}))[0].name",
    )


RULES: tuple[Rule[ClaimSpec], ...] = (
    Rule(
        id="B17-toleration",
        says="tolerates a taint that keeps devices out which are not clean",
        remedy="name the key of a taint that is not <driver>'s, or leave the toleration out",
        judge=_tolerations,
        cel=_wishes_cel(_TOLERATION),
        spares_requesters=True,
    ),
    Rule(
        id="B35-admin-access",
        says="asks for admin access, which opens a device that is somebody else's",
        remedy="leave adminAccess out; what has to look into devices runs in our own namespace",
        judge=_admin_access,
        cel=_wishes_cel(_ADMIN),
        spares_requesters=True,
    ),
    Rule(
        id="A5-agent-class",
        says="names a class that reaches every accelerator of a node",
        remedy="name a device class for tenants, such as <driver>",
        judge=_agent,
        cel=_wishes_cel(_AGENT),
    ),
    Rule(
        id="C2-deallocation",
        says="a request has no deallocation policy, or one that does not exist",
        remedy="give the request an opaque entry for driver <driver> with deallocation:"
        f" {DEALLOCATIONS[0]} or {DEALLOCATIONS[1]}; nothing is ever retained",
        judge=_required(
            "deallocation", lambda value: value in DEALLOCATIONS, "has no deallocation policy"
        ),
        cel=_required_cel(
            "deallocation",
            f"{_PARAMETERS}.deallocation in [{_quoted(DEALLOCATIONS)}]",
        ),
    ),
    Rule(
        id="C2-parameters",
        says="the opaque parameters for our driver are not what it takes",
        remedy=f"write apiVersion: {API_VERSION}, kind: {KIND} and of "
        + ", ".join(name for name in PARAMETERS if name not in ("apiVersion", "kind"))
        + " those you need",
        judge=_parameters,
        cel=Cel(_FIELDS_CEL),
    ),
    Rule(
        id="C3-exact-count",
        says="asks for devices otherwise than by their number",
        remedy="write allocationMode: ExactCount and count",
        judge=_all_devices,
        cel=_wishes_cel(_MODE),
    ),
    Rule(
        id="C3-explicit",
        says="a request does not say how many devices it wants",
        remedy="write allocationMode: ExactCount and count",
        judge=_implicit_count,
        why_lint_only="the API server fills the defaults in before admission",
    ),
    Rule(
        id="C4-match-attribute",
        says="asks for several devices that may be far from each other",
        remedy="add a constraint with matchAttribute resource.kubernetes.io/pcieRoot or"
        " <driver>/numaNode over these requests",
        judge=_scattered,
        cel=Cel(_SCATTERED_CEL),
    ),
    Rule(
        id="C5-isolation-tag",
        says="a request has no isolation tag, or one that is no tag",
        remedy="put a tag from `fleet tag issue` into isolationTag of the opaque entry for driver"
        " <driver>",
        judge=_required("isolationTag", _is_tag, "has no isolation tag"),
        cel=_required_cel("isolationTag", _TAG),
    ),
)
