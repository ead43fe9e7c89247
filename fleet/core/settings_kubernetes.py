"""How plugin and coordinator meet Kubernetes: section ``[kubernetes]`` of the settings. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from fleet.core import errors, labels
from fleet.core.settings_section import Section


def _selecting(text: str) -> str:
    try:
        labels.selector(text)
    except errors.InputInvalid as error:
        raise ValueError(f"{error.detail}; {error.remedy}") from None
    return text


def _once(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len({*texts}) < len(texts):
        raise ValueError("a selector stands here twice: each has one coordinator")
    return texts


class Unexposed(StrEnum):
    """What happens to a pod that was bound to a device which then failed before it had it."""

    TAINT = "taint"
    DELETE = "delete"
    EVENT = "event"


class Handover(StrEnum):
    """What follows where the container runtime will not find the specs of this node."""

    WARN = "warn"
    TAINT = "taint"


class Finalizing(StrEnum):
    """When our finalizer leaves a claim (D3)."""

    WITH_HOLD = "with-hold"
    UNTIL_VERIFIED = "until-verified"


class KubernetesSettings(Section):
    """How the node plugin meets kubelet, the container runtime and the API server."""

    driver: str = Field(
        default="gpu.fleetscrub.dev",
        pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        max_length=27,
        description="Name of the DRA driver, a DNS subdomain. At most 27 characters: socket paths"
        " with a pod's UID must stay within 107 bytes.",
    )
    cdi_vendor: str = Field(
        default="fleetscrub.dev",
        pattern=r"^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]$",
        max_length=253,
        description="Vendor part of CDI names, a domain; at least two characters, a letter first.",
    )
    cdi_class: str = Field(
        default="gpu",
        pattern=r"^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]$",
        max_length=63,
        description="Class part of CDI names; at least two characters, a letter first.",
    )
    cdi_directory: str = Field(
        default="/var/run/cdi",
        min_length=1,
        description="Directory of generated CDI specs, as the container runtime reads it.",
    )
    kubelet_root: str = Field(
        default="/var/lib/kubelet",
        min_length=1,
        description="Root directory of kubelet: plugins, plugins_registry and its checkpoint.",
    )
    cgroup_root: str = Field(
        default="/sys/fs/cgroup",
        min_length=1,
        description="Where the host's cgroups are mounted (v1 or v2).",
    )
    agent_namespace: str = Field(
        default="",
        max_length=63,
        description="Namespace of our own node service. Set, the plugin publishes the device"
        " `agent` and prepares it for claims of this namespace only. Empty: no such device.",
    )
    admin_namespaces: tuple[
        Annotated[
            str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
        ],
        ...,
    ] = Field(
        default=(),
        strict=False,
        description="Namespaces whose claims may look into devices that are others', with"
        " adminAccess. Nodes refuse it to all others, whatever a namespace is labelled. Empty: the"
        " namespace in `agent_namespace`, which is our own, and no other.",
    )
    api_qps: float = Field(
        default=20.0,
        gt=0,
        description="Requests per second to the API server, on average; bursts of twice as many.",
    )
    api_timeout_s: float = Field(
        default=10.0, gt=0, description="Time, s, one request to the API server may take."
    )
    budget_s: float = Field(
        default=40.0,
        gt=0,
        lt=45,
        description="Time, s, a call of kubelet waits for its work; kubelet gives up after 45 s.",
    )
    binding_timeout_s: float = Field(
        default=600.0,
        ge=60,
        description="bindingTimeout of the scheduler's DynamicResources plugin, s. Work that cannot"
        " end 30 s before it is failed, so that the scheduler hears why.",
    )
    hold_event_after_s: float = Field(
        default=900.0,
        gt=0,
        description="Time, s, after which a claim still held without a user gets an Event that"
        " names what is missing and the command that decides.",
    )
    unexposed: Unexposed = Field(
        strict=False,
        default=Unexposed.TAINT,
        description="What happens to a pod bound to a device that fails before the pod had it:"
        " taint (NoExecute, so that it is evicted), delete (the pod is deleted, where evictions by"
        " taint do not reach) or event (it is only told).",
    )
    preflight: Handover = Field(
        strict=False,
        default=Handover.WARN,
        description="What follows where the container runtime has CDI switched off or reads other"
        " directories, or the host has too few inotify instances: warn (status, log and metric), or"
        " taint (nothing is prepared, and every device is not-clean, until it is mended).",
    )
    finalizer: Finalizing = Field(
        strict=False,
        default=Finalizing.WITH_HOLD,
        description="with-hold: our finalizer goes once the devices are clean or visibly"
        " quarantined; until-verified: only once they are clean.",
    )
    coordinator_qps: float = Field(
        default=100.0,
        gt=0,
        description="Requests per second of the coordinator, on average: five per claim.",
    )
    coordinator_nodes: Annotated[
        tuple[Annotated[str, AfterValidator(_selecting)], ...], AfterValidator(_once)
    ] = Field(
        default=(),
        strict=False,
        description="Label selectors over Nodes (`pool=a`, `pool in (b,c)`), one for each"
        " coordinator that is to run in this Ray: it decides about claims of the nodes it selects"
        " and no others. Each node should be selected once. Empty: one coordinator for all nodes.",
    )
    lost_after_s: float = Field(
        default=3600.0,
        gt=0,
        description="Time, s, a Node object must be gone before its claims' leases are given back:"
        " the node is lost then, and starts as with a lost journal if it returns.",
    )
    publish_period_s: float = Field(
        default=1.0,
        gt=0,
        description="Period, s, in which the node's state is compared with its ResourceSlices; a"
        " write happens only where they differ.",
    )
    resync_period_s: float = Field(
        default=30.0,
        gt=0,
        description="Period, s, after which the slices are read from the API server even if no"
        " watch reported a change.",
    )

    @property
    def admins(self) -> frozenset[str]:
        """Namespaces that may look into devices: whoever asks, asks this (F60)."""
        own = (self.agent_namespace,) if self.agent_namespace else ()
        return frozenset(self.admin_namespaces or own)
