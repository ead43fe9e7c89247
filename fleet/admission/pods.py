"""The rules for pods and for everything that makes pods. Pure.

A pod's manifest does not say what its claims are for, so in a governed namespace a pod with any
claim counts as one of ours; what reaches devices past DRA is refused to every pod.

In CEL ``variables.specs`` is the list of pod specs of the object, ``variables.containers`` the list
of their containers, one list a spec, and ``variables.claiming`` the specs that have claims.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fleet.admission.ground import GRACE_DEFAULT_S, Ground
from fleet.admission.rule import Cel, Flaw, Rule
from fleet.admission.shapes import Object, Path, PodSpec, listed, mapping, text, texts

HOST_NAMESPACES = ("hostPID", "hostIPC", "hostNetwork")
"""Fields of a pod that put it among the host's own processes: by /proc/<pid>/root of one of them
the host's files, and so its devices, are open to it."""
CLAIM_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
"""Fields of a pod's claim that say which it is: one of them."""
CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
"""What may be added: the list of Pod Security's level `baseline` but for MKNOD, by which a device
node can be made."""
_CAPABILITIES = f"(?i)^(CAP_)?({'|'.join(CAPABILITIES)})$"
_EXTENDED = (
    r"^(nvidia\.com/(gpu|mig-|vgpu|pgpu)|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/gaudi"
    r"|google\.com/tpu|aws\.amazon\.com/neuron|deviceclass\.resource\.kubernetes\.io/)"
)
"""Names of extended resources that stand for accelerators, and those that stand for classes."""


def _privileged(container: Object) -> Iterator[tuple[Path, str]]:
    if mapping(container, "securityContext").get("privileged") is True:
        yield ("securityContext", "privileged"), ""


def _capabilities(container: Object) -> Iterator[tuple[Path, str]]:
    context = mapping(container, "securityContext")
    for index, name in enumerate(texts(mapping(context, "capabilities"), "add")):
        if not re.fullmatch(_CAPABILITIES, name):
            yield ("securityContext", "capabilities", "add", index), name


def _extended(container: Object) -> Iterator[tuple[Path, str]]:
    for sort in ("limits", "requests"):
        for name in mapping(mapping(container, "resources"), sort):
            if re.search(_EXTENDED, str(name)):
                yield ("resources", sort, name), name


def _in_containers(
    found: Callable[[Object], Iterator[tuple[Path, str]]], wrong: str
) -> Callable[[PodSpec, Ground], Iterator[Flaw]]:
    """A rule over each container; `%s` in `wrong` is what was found there."""

    def judge(pod: PodSpec, _ground: Ground) -> Iterator[Flaw]:
        for path, container in pod.containers:
            for place, what in found(container):
                name = text(container, "name") or "without a name"
                told = wrong.replace("%s", what)
                yield Flaw((*path, *place), f"container {name} {told}")

    return judge


def _containers_cel(bad: str) -> Cel:
    """No container `c` is `bad`; the message names the first that is."""
    return Cel(
        holds=f"variables.containers.all(g, g.all(c, !({bad})))",
        culprit=f"'container ' + variables.containers.filter(g, g.exists(c, {bad}))[0]"
        f".filter(c, {bad})[0].name",
    )


def _host_paths(pod: PodSpec, _ground: Ground) -> Iterator[Flaw]:
    for path, volume in listed(pod.spec, "volumes", pod.path):
        if "hostPath" in volume:
            found = text(mapping(volume, "hostPath"), "path") or "a path"
            told = f"volume {text(volume, 'name')} mounts {found} of the host"
            yield Flaw((*path, "hostPath"), told)


def _host_namespaces(pod: PodSpec, _ground: Ground) -> Iterator[Flaw]:
    for name in HOST_NAMESPACES:
        if pod.spec.get(name) is True:
            yield Flaw((*pod.path, name), f"{name} shares a namespace with the host")


def _unused_claims(pod: PodSpec, _ground: Ground) -> Iterator[Flaw]:
    used = set()
    for path, container in pod.containers:
        for place, claim in listed(mapping(container, "resources"), "claims", ()):
            used.add(text(claim, "name"))
            if not text(claim, "request"):
                where = (*path, "resources", *place)
                yield Flaw(where, f"claim {text(claim, 'name')} is used without naming a request")
    for path, claim in pod.claims:
        if text(claim, "name") not in used:
            yield Flaw(path, f"claim {text(claim, 'name')} is used by no container")


def _grace(pod: PodSpec) -> int | None:
    found: Any = pod.spec.get("terminationGracePeriodSeconds")
    return found if isinstance(found, int) else None


def _short_grace(pod: PodSpec, ground: Ground) -> Iterator[Flaw]:
    if not pod.claims:
        return
    grace = _grace(pod)
    if grace is None and ground.wipe_budget_s > GRACE_DEFAULT_S:
        told = f"no grace period is set, which means {GRACE_DEFAULT_S} s: shorter than a wipe"
        yield Flaw(pod.path, told)
    elif grace is not None and grace < max(ground.wipe_budget_s, 1):
        where = (*pod.path, "terminationGracePeriodSeconds")
        yield Flaw(where, f"the grace period of {grace} s is shorter than a wipe")


def _implicit_grace(pod: PodSpec, ground: Ground) -> Iterator[Flaw]:
    if pod.claims and _grace(pod) is None and ground.wipe_budget_s <= GRACE_DEFAULT_S:
        yield Flaw(pod.path, "no grace period is set")


def _shared_claims(pod: PodSpec, _ground: Ground) -> Iterator[Flaw]:
    for path, claim in pod.claims if pod.replicated else ():
        if isinstance(claim.get("resourceClaimName"), str):
            told = f"every pod made from this would share claim {claim['resourceClaimName']}"
            yield Flaw((*path, "resourceClaimName"), told)


def _sources(pod: PodSpec, _ground: Ground) -> Iterator[Flaw]:
    for path, claim in pod.claims:
        given = [name for name in CLAIM_SOURCES if text(claim, name)]
        if len(given) != 1:
            told = (
                "names both a claim and a template" if given else "names no claim and no template"
            )
            yield Flaw(path, f"claim {text(claim, 'name') or 'without a name'} {told}")


def _old_sources(pod: PodSpec, _ground: Ground) -> Iterator[Flaw]:
    for path, claim in pod.claims:
        if isinstance(claim.get("source"), Mapping):
            yield Flaw((*path, "source"), "a pod's claim has no field source")


_PRIVILEGED_CEL = """has(c.securityContext) && has(c.securityContext.privileged)
  && c.securityContext.privileged"""
_CAPABILITIES_CEL = f"""has(c.securityContext) && has(c.securityContext.capabilities)
  && has(c.securityContext.capabilities.add)
  && c.securityContext.capabilities.add.exists(k, !k.matches(r'{_CAPABILITIES}'))"""
_EXTENDED_CEL = f"""has(c.resources)
  && ((has(c.resources.limits) && c.resources.limits.exists(k, k.matches(r'{_EXTENDED}')))
  || (has(c.resources.requests) && c.resources.requests.exists(k, k.matches(r'{_EXTENDED}'))))"""
_HOST_PATH_CEL = "has(v.hostPath)"
_HOST_NAMESPACES_CEL = " || ".join(f"(has(s.{name}) && s.{name})" for name in HOST_NAMESPACES)
_HOST_MOUNT = f"s.volumes.exists(v, {_HOST_PATH_CEL})"
_GRACE_CEL = f"""(has(s.terminationGracePeriodSeconds)
  ? s.terminationGracePeriodSeconds : {GRACE_DEFAULT_S})"""
_SOURCE_CEL = " != ".join(f"(has(p.{name}) && p.{name} != '')" for name in CLAIM_SOURCES)
_CLAIMS_OF_CONTAINERS = """variables.specs.all(s, !has(s.resourceClaims) || s.resourceClaims.all(p,
  variables.containers.exists(g, g.exists(c, has(c.resources) && has(c.resources.claims)
    && c.resources.claims.exists(u, u.name == p.name)))))
&& variables.containers.all(g, g.all(c, !has(c.resources) || !has(c.resources.claims)
  || c.resources.claims.all(u, has(u.request) && u.request != '')))"""

RULES: tuple[Rule[PodSpec], ...] = (
    Rule(
        id="A5-privileged",
        says="is privileged and reaches every device of the host",
        remedy="leave privileged out: the device reaches the container through its claim",
        judge=_in_containers(_privileged, "is privileged and reaches every device of the host"),
        cel=_containers_cel(_PRIVILEGED_CEL),
    ),
    Rule(
        id="A5-capability",
        says="adds a capability that is not among those which open nothing of the host",
        remedy=f"add none but {', '.join(CAPABILITIES)}: a claimed device needs none",
        judge=_in_containers(
            _capabilities, "adds %s, which is not among those that open nothing of the host"
        ),
        cel=_containers_cel(_CAPABILITIES_CEL),
    ),
    Rule(
        id="A5-host-namespace",
        says="shares a namespace with the host, whose processes lead to its files and devices",
        remedy="leave out hostPID, hostIPC and hostNetwork",
        judge=_host_namespaces,
        cel=Cel(f"variables.specs.all(s, !({_HOST_NAMESPACES_CEL}))"),
    ),
    Rule(
        id="A5-host-path",
        says="mounts a path of the host: whatever its name, a link in it can lead to devices",
        remedy="take the volume out: a claim brings its device nodes and libraries by itself;"
        " for shared memory use emptyDir with medium Memory",
        judge=_host_paths,
        cel=Cel(
            holds=f"variables.specs.all(s, !(has(s.volumes) && {_HOST_MOUNT}))",
            culprit=f"'volume ' + variables.specs.filter(s, has(s.volumes) && {_HOST_MOUNT})[0]"
            f".volumes.filter(v, {_HOST_PATH_CEL})[0].name",
        ),
    ),
    Rule(
        id="C1-extended-resource",
        says="asks for an accelerator as an extended resource, which nobody wipes",
        remedy="write a ResourceClaimTemplate and name it in spec.resourceClaims and in the"
        " container's resources.claims",
        judge=_in_containers(_extended, "asks for %s, an accelerator that nobody wipes"),
        cel=_containers_cel(_EXTENDED_CEL),
    ),
    Rule(
        id="C4-container-claims",
        says="a claim of the pod is used by no container, or without naming the request",
        remedy="write name and request of the claim in resources.claims of the container that"
        " uses it",
        judge=_unused_claims,
        cel=Cel(_CLAIMS_OF_CONTAINERS),
    ),
    Rule(
        id="C4-claim-source",
        says="a claim of the pod names neither a claim nor a template of claims, or both",
        remedy="write one of resourceClaimTemplateName and resourceClaimName beside the claim's"
        " name",
        judge=_sources,
        cel=Cel(f"variables.claiming.all(s, s.resourceClaims.all(p, {_SOURCE_CEL}))"),
    ),
    Rule(
        id="D1-grace-period",
        says="the grace period of a pod with claims is shorter than a wipe",
        remedy="set terminationGracePeriodSeconds to <budget> or more",
        judge=_short_grace,
        cel=Cel(
            f"variables.claiming.all(s, {_GRACE_CEL} >= variables.wipeBudget && {_GRACE_CEL} > 0)"
        ),
    ),
    Rule(
        id="D1-explicit",
        says="a pod with claims says no grace period",
        remedy="set terminationGracePeriodSeconds to <budget> or more",
        judge=_implicit_grace,
        why_lint_only="the API server fills the default in before admission",
    ),
    Rule(
        id="D2-shared-claim",
        says="every pod made from this would share one claim",
        remedy="name a ResourceClaimTemplate instead (resourceClaimTemplateName): each pod gets a"
        " claim of its own, which ends with it",
        judge=_shared_claims,
        cel=Cel(
            "!variables.replicated"
            " || variables.claiming.all(s, s.resourceClaims.all(p, !has(p.resourceClaimName)))"
        ),
    ),
    Rule(
        id="F-claim-source",
        says="a pod's claim has no field source",
        remedy="write resourceClaimTemplateName (or resourceClaimName) beside the claim's name",
        judge=_old_sources,
        why_lint_only="the API server drops or refuses a field it does not know before admission",
    ),
)
