"""Wiring of the coordinator's claims: the reconciler over an API server, a store and nodes.

`fleet.wiring.adapters` opens the coordinator itself. Both hosts use this: the actor with nodes
behind Ray, `fleet coordinate` with the nodes of its host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fleet.control.binding.claim_leases import ClaimLeases
from fleet.control.binding.conditions import RebootConditions
from fleet.control.binding.countersigner import Countersigning, Ends
from fleet.control.binding.coverage import Coverage
from fleet.control.binding.events import Telling
from fleet.control.binding.liveness import Heartbeat
from fleet.control.binding.loop import Follower, Loop, Opener, Reconciling, SideBySide
from fleet.control.binding.object_cache import Cached
from fleet.control.binding.orphans import OrphanLeases
from fleet.control.binding.projection import trimmed, trimmed_node
from fleet.control.binding.quarantine_events import QuarantineNotices
from fleet.control.binding.quarantines import QuarantineLeases
from fleet.control.binding.service import Binder
from fleet.control.binding.shard import Charge, ChargedNodes
from fleet.control.binding.surroundings import BinderTerms, Surroundings
from fleet.control.binding.visibility import Visible
from fleet.control.coordinator import Coordinator
from fleet.control.repair.absence import AbsentNodes
from fleet.control.repair.lost_nodes import Parting
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.labels import selector
from fleet.core.settings import Finalizing
from fleet.evidence import layout
from fleet.evidence.ledger import Ledger, LedgerHead
from fleet.kube import identity
from fleet.kube.base import CLAIMS, NODES, Cluster, Selection
from fleet.kube.claim_holds import Holds
from fleet.kube.cluster import KubernetesCluster
from fleet.kube.events import Events
from fleet.kube.marks import Marks
from fleet.kube.rights import Rights
from fleet.rpc.nodes import DoorNodes, Nodes
from fleet.wiring import adapters
from fleet.wiring.plans import CoordinatorPlan, FleetPlan

COMPONENT = "fleetscrub-coordinator"
"""Who reports the coordinator's events."""


def connect(plan: CoordinatorPlan) -> KubernetesCluster:
    """The API server of the plan, with the coordinator's own budget of requests.

    Raises `SettingsInvalid` without a configuration; sends nothing.
    """
    from fleet.kube import client  # the client library takes 0.3 s to load: only where it is used

    kubernetes = plan.settings.kubernetes
    return client.connect(
        plan.kubeconfig or None,
        qps=kubernetes.coordinator_qps,
        timeout_s=kubernetes.api_timeout_s,
    )


def heartbeat(plan: CoordinatorPlan, loop: Loop) -> Heartbeat:
    """What tells others how the loop of `plan` stands; by a connection of its own, which waits for
    no request of the loop. Without a configuration of the API server nobody is told there."""
    cluster: Cluster | None = None
    with suppress(errors.SettingsInvalid):  # the loop says so
        cluster = connect(plan)
    return Heartbeat(
        loop.view,
        state=Path(plan.state),
        cluster=cluster,
        namespace=plan.settings.store.namespace,
        asked=plan.settings.kubernetes.coordinator_nodes,
    )


def of_host(plan: FleetPlan, kubeconfig: str, selecting: str = "") -> Opener:
    """How the loop opens the coordinator, and the nodes behind the doors of this host.

    `kubeconfig` "": that by which the node's plugin reaches its cluster. `selecting`: label
    selector of the Nodes whose claims it decides about, "" for all. Raises `SettingsInvalid`
    without a configuration of the API server, `ClusterForeign` where it is another cluster's, and
    `InputInvalid` for a selector that is none of those in the settings, before anything is opened.
    """
    chosen = plan_of_host(plan, kubeconfig, selecting)
    _check_selector(chosen)
    cluster = connect(chosen)
    names = [node.node for node in plan.nodes]
    identity.verify(Path(chosen.state), cluster, names)

    def opened() -> Reconciling:
        cluster.require()
        identity.meet(Path(chosen.state), cluster, names)
        coordinator = adapters.open_coordinator(chosen, cluster)
        nodes = DoorNodes({node.node: adapters.open_door(node) for node in plan.nodes})
        # Beside the doors: whoever countersigns reads the ledgers themselves.
        ends = on_disk(Path(chosen.state), names)
        return reconciling(chosen, coordinator, nodes, cluster, ends=ends, closing=(nodes.close,))

    return opened


def plan_of_host(plan: FleetPlan, kubeconfig: str, selecting: str = "") -> CoordinatorPlan:
    """The plan of a coordinator for the nodes of this host; as of `of_host`."""
    return CoordinatorPlan(
        state=plan.coordinator.state,
        settings=plan.nodes[0].settings,  # as recorded by the plugin, which has the same driver
        kubernetes=True,
        kubeconfig=kubeconfig or plan.nodes[0].kubeconfig,
        nodes=selecting,
    )


def _check_selector(plan: CoordinatorPlan) -> None:
    several = plan.settings.kubernetes.coordinator_nodes
    if several and plan.nodes not in several:
        raise errors.InputInvalid(
            f"the settings have a coordinator for each of {', '.join(several)}, and not for"
            f" {plan.nodes or 'all nodes'}",
            remedy="name one of them with --nodes, or change kubernetes.coordinator_nodes",
        )
    if plan.nodes:
        selector(plan.nodes)


def on_disk(state: Path, names: Sequence[str]) -> Ends:
    """The ends of these nodes' ledgers, read on this host; each time only what was added."""
    ledgers = {name: Ledger(layout.ledger_directory(state, name)) for name in names}

    def ends() -> Mapping[str, LedgerHead | errors.FleetError]:
        found: dict[str, LedgerHead | errors.FleetError] = {}
        for name, ledger in ledgers.items():
            try:
                found[name] = ledger.head()
            except errors.FleetError as error:
                found[name] = error
        return found

    return ends


def behind_actors(
    plan: CoordinatorPlan, coordinator: Coordinator, nodes: Nodes, *, ends: Ends | None = None
) -> Reconciling:
    """What the coordinator's actor steps; `ends` of ledgers are countersigned.

    Raises `SettingsInvalid`, `ApiNotFound` where the server does not serve what is needed,
    `ClusterForeign`, and what `Cluster.get` raises: a coordinator has nothing to do without an API
    server.
    """
    cluster = connect(plan)
    cluster.require()
    if Path(plan.state).is_dir():  # with a store at the API it runs on any host
        identity.meet(Path(plan.state), cluster, ())
    return reconciling(plan, coordinator, nodes, cluster, ends=ends)


def reconciling(
    plan: CoordinatorPlan,
    coordinator: Coordinator,
    nodes: Nodes,
    cluster: Cluster,
    *,
    ends: Ends | None = None,
    closing: Sequence[Callable[[], None]] = (),
) -> Reconciling:
    """What the loop steps; it watches nothing before it is started."""
    cluster = rights = Rights(cluster)
    clock, kubernetes = SystemClock(), plan.settings.kubernetes
    driver, marks = kubernetes.driver, Marks(kubernetes.driver)
    kept = Selection(trim=partial(trimmed, marks=marks))
    claims = Cached(cluster, CLAIMS, kept, clock=clock)
    known = Cached(cluster, NODES, Selection(trim=trimmed_node), clock=clock)
    holds = Holds(cluster, marks, clock)
    events = Events(cluster, COMPONENT, clock)
    side_by_side = SideBySide()
    leases = ClaimLeases(coordinator, nodes)
    charge = _charge(plan, known)
    around = Surroundings(
        cluster=cluster,
        leases=leases,
        nodes=nodes,
        holds=holds,
        visible=Visible(cluster, driver),
        tell=Telling(events),
        claims=claims,
        charge=charge,
        each=side_by_side,
    )
    more: dict[str, Follower] = {}
    if ends is not None:
        more["countersignatures"] = Countersigning(coordinator, partial(_own, ends, charge))
    if selectors := kubernetes.coordinator_nodes or ((plan.nodes,) if plan.nodes else ()):
        all_of_them = tuple(map(selector, selectors))
        more["selection of nodes"] = Coverage(nodes, known, all_of_them, events)
    parting = Parting(marks=marks, coordinator=coordinator, cluster=cluster, holds=holds)
    binder = Binder(around, BinderTerms.from_settings(plan.settings))
    lost = AbsentNodes(cluster, known, claims, parting, kubernetes.lost_after_s, charge)
    return Reconciling(
        binder,
        ChargedNodes(nodes, charge),
        coordinator,
        caches=(claims, known),
        followers={
            "quarantine leases": QuarantineLeases(coordinator),
            "conditions of nodes": RebootConditions(cluster, driver, known),
            "notices": QuarantineNotices(events, claims, marks),
            "leases of claims that are gone": OrphanLeases(claims, leases, binder.look),
            "lost nodes": lost,
            **more,
        },
        rights=rights,
        closing=(side_by_side.close, *closing),
    )


def _charge(plan: CoordinatorPlan, known: Cached) -> Charge:
    """What the coordinator of the plan is responsible for; `known`: all Nodes."""
    kubernetes = plan.settings.kubernetes
    return Charge(
        Marks(kubernetes.driver),
        known,
        selector(plan.nodes) if plan.nodes else None,
        until_verified=kubernetes.finalizer is Finalizing.UNTIL_VERIFIED,
        beside=tuple(map(selector, kubernetes.coordinator_nodes)),
    )


def _own(ends: Ends, charge: Charge) -> Mapping[str, LedgerHead | errors.FleetError]:
    """The ends of the ledgers that are this coordinator's to countersign."""
    return {node: end for node, end in ends().items() if charge.has_node(node)}
