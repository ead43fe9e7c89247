"""The rules for pods and for everything that makes pods. Pure.

A pod's manifest does not say what its claims are for, so in a governed namespace a pod with any
claim counts as one of ours; what reaches devices past DRA is refused to every pod.

In CEL ``p`` is a pod, or the template of one, ``c`` a container of any sort, ``v`` a volume, ``q``
a claim of a pod; ``variables.pods`` are all pods of the object, ``variables.containers`` their
containers, a list for each.
"""

from __future__ import annotations

from fleet.admission.elements import CLAIM, CONTAINER, POD, VOLUME, Ask, asked, only_linted
from fleet.admission.ground import GRACE_DEFAULT_S
from fleet.admission.rule import Rule
from fleet.kube.shapes import Workload

HOST_NAMESPACES = ("hostPID", "hostIPC", "hostNetwork")
"""Fields of a pod that put it among the host's own processes: by /proc/<pid>/root of one of them
the host's files, and so its devices, are open to it."""
CLAIM_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
"""Fields of a pod's claim that say which it is: one of them."""
_READ_BY_LIBRARIES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                      "ASCEND_RT_VISIBLE_DEVICES", "GPU_VISIBLE_DEVICES")  # fmt: skip
"""Variables that choose among the devices a container has; all others of this form give it some."""
_BY_RUNTIME = (
    r"^([A-Z_]+_VISIBLE_DEVICES|NVIDIA_MIG_(CONFIG|MONITOR)_DEVICES|NVIDIA_IMEX_CHANNELS)$"
)
"""Variables by which container runtimes give devices to a container."""
_RUNTIMES = r"^(nvidia|amd|habana|ascend|neuron|metax|mthreads|cambricon|iluvatar)([-_.]|$)"
"""Runtime classes whose runtime gives devices by what image and manifest ask for."""
_ANNOTATIONS = (
    r"(^|\.)(cdi\.k8s\.io|nri\.io|devices\.noderesource\.dev)/|^io\.kubernetes\.cri-o\.Devices$"
)
"""Annotations by which container runtimes give devices or mounts to a container."""
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_ZERO = r"^[+-]?(0+[.]?0*|[.]0+)([eE][+-]?[0-9]+|[a-zA-Z]*)$"
"""A quantity of nothing."""
_CONFINED = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
"""SELinux types that a container may ask for."""

_CLAIMING = "has(p.spec.resourceClaims) && size(p.spec.resourceClaims) > 0"
_GRACE = f"""(has(p.spec.terminationGracePeriodSeconds)
  ? p.spec.terminationGracePeriodSeconds : {GRACE_DEFAULT_S})"""
_SOURCE = " != ".join(f"(has(q.{name}) && q.{name} != '')" for name in CLAIM_SOURCES)
_USED = """variables.containers.exists(g, g.exists(c, has(c.resources) && has(c.resources.claims)
  && c.resources.claims.exists(u, u.name == q.name)))"""
_WRITTEN = """variables.containers.exists(g, g.exists(c, has(c.volumeMounts)
  && c.volumeMounts.exists(m, m.name == v.name && !(has(m.readOnly) && m.readOnly))))"""
_EXTENDED = f"""k.contains('/') && !string(<k>).matches(r'{_ZERO}')
  && !variables.extendedResources.exists(n, n == k || n.endsWith('/') && k.startsWith(n)
    || n.startsWith('/') && k.endsWith(n))"""


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(f"'{one}'" for one in values)


def _unconfined(of: str) -> str:
    """CEL: whether the security context of `of` takes a profile off."""
    context = f"{of}.securityContext"
    linux = f"{context}.seLinuxOptions"
    profiles = " || ".join(
        f"has({context}.{name}) && has({context}.{name}.type)"
        f" && {context}.{name}.type == 'Unconfined'"
        for name in ("seccompProfile", "appArmorProfile")
    )
    return f"""has({context}) && ({profiles}
  || has({context}.procMount) && {context}.procMount == 'Unmasked'
  || has({linux}) && (has({linux}.type) && !({linux}.type in [{_listed(_CONFINED)}])
    || has({linux}.user) && {linux}.user != '' || has({linux}.role) && {linux}.role != ''))"""


RULES: tuple[Rule[Workload], ...] = (
    Rule(
        id="A5-privileged",
        says="is privileged and reaches every device of the host",
        remedy="leave privileged out: the device reaches the container through its claim",
        **asked(
            Ask(
                CONTAINER,
                """has(c.securityContext) && has(c.securityContext.privileged)
  && c.securityContext.privileged""",
                "is privileged and reaches every device of the host",
                at=("securityContext", "privileged"),
            )
        ),
    ),
    Rule(
        id="A5-capability",
        says="adds a capability that may open something of the host",
        remedy="add none but <capabilities>: a claimed device needs none",
        **asked(
            Ask(
                CONTAINER,
                "!variables.capabilities.exists(n, k.matches('(?i)^(CAP_)?' + n + '$'))",
                "adds %s, which may open something of the host",
                what="k",
                inside=(("securityContext", "capabilities", "add"),),
            )
        ),
    ),
    Rule(
        id="A5-host-namespace",
        says="shares a namespace with the host, whose processes lead to its files and devices",
        remedy="leave out hostPID, hostIPC and hostNetwork",
        **asked(
            *(
                Ask(
                    POD,
                    f"has(p.spec.{name}) && p.spec.{name}",
                    f"{name} shares a namespace with the host",
                    at=("spec", name),
                )
                for name in HOST_NAMESPACES
            )
        ),
    ),
    Rule(
        id="A5-host-path",
        says="mounts a path of the host: whatever its name, a link in it can lead to devices",
        remedy="take the volume out: a claim brings its device nodes and libraries by itself;"
        " for shared memory use emptyDir with medium Memory; <host paths> may be mounted read-only",
        **asked(
            Ask(
                VOLUME,
                f"""has(v.hostPath) && (!(v.hostPath.path in variables.hostPaths)
  || {_WRITTEN})""",
                "mounts %s of the host",
                what="v.hostPath.path == '' ? 'a path' : v.hostPath.path",
                at=("hostPath",),
            )
        ),
    ),
    Rule(
        id="A5-volume-driver",
        says="has a volume whose driver may bring in paths or devices of the host",
        remedy="use a PersistentVolumeClaim, or a CSI driver of <csi drivers>",
        **asked(
            Ask(
                VOLUME,
                "has(v.flexVolume) || has(v.gitRepo)"
                " || has(v.csi) && !(v.csi.driver in variables.csiDrivers)",
                "is made by %s, which may bring in paths or devices of the host",
                what="has(v.csi) ? 'CSI driver ' + v.csi.driver"
                " : has(v.flexVolume) ? 'a flexVolume' : 'gitRepo'",
            )
        ),
    ),
    Rule(
        id="A5-runtime-devices",
        says="asks the container runtime for devices, past every claim",
        remedy="leave the variable or mount out; where the image sets the variable, write it with"
        " the value void",
        **asked(
            Ask(
                CONTAINER,
                f"""k.name.matches(r'{_BY_RUNTIME}') && !(k.name in [{_listed(_READ_BY_LIBRARIES)}])
  && (has(k.valueFrom) || has(k.value) && !(k.value in ['', 'void', 'none']))""",
                "asks the container runtime for devices with %s",
                what="k.name",
                inside=(("env",),),
            ),
            Ask(
                CONTAINER,
                "k.mountPath.contains('-container-devices')",
                "asks the container runtime for devices with a mount at %s",
                what="k.mountPath",
                inside=(("volumeMounts",),),
            ),
        ),
    ),
    Rule(
        id="A5-runtime-class",
        says="names a runtime class whose runtime gives devices past every claim",
        remedy="leave runtimeClassName out: claimed devices come by CDI, in every runtime",
        **asked(
            Ask(
                POD,
                f"has(p.spec.runtimeClassName) && p.spec.runtimeClassName.matches(r'{_RUNTIMES}')",
                "runtime class %s gives devices past every claim",
                what="p.spec.runtimeClassName",
                at=("spec", "runtimeClassName"),
            )
        ),
    ),
    Rule(
        id="A5-runtime-annotation",
        says="has an annotation by which container runtimes give devices, past every claim",
        remedy="leave the annotation out: the device reaches the container through its claim",
        **asked(
            Ask(
                POD,
                f"k.matches(r'{_ANNOTATIONS}')",
                "annotation %s asks the container runtime for devices",
                what="k",
                inside=(("metadata", "annotations"),),
            )
        ),
    ),
    Rule(
        id="A5-unconfined",
        says="takes off what confines its containers (AppArmor, seccomp, SELinux, /proc)",
        remedy="leave the profile Unconfined, procMount Unmasked and SELinux types of your own out",
        **asked(
            Ask(
                CONTAINER,
                _unconfined("c"),
                "takes off what confines it",
                at=("securityContext",),
            ),
            Ask(
                POD,
                _unconfined("p.spec"),
                "the pod takes off what confines its containers",
                at=("spec", "securityContext"),
            ),
            Ask(
                POD,
                f"k.startsWith('{_APPARMOR}') && <k> == 'unconfined'",
                "annotation %s takes AppArmor off",
                what="k",
                inside=(("metadata", "annotations"),),
            ),
        ),
    ),
    Rule(
        id="A5-host-port",
        says="takes a port of the node, where services of ours and of the cluster listen",
        remedy="leave hostPort out; a Service reaches the pod at its own port",
        **asked(
            Ask(
                CONTAINER,
                "has(k.hostPort) && k.hostPort > 0",
                "takes port %s of the node",
                what="string(k.hostPort)",
                inside=(("ports",),),
            )
        ),
    ),
    Rule(
        id="C1-extended-resource",
        says="asks for a device as an extended resource, which nobody wipes",
        remedy="write a ResourceClaimTemplate and name it in spec.resourceClaims and in the"
        " container's resources.claims; a resource that is no accelerator can be allowed"
        " (admission.extendedResources in the chart's values)",
        **asked(
            Ask(
                CONTAINER,
                _EXTENDED,
                "asks for %s, a device that nobody wipes",
                what="k",
                inside=(("resources", "limits"), ("resources", "requests")),
            )
        ),
    ),
    Rule(
        id="C4-container-claims",
        says="a claim of the pod is used by no container",
        remedy="write name and request of the claim in resources.claims of the container that"
        " uses it",
        **asked(Ask(CLAIM, f"!{_USED}", "is used by no container")),
    ),
    Rule(
        id="C4-container-request",
        says="a container uses a claim without naming the request",
        remedy="write the request beside the claim's name: without it the container gets the"
        " devices of all requests",
        **only_linted(
            Ask(
                CONTAINER,
                "!(has(k.request) && k.request != '')",
                "uses claim %s without naming a request",
                what="k.name",
                inside=(("resources", "claims"),),
            )
        ),
        why_lint_only="it is advice: the container gets all devices of its own pod's claim",
        is_advice=True,
    ),
    Rule(
        id="C4-claim-source",
        says="a claim of the pod names neither a claim nor a template of claims, or both",
        remedy="write one of resourceClaimTemplateName and resourceClaimName beside the claim's"
        " name",
        **asked(
            Ask(
                CLAIM,
                f"!({_SOURCE})",
                "names neither a claim nor a template, or both",
            )
        ),
    ),
    Rule(
        id="D1-grace-period",
        says="the grace period of a pod with claims is shorter than a wipe",
        remedy="set terminationGracePeriodSeconds to <budget> or more",
        **asked(
            Ask(
                POD,
                f"{_CLAIMING} && ({_GRACE} < variables.wipeBudget || {_GRACE} < 1)",
                "the grace period of %s s is shorter than a wipe",
                what=f"string({_GRACE})",
                at=("spec", "terminationGracePeriodSeconds"),
            )
        ),
    ),
    Rule(
        id="D1-explicit",
        says="a pod with claims says no grace period",
        remedy="set terminationGracePeriodSeconds to <budget> or more",
        **only_linted(
            Ask(
                POD,
                f"{_CLAIMING} && !has(p.spec.terminationGracePeriodSeconds)"
                f" && variables.wipeBudget <= {GRACE_DEFAULT_S}",
                "no grace period is set",
                at=("spec",),
            )
        ),
        why_lint_only="it is advice: the API server writes 30 s before admission",
        is_advice=True,
    ),
    Rule(
        id="D1-deadline",
        says="a pod with claims is ended before its device can have been wiped for it",
        remedy="leave activeDeadlineSeconds out, or set it to <budget> and the time of the work",
        **asked(
            Ask(
                POD,
                f"{_CLAIMING} && has(p.spec.activeDeadlineSeconds)"
                " && p.spec.activeDeadlineSeconds < variables.wipeBudget",
                "the pod is ended after %s s, before its device can have been wiped for it",
                what="string(p.spec.activeDeadlineSeconds)",
                at=("spec", "activeDeadlineSeconds"),
            )
        ),
    ),
    Rule(
        id="D2-shared-claim",
        says="several pods made from this would share one claim",
        remedy="name a ResourceClaimTemplate instead (resourceClaimTemplateName): each pod gets a"
        " claim of its own, which ends with it",
        **asked(
            Ask(
                CLAIM,
                "variables.shared && has(q.resourceClaimName) && q.resourceClaimName != ''",
                "names claim %s, which several pods made from this would share",
                what="q.resourceClaimName",
                at=("resourceClaimName",),
            )
        ),
    ),
    Rule(
        id="D3-node-name",
        says="a pod with claims names its node: no scheduler holds its devices for it",
        remedy="leave nodeName out and choose the node by nodeSelector or affinity",
        **asked(
            Ask(
                POD,
                f"{_CLAIMING} && !variables.stored && has(p.spec.nodeName)"
                " && p.spec.nodeName != ''",
                "the pod names node %s itself: no scheduler holds its devices for it",
                what="p.spec.nodeName",
                at=("spec", "nodeName"),
            )
        ),
    ),
    Rule(
        id="F-claim-source",
        says="a pod's claim has no field source",
        remedy="write resourceClaimTemplateName (or resourceClaimName) beside the claim's name",
        **only_linted(
            Ask(CLAIM, "has(q.source)", "has a field source, which does not exist", at=("source",))
        ),
        why_lint_only="the API server drops or refuses a field it does not know before admission",
    ),
)
