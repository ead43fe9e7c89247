"""The cluster a verb may ask, and the settings it goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.core import errors
from fleet.core.profiles import Profile
from fleet.core.settings import Settings
from fleet.wiring import plans as wiring_plans
from fleet.wiring.plans import NodePlan

if TYPE_CHECKING:
    from fleet.control.binding.liveness import Signs
    from fleet.kube.base import Cluster
    from fleet.kube.claim_holds import Holds
    from fleet.kube.marks import Marks

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        envvar="FLEET_KUBECONFIG",
        help="The cluster to ask. Not given: the one this host's node plugin serves, if any.",
        show_default=False,
    ),
]
NoClusterOption = Annotated[
    bool,
    typer.Option("--no-cluster", help="This fleet serves no cluster: there is none to look at."),
]
POLICY = "FLEET_POLICY"
NAME_IT = "name it with --kubeconfig FILE, or say --no-cluster where the fleet serves none"
SIGNS_S = 5.0
"""Time, s, an answer about the coordinator may take."""
UNKNOWN = "through --address it is not known which it is, if any"
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        envvar=POLICY,
        help="Settings (TOML or JSON) that name the driver, where no fleet of this host does.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a verb acts. `plans`: nodes whose files are here; `cluster` None: none is asked."""

    plans: tuple[NodePlan, ...]
    settings: Settings
    cluster: Cluster | None
    unasked: str = ""
    """Why the cluster that is served cannot be asked; "" where one is, or none is served."""

    @property
    def state(self) -> Path | None:
        """The state directory, where the nodes are of this host."""
        return Path(self.plans[0].state) if self.plans else None

    @property
    def has_waiting(self) -> bool:
        """Whether pods of this host's nodes wait for a coordinator."""
        return is_awaited(self.plans)

    @property
    def marks(self) -> Marks:
        """Our names on claims."""
        from fleet.kube.marks import Marks

        return Marks(self.settings.kubernetes.driver)

    @property
    def holds(self) -> Holds | None:
        """What takes our marks off claims."""
        from fleet.core.clock import SystemClock
        from fleet.kube.claim_holds import Holds

        return None if self.cluster is None else Holds(self.cluster, self.marks, SystemClock())


def is_awaited(plans: Sequence[NodePlan]) -> bool:
    """Whether pods of these nodes wait for a coordinator."""
    return any(plan.kubernetes and plan.settings.profile is Profile.STRICT for plan in plans)


def settings_of(policy: Path | None) -> Settings:
    """Those of a file; the defaults where none is named."""
    from fleet.core import settings_file

    return settings_file.load(policy) if policy is not None else Settings()


def coordinator_signs(
    plans: Sequence[NodePlan],
    *,
    address: str | None,
    kubeconfig: Path | None,
    policy: Path | None = None,
) -> tuple[Signs, bool]:
    """What the coordinator says of itself, and whether pods wait for one.

    It is read at the API server that `kubeconfig` names, else at that of `plans`; without either
    its actor is asked, in the Ray at `address`. Raises `RayUnavailable` where that is away.
    """
    from fleet.control.binding.liveness import Signs, read

    if kubeconfig is None and address is not None:
        from fleet.cli import reach

        found = reach.signs(address)
        return found, found.found is not None or bool(found.unknown)
    if kubeconfig is None and not any(plan.kubernetes for plan in plans):
        return Signs(), False
    from fleet.kube import client

    settings = plans[0].settings if plans and policy is None else settings_of(policy)
    named = str(kubeconfig) if kubeconfig is not None else plans[0].kubeconfig or None
    kubernetes = settings.kubernetes
    timeout_s = min(kubernetes.api_timeout_s, SIGNS_S)
    awaited = is_awaited(plans) or not plans
    try:
        cluster = client.connect(named, qps=kubernetes.api_qps, timeout_s=timeout_s)
    except errors.FleetError as error:
        return Signs(unknown=str(error)), awaited
    return read(cluster, settings.store.namespace), awaited


def surroundings(
    directory: Path,
    *,
    address: str | None,
    kubeconfig: Path | None,
    policy: Path | None = None,
    no_cluster: bool = False,
) -> Surroundings:
    """Read the fleet's plan, and open the cluster named, else that of this host's node plugin.

    `policy`: the settings of a fleet that is elsewhere. `no_cluster`: the operator's word that it
    serves none; without it a fleet that is elsewhere may serve one that is not asked.

    Raises `DriverAbsent` without a fleet, `ClusterForeign` where the cluster is not the one that
    the fleet belongs to, `InputInvalid` where the operator's word is not true, and where a cluster
    was named what `fleet.wiring.plugin.open_cluster` raises.
    """
    from fleet.kube import identity
    from fleet.wiring import plugin

    plans = () if address is not None else wiring_plans.plan_fleet(directory).nodes
    settings = settings_of(policy)
    plan = plans[0] if plans else NodePlan(node="none", state=str(directory), settings=settings)
    if no_cluster and (kubeconfig is not None or any(one.kubernetes for one in plans)):
        raise errors.InputInvalid(
            "--no-cluster is said of a fleet that serves one", remedy="leave --no-cluster out"
        )
    cluster: Cluster | None = None
    unasked = UNKNOWN if address is not None and not no_cluster else ""
    if kubeconfig is not None:
        if not kubeconfig.is_file():
            raise errors.InputInvalid(
                f"{kubeconfig} is no file", remedy="name a kubeconfig with --kubeconfig"
            )
        cluster, unasked = plugin.open_cluster(plan, str(kubeconfig)), ""
    elif plan.kubernetes:
        try:
            cluster = plugin.open_cluster(plan, plan.kubeconfig or None)
        except errors.FleetError as error:  # the verb says so, and what it could not look at
            unasked = str(error)
    if cluster is not None and plans:
        identity.verify(directory, cluster, [one.node for one in plans])
    return Surroundings(plans, plan.settings, cluster, unasked)
