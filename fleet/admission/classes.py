"""The rules for device classes: where all claims of a cluster get their devices from. Pure.

A class concerns us when it is governed or speaks of our driver, in a selector or in configuration.
Classes have no namespace: these rules hold in the whole cluster, and bind whoever runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from fleet.admission.ground import Ground
from fleet.admission.rule import Cel, Flaw, Rule
from fleet.kube.shapes import ClassSpec

_EXCLUSIVE = (
    r"allowMultipleAllocations\s*(!=\s*true|==\s*false)|!\s*device\.allowMultipleAllocations"
)
NO_AGENT = r"\.agent\s*(==\s*false|!=\s*true)|!\s*device\.attributes\[[^\]]{0,200}\]\.agent"
"""Of a selector that leaves the agent device out."""
NARROW = r"\bdriver\b|(attributes|capacity)\s*\[|[\"']\s*in\s+device\.(attributes|capacity)"
"""Of a selector that is about devices of some driver: without one a class selects those of all."""
_IOMMU = r"\.iommuGroup\s*>=?"


def is_ours(found: ClassSpec, ground: Ground) -> bool:
    """Whether a class is governed, or speaks of our driver."""
    return found.name in ground.classes or found.names(ground.driver)


def is_strict(found: ClassSpec, ground: Ground) -> bool:
    """Whether a class is for tenants who must not trust each other: its configuration says so."""
    return any(
        isinstance(entry.parameters, Mapping) and entry.parameters.get("profile") == "strict"
        for entry in found.entries(ground.driver)
    )


def _selects(
    pattern: str, wrong: str, *, is_asked: Callable[[ClassSpec, Ground], bool]
) -> Callable[[ClassSpec, Ground], Iterator[Flaw]]:
    """A class for tenants has a selector that matches; the agent's own class needs none."""

    def judge(found: ClassSpec, ground: Ground) -> Iterator[Flaw]:
        if not is_ours(found, ground) or found.name in ground.agent_classes:
            return
        if is_asked(found, ground) and not any(
            re.search(pattern, expression) for _, expression in found.selectors
        ):
            yield Flaw((*found.path, "selectors"), wrong)

    return judge


def _selects_cel(pattern: str, unasked: str = "") -> Cel:
    return Cel(
        f"{unasked}!variables.ours || variables.name in variables.agentClasses"
        f" || variables.selectors.exists(s, s.cel.expression.matches(r'{pattern}'))"
    )


def _extended_name(found: ClassSpec, ground: Ground) -> Iterator[Flaw]:
    name = found.spec.get("extendedResourceName")
    if is_ours(found, ground) and isinstance(name, str):
        told = f"pods could ask for {name} without a claim that says what happens to its memory"
        yield Flaw((*found.path, "extendedResourceName"), told)


def _ungoverned(found: ClassSpec, ground: Ground) -> Iterator[Flaw]:
    known = found.name in ground.classes or found.name in ground.agent_classes
    if found.names(ground.driver) and not known:
        told = f"class {found.name} selects devices of ours and is not among the governed ones"
        yield Flaw(("metadata", "name"), told)


def _open(found: ClassSpec, ground: Ground) -> Iterator[Flaw]:
    known = found.name in ground.classes or found.name in ground.agent_classes
    if not known and not any(re.search(NARROW, one) for _, one in found.selectors):
        told = f"class {found.name} selects the devices of every driver, ours among them"
        yield Flaw((*found.path, "selectors"), told)


RULES: tuple[Rule[ClassSpec], ...] = (
    Rule(
        id="C3-class-exclusive",
        says="a class for tenants does not select exclusive devices",
        remedy="add a selector with device.allowMultipleAllocations != true",
        judge=_selects(
            _EXCLUSIVE,
            "no selector asks for exclusive devices",
            is_asked=lambda _, ground: ground.consumable_capacity,
        ),
        cel=_selects_cel(_EXCLUSIVE, "!variables.consumableCapacity || "),
    ),
    Rule(
        id="A5-class-agent",
        says="a class for tenants does not leave the agent device out",
        remedy='add a selector with device.attributes["<driver>"].agent == false',
        judge=_selects(
            NO_AGENT, "no selector leaves the agent device out", is_asked=lambda *_: True
        ),
        cel=_selects_cel(NO_AGENT),
    ),
    Rule(
        id="C4-class-iommu",
        says="a class for tenants who must not trust each other takes devices outside any IOMMU"
        " group, which can reach each other's memory",
        remedy='add a selector with device.attributes["<driver>"].iommuGroup >= 0',
        judge=_selects(
            _IOMMU,
            "no selector asks for an IOMMU group",
            is_asked=lambda found, ground: ground.iommu_required and is_strict(found, ground),
        ),
        cel=_selects_cel(_IOMMU, "!variables.iommuRequired || !variables.strict || "),
    ),
    Rule(
        id="C1-class-extended-name",
        says="a class for tenants can be asked for as an extended resource",
        remedy="leave extendedResourceName out: claims come from templates",
        judge=_extended_name,
        cel=Cel("!variables.ours || !has(dyn(object).spec.extendedResourceName)"),
    ),
    Rule(
        id="C2-class-governed",
        says="a class selects devices of ours and is not among the governed ones",
        remedy="add its name to admission.classes in the chart's values, so that claims on it are"
        " judged",
        judge=_ungoverned,
        cel=Cel(
            "!variables.speaks || variables.name in variables.classes"
            " || variables.name in variables.agentClasses"
        ),
    ),
    Rule(
        id="C2-class-open",
        says="a class selects the devices of every driver, ours among them, and is not among the"
        " governed ones",
        remedy="add a selector with the driver it is for, such as"
        ' device.driver == "nic.example.com"',
        judge=_open,
        cel=Cel(
            "!variables.open || variables.name in variables.classes"
            " || variables.name in variables.agentClasses"
        ),
    ),
)
