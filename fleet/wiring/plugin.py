"""Wiring of what stands around a node on Kubernetes: the plugin's domain and the standby.

`fleet.wiring.adapters` opens the node itself. Nothing here touches a device.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.control.coordinator_absence import COMPONENT, Uncoordinated
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.disk import own_directory
from fleet.core.profiles import Profile
from fleet.core.settings import Finalizing, Settings, Unexposed
from fleet.evidence import layout
from fleet.kube import identity
from fleet.kube.base import Cluster
from fleet.kube.claim_holds import Holds
from fleet.kube.cluster import KubernetesCluster
from fleet.kube.events import Events
from fleet.kube.marks import Marks
from fleet.node import kubelet_checkpoint
from fleet.node.standby import Patience, Standby
from fleet.plugin.agent_device import Agents
from fleet.plugin.claims import ClaimServing, Seat
from fleet.plugin.holds import Marking, MarkingRules
from fleet.plugin.orphans import Orphans
from fleet.plugin.reconciler import HealthShown, Keeper
from fleet.plugin.retries import Waiting, leaving
from fleet.plugin.slices.exclusivity import Exclusivity, HostLocks
from fleet.plugin.slices.instances import PublishingInstance
from fleet.plugin.slices.publisher import Publisher, PublisherTerms
from fleet.plugin.slices.publisher_lease import SHARED_TTL_S, TTL_S, StoreLease
from fleet.plugin.tags_claim import Isolation
from fleet.plugin.tags_file import TagKeyFile
from fleet.rpc.node_api import NodeApi
from fleet.stores.factory import StorePlace
from fleet.stores.late import LateStore
from fleet.wiring import adapters
from fleet.wiring.adapters import NodePlan

LOG = logging.getLogger(__name__)


START_S = 2.0
"""Time, s, a start waits for the API server, whatever it asks there: kubelet is let in then."""


def open_cluster(plan: NodePlan, kubeconfig: str | None) -> Cluster:
    """The API server of `kubeconfig`; None: of the pod we run in, else the user's default.

    One that does not answer now is taken as it is. Raises `SettingsInvalid`, and `ApiNotFound` or
    `ApiForbidden` when it does not serve what is needed.
    """
    found = _connected(plan, kubeconfig)
    try:
        found.require()
    except (errors.ApiUnavailable, errors.ApiFailed) as error:
        LOG.warning("started without the API server: %s", error)
    return found


def reach_cluster(plan: NodePlan, kubeconfig: str | None, state: Path) -> tuple[Cluster, bool]:
    """As `open_cluster`, for a plugin's start, and whether the server has answered soon.

    Claims are torn down without it, and a plugin that waited would leave their pods waiting. Raises
    `ClusterForeign` too, where it is not the one that `state` belongs to.
    """
    found = _connected(plan, kubeconfig)

    def ask() -> None:
        found.require()
        identity.verify(state, found, [plan.node])  # before anything is written down

    return found, answered(ask)


def _connected(plan: NodePlan, kubeconfig: str | None) -> KubernetesCluster:
    from fleet.kube import client  # the client library takes 0.3 s to load: only where it is used

    kubernetes = plan.settings.kubernetes
    return client.connect(kubeconfig, qps=kubernetes.api_qps, timeout_s=kubernetes.api_timeout_s)


def answered(ask: Callable[[], object]) -> bool:
    """Whether the API server answered `ask` within `START_S`. Raises what `ask` does, but where
    the server is away."""
    found: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            ask()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            found.put(error)
        else:
            found.put(None)

    threading.Thread(target=run, name="start", daemon=True).start()
    try:
        error = found.get(timeout=START_S)
    except queue.Empty:
        LOG.warning("started without the API server: no answer in %g s", START_S)
        return False
    if isinstance(error, errors.ApiUnavailable | errors.ApiFailed):
        LOG.warning("started without the API server: %s", error)
        return False
    if error is not None:
        raise error
    return True


@dataclass(frozen=True, slots=True)
class PluginParts:
    """What the node plugin is made of besides its servers."""

    serving: ClaimServing
    marking: Marking
    orphans: Orphans
    publisher: PublishingInstance
    store: LateStore


def plugin_parts(plan: NodePlan, cluster: Cluster, node: NodeApi) -> PluginParts:
    """The plugin's domain over a cluster and a node, whoever owns it. Touches no device."""
    settings, clock = plan.settings, SystemClock()
    kubernetes = settings.kubernetes
    directory = layout.node_directory(Path(plan.state), plan.node)
    seat = Seat(driver=kubernetes.driver, node=plan.node, pool=plan.node)
    agents = _agents(plan, directory) if kubernetes.agent_namespace else None
    # `adapters.begin` has made the store at first use: one that is missing now is away, not new.
    place = StorePlace(settings, Path(plan.state), plan.kubeconfig)
    store = LateStore(place.opener(clock, expected=lambda: True, cluster=cluster))
    run = adapters.run_directory(plan)
    exclusivity = Exclusivity(
        locks=HostLocks(run / "publishers"),
        lease=StoreLease(
            store,
            f"{plan.node}/{kubernetes.driver}",
            SHARED_TTL_S if place.shared else TTL_S,
        ),
    )
    terms = PublisherTerms.from_settings(settings, node=plan.node, agent=agents is not None)
    terms = replace(terms, terms=replace(terms.terms, simulated=plan.simulated is not None))
    marking = Marking(
        node,
        Holds(cluster, Marks(kubernetes.driver), clock),
        MarkingRules(settings.profile, kubernetes.finalizer is Finalizing.UNTIL_VERIFIED),
        clock,
    )
    return PluginParts(
        marking=marking,
        serving=ClaimServing(
            seat=seat,
            node=node,
            cluster=cluster,
            waiting=Waiting(clock, time.sleep, leaving(node)),
            clock=clock,
            policy=settings.wipe,
            checkpoint=Path(kubernetes.kubelet_root) / kubelet_checkpoint.NAME,
            agents=agents,
            marking=marking,
            isolation=isolation_of(settings),
            budget_s=kubernetes.budget_s,
        ),
        orphans=Orphans(seat, node, cluster, agents, marking),
        publisher=PublishingInstance(
            Publisher(cluster, terms, exclusivity=exclusivity),
            HostLocks(run / "publishers"),
            f"pool-{plan.node}-{kubernetes.driver}",
        ),
        store=store,
    )


def isolation_of(settings: Settings) -> Isolation:
    """What claims must show, as the settings have it."""
    admission = settings.admission
    found = (
        TagKeyFile(Path(admission.tag_keys), admission.tag_roots) if admission.tag_keys else None
    )
    return Isolation(
        driver=settings.kubernetes.driver,
        required=admission.required,
        keys=found.keys if found is not None else None,
    )


def keeper(plan: NodePlan, node: NodeApi, parts: PluginParts, show: HealthShown) -> Keeper:
    """What keeps API, kubelet and node of one mind, over the parts of a plugin."""
    evicts = plan.settings.kubernetes.unexposed is Unexposed.TAINT
    return Keeper(
        node,
        parts.publisher,
        show,
        marking=parts.marking,
        unexposed=parts.serving.unexposed if evicts else None,
    )


def uncoordinated(plan: NodePlan, cluster: Cluster) -> Uncoordinated | None:
    """What tells claims that wait for a coordinator; None where none does for this node."""
    if plan.settings.profile is not Profile.STRICT:
        return None
    clock = SystemClock()
    return Uncoordinated(
        cluster=cluster,
        marks=Marks(plan.settings.kubernetes.driver),
        namespace=plan.settings.store.namespace,
        node=plan.node,
        events=Events(cluster, COMPONENT, clock),
        clock=clock,
    )


def _agents(plan: NodePlan, directory: Path) -> Agents:
    backend = adapters.backend_of(plan, directory)
    specs = adapters.specs_of(plan, directory)
    namespace = plan.settings.kubernetes.agent_namespace
    return Agents(directory / "agents", specs, backend.agent_grant, namespace)


def write_plan(plan: NodePlan) -> Path:
    """The plan as a file for child processes, complete or not at all; its path."""
    directory = layout.node_directory(Path(plan.state), plan.node)
    path = directory / "plan.json"
    temporary = path.with_suffix(".tmp")
    try:
        own_directory(directory)
        temporary.write_text(plan.model_dump_json(indent=2))
        temporary.replace(path)
    except OSError as error:
        raise errors.InputInvalid(
            f"{path} cannot be written: {error}",
            remedy="free space or repair access to the state directory, then start again",
        ) from error
    return path


def read_plan(path: Path) -> NodePlan:
    """The plan in a file that `write_plan` wrote. Raises `InputInvalid`."""
    try:
        return NodePlan.model_validate_json(path.read_text())
    except (OSError, ValueError) as error:
        raise errors.InputInvalid(
            f"{path} is no plan of a node: {error}",
            remedy="name the plan.json that the node plugin wrote in the node's state directory",
        ) from error


def open_standby(plan: NodePlan, patience: Patience | None = None) -> Standby:
    """The standby of a node; it owns nothing before its first steps."""
    return Standby(
        open=lambda hand_over: adapters.open_node(plan, owner="standby", hand_over=hand_over),
        door=adapters.open_door(plan),
        lock=adapters.lock_path(plan),
        clock=SystemClock(),
        patience=patience or Patience(),
        told=adapters.door_path(plan),
    )
