"""The rules for claims and templates of claims, in whatever API version they are written. Pure.

A request is ours when it names a governed class, or when its own selectors speak of our driver, as
those of a class may: a class that names no driver leaves the choice to them. One that hides which
driver it means counts as ours. Tolerations of our taints and admin access are refused in every
request of a governed namespace: a class nobody listed may hold our devices too.

In CEL ``variables.requests`` are the requests, ``variables.wishes`` for each of them the list of
its forms (`exactly`, flat, or the alternatives), ``variables.entries`` the configuration of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fleet.admission.classes import NO_AGENT
from fleet.admission.ground import PARAMETERS, Ground
from fleet.admission.rule import Cel, Flaw, Rule
from fleet.core.settings import ResetPolicy
from fleet.kube.shapes import ClaimSpec, Entry, Path, Wish, listed, mapping, text, texts
from fleet.plugin.configuration import API_VERSION, KIND, TAG_MAX, Deallocation

DEALLOCATIONS = tuple(one.value for one in Deallocation)
RESETS = tuple(one.value for one in ResetPolicy)
PROFILES = ("strict",)
TAG = r"^fst1\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$"
"""Shape of an isolation tag: its payload is an object of JSON. Whose signature it carries is judged
by the webhook and the node."""
_ELSEWHERE = r"""^\s*device\.driver\s*==\s*("[^"\\]*"|'[^'\\]*')\s*(&&[^|?]*)?$"""
"""A selector that can be true of devices of one driver alone, whatever else it asks."""
_HIDING = (
    r"""\.\s*driver\b|//|["']\s*\+|\+\s*["']|\\[^"'\\]*["']\s*in\s+device"""
    r"""|(attributes|capacity)\s*(\.|\[\s*([^"'\s]|["'][^"']*\\|"[^"]*"\s*[^]\s]|'[^']*'\s*[^]\s]))"""
)
"""A selector of which nobody can tell by its text which driver it is about."""
_SOUNDS = (
    r"(v?gpus?|mig|vfio|mps|tpus?|npus?|xpus?|hpus?|accelerators?|gaudi[0-9]?|neuron(cores?)?"
    r"|ascend[0-9]*[a-z]?|habana|cuda|rocm|gb?[0-9]{3}|[abh][0-9]{2,3}|l40?s?|v100|t4|mi[0-9]{3}[a-z]?)"
)
_SOUNDING_CLASS = f"(?i)(^|[^a-z0-9]){_SOUNDS}([^a-z0-9]|$)"
"""Names of classes that sound like accelerators."""
_SOUNDING_DRIVER = f"""(?i)driver\\s*==\\s*["']([^"']*[^a-z0-9"'])?{_SOUNDS}([^a-z0-9]|$)"""
"""Selectors of drivers whose names do."""
_LITERAL_DRIVER = re.compile(r"""(?i)driver\s*==\s*["']([^"']*)""")
_SETTABLE = tuple(name for name in PARAMETERS if name not in ("apiVersion", "kind"))
_EVERY_WISH = "(has(r.firstAvailable) ? r.firstAvailable : has(r.exactly) ? [r.exactly] : [r])"
_NAMED = "has(w.deviceClassName) && w.deviceClassName in variables.classes"
_TEXT = "q.cel.expression"
_SPEAKS = f"""has(w.selectors)
    && !w.selectors.exists(q, has(q.cel) && {_TEXT}.matches(r'''{_ELSEWHERE}''')
      && !{_TEXT}.contains(variables.driver))
    && w.selectors.exists(q, has(q.cel) && ({_TEXT}.contains(variables.driver)
      || {_TEXT}.matches(r'''{_HIDING}''')))"""
_OURS = f"({_NAMED} || {_SPEAKS})"
_PARAMETERS = "e.opaque.parameters"
_COVERS = """(!has(e.requests) || size(e.requests) == 0 || r.name in e.requests
  || (has(w.name) && (r.name + '/' + w.name) in e.requests))"""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def is_ours(wish: Wish, ground: Ground) -> bool:
    """Whether a request asks for a device of a governed class, or for one of ours by itself."""
    return wish.device_class in ground.classes or _speaks(wish, ground)


def _speaks(wish: Wish, ground: Ground) -> bool:
    """Whether a request's own selectors name our driver, or hide which they name."""
    driver = ground.driver
    if driver not in wish.speaks:
        found = wish.selectors
        elsewhere = any(driver not in one and re.match(_ELSEWHERE, one) for one in found)
        wish.speaks[driver] = not elsewhere and any(
            driver in one or re.search(_HIDING, one) for one in found
        )
    return wish.speaks[driver]


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
        elif (
            wish.device_class not in ground.classes
            and _speaks(wish, ground)
            and not any(re.search(NO_AGENT, one) for one in wish.selectors)
        ):
            told = "its selectors may choose the device that reaches every accelerator of a node"
            yield Flaw((*wish.path, "selectors"), told)


def _of_others(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    known = {*ground.agent_classes, *ground.other_classes}
    for wish in claim.wishes:
        if is_ours(wish, ground) or wish.device_class in known:
            continue
        if re.search(_SOUNDING_CLASS, wish.device_class):
            told = f"class {wish.device_class} is not governed and sounds like accelerators"
            yield Flaw((*wish.path, "deviceClassName"), told)
        elif any(_is_of_others(one) for one in wish.selectors):
            yield Flaw((*wish.path, "selectors"), "selects accelerators of another driver")


def _is_of_others(selector: str) -> bool:
    # What `_SOUNDING_DRIVER` finds, in time linear to the text: anybody may send one.
    return any(re.search(_SOUNDING_CLASS, name) for name in _LITERAL_DRIVER.findall(selector))


def _marks(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    for path, metadata in () if claim.is_stored else claim.metadata:
        names: list[tuple[Path, str]] = [
            ((*path, "finalizers", index), name)
            for index, name in enumerate(texts(metadata, "finalizers"))
        ]
        for field in ("annotations", "labels"):
            names += [((*path, field, name), name) for name in mapping(metadata, field)]
        for place, name in names:
            if name.startswith(f"{ground.driver}/"):
                yield Flaw(place, f"carries {name}, a mark that only fleetscrub's accounts set")


def _said_twice(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    entries = [
        entry for entry in claim.entries(ground.driver) if isinstance(entry.parameters, Mapping)
    ]
    twice = [name for name in _SETTABLE if sum(name in entry.parameters for entry in entries) > 1]
    for wish in claim.wishes if twice else ():
        covering = [entry for entry in entries if entry.covers(wish)]
        for name in twice:
            said = [entry for entry in covering if name in entry.parameters]
            if len(said) > 1:
                told = f"{name} is said more than once for request {wish.names[-1]}"
                yield Flaw((*said[-1].path, name), told)


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
    lacking = f"""{_OURS} && !variables.entries.exists(e,
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
        spread = wish.device_class in ground.spread_classes
        if is_ours(wish, ground) and not spread and mode != "ExactCount":
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
    if _are_far(claim, near, ground):
        yield Flaw(claim.path, "asks for several devices that may be far from each other")


def _spread(claim: ClaimSpec, ground: Ground) -> Iterator[Flaw]:
    found = [wish for wish in claim.wishes if is_ours(wish, ground)]
    is_free = any(wish.device_class in ground.spread_classes for wish in found)
    if is_free and _are_far(claim, found, ground):
        yield Flaw(claim.path, "asks for several devices, which may be far from each other")


def _are_far(claim: ClaimSpec, near: Sequence[Wish], ground: Ground) -> bool:
    """Whether these want several devices and no constraint keeps them near each other."""
    requests = {wish.path[: len(claim.path) + 2] for wish in near}
    if len(requests) < 2 and not any(_many(wish.fields.get("count")) for wish in near):
        return False
    for _, constraint in listed(claim.devices, "constraints", claim.path):
        named = texts(constraint, "requests")
        if text(constraint, "matchAttribute") in ground.near_attributes and (
            not named or all(any(name in named for name in wish.names) for wish in near)
        ):
            return False
    return True


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
_AGENT = f"""has(w.deviceClassName) && w.deviceClassName in variables.agentClasses
    || !({_NAMED}) && {_SPEAKS}
    && !w.selectors.exists(q, has(q.cel) && {_TEXT}.matches(r'''{NO_AGENT}'''))"""
_SPREAD = "has(w.deviceClassName) && w.deviceClassName in variables.spreadClasses"
_MODE = f"""{_OURS} && !({_SPREAD})
    && has(w.allocationMode) && w.allocationMode != 'ExactCount'"""
_OTHER = f"""!{_OURS} && !(has(w.deviceClassName) && (w.deviceClassName in variables.agentClasses
      || w.deviceClassName in variables.otherClasses))
    && (has(w.deviceClassName) && w.deviceClassName.matches(r'{_SOUNDING_CLASS}')
      || has(w.selectors) && w.selectors.exists(q, has(q.cel)
        && {_TEXT}.matches(r'''{_SOUNDING_DRIVER}''')))"""
_TWICE = f"""[{_quoted(_SETTABLE)}].exists(k, variables.entries.filter(e,
      type({_PARAMETERS}) == map && k in {_PARAMETERS} && {_COVERS}).size() > 1)"""
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
_NEAR_OURS = f"{_OURS} && !({_SPREAD})"
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
        id="C1-other-driver",
        says="asks for an accelerator of another driver, which nobody wipes",
        remedy="name a device class for tenants, such as <driver>; a class that holds no"
        " accelerators can be allowed (admission.otherClasses in the chart's values)",
        judge=_of_others,
        cel=_wishes_cel(_OTHER),
    ),
    Rule(
        id="D3-marks",
        says="carries a finalizer, annotation or label that only fleetscrub's accounts set",
        remedy="leave what begins with <driver>/ out of finalizers, annotations and labels",
        judge=_marks,
        cel=Cel("!variables.marks.exists(k, k.startsWith(variables.driver + '/'))"),
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
        id="C2-said-twice",
        says="two entries of configuration give one request the same parameter",
        remedy="write each parameter of a request in one entry for driver <driver>",
        judge=_said_twice,
        cel=Cel(
            f"variables.requests.all(r, {_EVERY_WISH}.all(w, !({_TWICE})))",
        ),
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
        why_lint_only="it is advice: the API server writes ExactCount and 1 before admission",
        is_advice=True,
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
        id="C4-spread",
        says="asks for several devices, which may be far from each other",
        remedy="where they talk to each other, add a constraint with matchAttribute"
        " resource.kubernetes.io/pcieRoot or <driver>/numaNode over these requests",
        judge=_spread,
        why_lint_only="it is advice: the class allows it",
        is_advice=True,
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
