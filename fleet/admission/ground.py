"""On whose ground a manifest is judged: the cluster's parameters of the rules. Pure.

The defaults are those of the chart. The policies carry each of them as a variable of the same name,
so that one place in a cluster's values changes lint and admission alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.dra.configuration import SanitizationConfig

GOVERNED_LABEL = "fleetscrub.dev/governed"
"""Label of a namespace, with the value "true": the policies hold in it."""
DRIVER = "gpu.fleetscrub.dev"
WIPE_BUDGET_S = 60
CLUSTER_NAMESPACE = "kube-system"
GRACE_DEFAULT_S = 30
"""Grace period, seconds, that the API server writes where a pod says none."""
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"

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
    spread_classes: tuple[str, ...] = ()
    """Governed classes whose devices need not share a PCIe root or a NUMA node (C4)."""
    wipe_budget_s: int = WIPE_BUDGET_S
    """Grace period, seconds, that a pod with claims must at least have (D1)."""
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

    @classmethod
    def of_driver(cls, driver: str) -> Ground:
        """The defaults of an installation whose driver has another name."""
        return cls(
            driver=driver,
            classes=(driver, f"gpu-multi-tenant.{driver.partition('.')[2] or driver}"),
            agent_classes=(f"agent.{driver}",),
        )


def told(text: str, ground: Ground) -> str:
    """A text of the table with the cluster's own values in it."""
    return text.replace("<driver>", ground.driver).replace("<budget>", str(ground.wipe_budget_s))
