"""On whose ground a manifest is judged: the cluster's parameters of the rules. Pure.

The defaults are those of the chart. The policies carry each of them as a variable of the same name,
so that one place in a cluster's values changes lint and admission alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fleet.core.errors import InputInvalid
from fleet.plugin.configuration import SanitizationConfig

GOVERNED_LABEL = "fleetscrub.dev/governed"
"""Label of a namespace, with the value "true": the policies hold in it."""
DRIVER = "gpu.fleetscrub.dev"
WIPE_BUDGET_S = 30
"""What the API server writes as grace period where a pod says none: a pod need not say it."""
CLUSTER_NAMESPACE = "kube-system"
GRACE_DEFAULT_S = 30
"""Grace period, seconds, that the API server writes where a pod says none."""
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"

CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "NET_ADMIN"),
    *("NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    *("SYS_NICE", "SYS_PTRACE"),
)
"""Of the level `baseline` of Pod Security all but MKNOD, by which a device node can be made; and
those that reach no further than the pod: its memory is locked for RDMA (IPC_LOCK), its network set
up (NET_ADMIN, NET_RAW), its threads placed (SYS_NICE), its processes looked into (SYS_PTRACE)."""
EXTENDED_RESOURCES = (
    *("rdma/", "/efa", "/pod-eni", "nvidia.com/hostdev", "nvidia.com/sriov-nic"),
    *("intel.com/intel_sriov_netdevice", "intel.com/sriov_netdevice", "intel.com/sriov_rdma"),
    *("devices.kubevirt.io/kvm", "devices.kubevirt.io/tun", "devices.kubevirt.io/vhost-net"),
)
"""Networks and virtual machines. A name; all of a domain (``rdma/``); a name in any (``/efa``)."""
HOST_PATHS = ("/etc/localtime",)
CSI_DRIVERS = (
    *("csi.cert-manager.io", "csi.spiffe.io", "gcsfuse.csi.storage.gke.io"),
    "secrets-store.csi.k8s.io",
)
PARAMETERS = tuple(
    sorted(field.alias or name for name, field in SanitizationConfig.model_fields.items())
)
"""Every field our opaque parameters may have."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What the rules need to know of a cluster."""

    driver: str = DRIVER
    """Name of our driver, as slices and opaque parameters carry it."""
    classes: tuple[str, ...] = (DRIVER, "gpu-multi-tenant.fleetscrub.dev")
    """Device classes that select our devices for tenants."""
    agent_classes: tuple[str, ...] = (f"agent.{DRIVER}",)
    """Device classes that select the agent device: it reaches every accelerator of a node."""
    spread_classes: tuple[str, ...] = (DRIVER,)
    """Governed classes whose devices need not share a PCIe root or a NUMA node (C4), and of which
    a claim may want all that a node has (C3)."""
    other_classes: tuple[str, ...] = ()
    """Classes of other drivers that tenants may name, although they sound like accelerators."""
    wipe_budget_s: int = WIPE_BUDGET_S
    """Grace period, seconds, that a pod with claims must at least have (D1)."""
    capabilities: tuple[str, ...] = CAPABILITIES
    """Capabilities that may be added (A5)."""
    extended_resources: tuple[str, ...] = EXTENDED_RESOURCES
    """Extended resources that may be asked for: no accelerators (C1)."""
    host_paths: tuple[str, ...] = HOST_PATHS
    """Paths of the host that may be mounted, read-only (A5)."""
    csi_drivers: tuple[str, ...] = CSI_DRIVERS
    """CSI drivers of which a pod may make a volume by itself (A5)."""
    consumable_capacity: bool = True
    """Whether devices can be allocated more than once here (gate DRAConsumableCapacity): where not,
    classes cannot select by it (C3)."""
    iommu_required: bool = True
    """Whether classes for tenants who must not trust each other ask for an IOMMU group (C4)."""
    requesters: tuple[str, ...] = (
        "system:serviceaccount:fleetscrub:fleet-campaign",
        "system:serviceaccount:fleetscrub:fleet-worker",
    )
    """Users that may tolerate our taints and ask for admin access (B17, B35)."""
    own_namespaces: tuple[str, ...] = ("fleetscrub", CLUSTER_NAMESPACE)
    """Never judged, whatever their labels: ours, and the one the cluster itself lives in."""

    @property
    def near_attributes(self) -> tuple[str, str]:
        """Attributes that tell devices which are near each other."""
        return (PCIE_ROOT, f"{self.driver}/numaNode")

    @property
    def variables(self) -> Mapping[str, Any]:
        """The values under the names that rules in CEL know them by."""
        return {
            "driver": self.driver,
            "wipeBudget": self.wipe_budget_s,
            "capabilities": list(self.capabilities),
            "extendedResources": list(self.extended_resources),
            "hostPaths": list(self.host_paths),
            "csiDrivers": list(self.csi_drivers),
        }

    @classmethod
    def of_driver(cls, driver: str) -> Ground:
        """The defaults of an installation whose driver has another name."""
        return cls(
            driver=driver,
            classes=(driver, f"gpu-multi-tenant.{driver.partition('.')[2] or driver}"),
            agent_classes=(f"agent.{driver}",),
            spread_classes=(driver,),
        )

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Ground:
        """What the chart makes of its values. Raises `InputInvalid` for one of another type."""
        driver = _at(values, ("driver", "name"), str)
        found = cls.of_driver(driver) if driver else cls()
        given = {
            field: value
            for field, (path, kind) in VALUES.items()
            if (value := _at(values, path, kind)) is not None
        }
        return replace(found, **given)


VALUES: Mapping[str, tuple[tuple[str, ...], type]] = {
    "classes": (("admission", "classes"), list),
    "spread_classes": (("admission", "spreadClasses"), list),
    "other_classes": (("admission", "otherClasses"), list),
    "requesters": (("admission", "requesters"), list),
    "capabilities": (("admission", "capabilities"), list),
    "extended_resources": (("admission", "extendedResources"), list),
    "host_paths": (("admission", "hostPaths"), list),
    "csi_drivers": (("admission", "csiDrivers"), list),
    "wipe_budget_s": (("admission", "wipeBudgetSeconds"), int),
    "consumable_capacity": (("featureGates", "DRAConsumableCapacity"), bool),
    "iommu_required": (("deviceClasses", "multiTenant", "requireIommuGroup"), bool),
}
"""Where the chart's values have a field of the ground, and of what type it is."""


def _at(values: Mapping[str, Any], path: tuple[str, ...], kind: type) -> Any:
    """The value at a path, of its type, a list as a tuple; None where nothing is said."""
    found: Any = values
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    if found is None or found == "":
        return None
    is_list = kind is list and isinstance(found, list)
    if is_list and all(isinstance(one, str) for one in found):
        return tuple(found)
    if kind is not list and type(found) is kind:
        return found
    wanted = {list: "a list of texts", int: "a whole number", bool: "true or false"}
    raise InputInvalid(
        f"{'.'.join(path)} is not {wanted.get(kind, 'a text')}",
        remedy="correct it, as `helm install` would demand too",
    )


def told(text: str, ground: Ground) -> str:
    """A text of the table with the cluster's own values in it."""
    for mark, value in marks(ground).items():
        text = text.replace(mark, value)
    return text


def marks(ground: Ground) -> Mapping[str, str]:
    """What stands in texts of the table for a value of the cluster, and the value as a text."""
    return {
        "<driver>": ground.driver,
        "<budget>": str(ground.wipe_budget_s),
        "<capabilities>": ", ".join(ground.capabilities) or "none",
        "<host paths>": ", ".join(ground.host_paths) or "none",
        "<csi drivers>": ", ".join(ground.csi_drivers) or "none",
    }
