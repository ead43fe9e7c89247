"""`fleet claim`: allocate a claim by ourselves, and what there is to say about one."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from fleet.cli import receipt, text
from fleet.cli.cluster import KubeconfigOption, PolicyOption, settings_of, surroundings
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.cli.receipt import receipts
from fleet.control.binding.explanation import ClaimStory
from fleet.control.binding.receipt import ClaimReceipt
from fleet.control.coordinator_api import CoordinatorApi
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Finding, Message, NodeView
from fleet.core.model import Holder, Lease
from fleet.core.settings import KubernetesSettings, Settings
from fleet.kube.base import CLAIMS, PODS, Cluster, Name, uid_of
from fleet.rpc.nodes import DoorNodes
from fleet.stores.base import Release
from fleet.wiring import adapters
from fleet.wiring.plans import CoordinatorPlan, NodePlan

if TYPE_CHECKING:
    from fleet.control.binding.allocator import Allocated
    from fleet.control.binding.claim_leases import ClaimLeases
    from fleet.control.binding.decisions import PodFact
    from fleet.kube.claim import ClaimReading
    from fleet.rpc.nodes import Nodes

app = typer.Typer(no_args_is_help=True)
DRIVER = KubernetesSettings().driver

ClaimArgument = Annotated[
    str, typer.Argument(metavar="NAMESPACE/NAME", help="The claim, by namespace and name.")
]


@app.callback()
def claim() -> None:
    """Allocate claims where no scheduler does, and explain them."""


class BoundDevice(Message):
    """A device of a claim."""

    request: str
    device: str


class BindAnswer(VerbAnswer):
    """A claim that is allocated and whose devices are proven."""

    kind: Literal["claim bind"] = "claim bind"
    namespace: str
    name: str
    uid: str
    already: bool
    """Whether it was so before, and nothing was done."""
    token: str
    node: str
    devices: tuple[BoundDevice, ...]
    certificates: tuple[str, ...]
    tried: tuple[str, ...]
    """Earlier choices, with why they came to nothing."""


class ReceiptsAnswer(VerbAnswer):
    """What claims themselves say."""

    kind: Literal["claim receipts"] = "claim receipts"
    claims: tuple[ClaimReceipt, ...]


class ClaimStoryAnswer(ClaimStory, VerbAnswer):
    """What API, store and node say of a claim."""

    kind: Literal["claim show"] = "claim show"


@app.command("bind")
def bind(
    claim: ClaimArgument,
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds the devices have to get ready.")
    ] = 600.0,
    kubeconfig: KubeconfigOption = None,
    policy: PolicyOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Choose devices, wipe and check them, and allocate the claim; all of it or nothing."""
    # The library of selectors takes 0.2 s to load: only where it is used.
    from fleet.control.binding.allocator import Allocator, AllocatorTerms
    from fleet.kube.marks import Marks

    name = _name(claim)
    where = _Where(state_directory(state), address, kubeconfig, policy)
    with _desk(where) as desk:
        allocator = Allocator(
            desk.cluster,
            desk.leases,
            desk.nodes,
            terms=AllocatorTerms(
                marks=Marks(desk.settings.kubernetes.driver),
                fresh_s=desk.settings.health.fresh_s,
                wipe=desk.settings.wipe,
                wait_s=timeout,
            ),
            clock=SystemClock(),
            sleep=time.sleep,
        )
        found = allocator.allocate(name)
    emit(_answer(found), as_json=as_json, render=partial(_render_bound, found))


@app.command("show")
def show(
    claim: Annotated[
        str | None,
        typer.Argument(metavar="[NAMESPACE/NAME]", help="The claim, by namespace and name."),
    ] = None,
    *,
    pod: Annotated[
        str,
        typer.Option(
            "--pod",
            metavar="NAMESPACE/POD",
            help="The receipts of this pod's claims instead.",
            show_default=False,
        ),
    ] = "",
    only_receipt: Annotated[
        bool,
        typer.Option("--receipt", help="What the claim itself says, with a tenant's rights."),
    ] = False,
    driver: Annotated[
        str,
        typer.Option(
            "--driver",
            metavar="NAME",
            help=f"Name of the driver, for receipts; else that of --policy, or {DRIVER}.",
            show_default=False,
        ),
    ] = "",
    kubeconfig: KubeconfigOption = None,
    policy: PolicyOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """What API, store and node say of a claim, what is missing, and which command decides.

    With --pod or --receipt, and where this host has no fleet: the receipt alone, which needs `get`
    on claims (and pods) of that namespace and nothing else. Exit code 0.
    """
    if (claim is None) is not bool(pod):
        raise errors.InputInvalid(
            "both a claim and a pod are named" if pod else "neither a claim nor a pod is named",
            remedy="write NAMESPACE/NAME of the claim, or --pod NAMESPACE/POD",
        )
    if pod or only_receipt or (address is None and state is None and not _has_fleet()):
        found = receipts(
            receipt.connected(kubeconfig),
            claim=_name(claim) if claim else None,
            pod=_name(pod, "pod") if pod else None,
            driver=driver or settings_of(policy).kubernetes.driver,
        )
        answer = ReceiptsAnswer(claims=tuple(found))
        emit(answer, as_json=as_json, render=lambda console: receipt.render(console, found))
        return
    where = _Where(state_directory(state), address, kubeconfig, policy)
    story = _story(_name(claim or ""), where)
    emit(ClaimStoryAnswer.of(story), as_json=as_json, render=partial(_render_story, story))


def _has_fleet() -> bool:
    """Whether this host's usual state directory is that of a fleet."""
    try:
        return bool(adapters.plan_fleet(state_directory(None)).nodes)
    except errors.FleetError:
        return False


def _story(name: Name, where: _Where) -> ClaimStory:
    from fleet.control.binding import liveness, pledge
    from fleet.control.binding.explanation import explain, operations
    from fleet.control.binding.surroundings import BinderTerms
    from fleet.kube import claim_status
    from fleet.kube.claim import read

    now = time.time()
    with _desk(where) as desk:
        rules = BinderTerms.from_settings(desk.settings).rules
        marks = rules.marks
        reading = read(desk.cluster.get(CLAIMS, name), marks)
        pledged = pledge.read(reading.raw, marks)
        rights = desk.leases.pledges({reading.uid: pledged.owner} if pledged else {})
        leases = desk.leases.by_claim([reading.uid]).get(reading.uid, ())
        view = _view(desk, reading.nodes)
        if view is not None:
            view = _view(desk, reading.nodes, operations(reading, view, leases))
        besides = [] if view is None else _on_units(desk.coordinator, reading, view)
        story = explain(
            reading,
            view,
            list(dict.fromkeys([*leases, *rights.values(), *besides])),
            list(_pods(desk.cluster, reading)),
            rules=rules,
            now=now,
        )
        if spelled := claim_status.told(desk.cluster, name, reading.uid):
            detail, _, remedy = spelled.partition(" — ")
            found = Finding(check="parameters", verdict="fail", detail=detail, remedy=remedy)
            story = story.model_copy(update={"missing": (*story.missing, found)})
        awaited = reading.gated and not reading.bound and not reading.failed
        signs = liveness.read(desk.cluster, desk.settings.store.namespace)
        trouble = tuple(liveness.told(signs, time.time(), awaited=awaited))
        return story.model_copy(update={"coordinator_trouble": trouble})


# --- what the verbs need ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Desk:
    """A cluster, the nodes and their leases."""

    cluster: Cluster
    nodes: Nodes
    leases: ClaimLeases
    settings: Settings
    coordinator: CoordinatorApi
    state: Path | None
    """The state directory, where the nodes are of this host."""


@dataclass(frozen=True, slots=True)
class _Granting:
    """The coordinator's leases, wherever it runs."""

    coordinator: CoordinatorApi

    def acquire(self, requests: Sequence[AcquireRequest]) -> list[Lease | errors.FleetError]:
        return list(self.coordinator.acquire(requests))

    def release_all(self, releases: Sequence[Release]) -> list[bool | errors.FleetError]:
        return list(self.coordinator.release_all(releases))

    def leases(self, holder: Holder | None = None) -> Sequence[Lease]:
        found = self.coordinator.leases()
        return [lease for lease in found if holder is None or lease.holder == holder]

    def held_by(self, holders: Collection[Holder]) -> Sequence[Lease]:
        return [lease for lease in self.coordinator.leases() if lease.holder in holders]


@dataclass(frozen=True, slots=True)
class _Where:
    """As the options of a verb name it."""

    directory: Path
    address: str | None
    kubeconfig: Path | None
    policy: Path | None


@contextmanager
def _desk(where: _Where) -> Iterator[_Desk]:
    from fleet.control.binding.claim_leases import ClaimLeases

    around = surroundings(
        where.directory,
        address=where.address,
        kubeconfig=where.kubeconfig,
        policy=where.policy,
    )
    cluster = around.cluster
    if cluster is None:
        raise errors.InputInvalid(
            f"no cluster can be asked for claims{f': {around.unasked}' if around.unasked else ''}",
            remedy="name one with --kubeconfig FILE",
        )
    with ExitStack() as stack:
        if where.address is not None:
            nodes, coordinator = _behind_ray(where.address, stack)
        else:
            nodes, coordinator = _of_host(around.plans, cluster, where.kubeconfig, stack)
        leases = ClaimLeases(_Granting(coordinator), nodes)
        yield _Desk(cluster, nodes, leases, around.settings, coordinator, around.state)


def _of_host(
    plans: Sequence[NodePlan], cluster: Cluster, kubeconfig: Path | None, stack: ExitStack
) -> tuple[Nodes, CoordinatorApi]:
    """The nodes of this host behind their doors, and the store its plugins use."""
    nodes = DoorNodes({plan.node: adapters.open_door(plan) for plan in plans})
    stack.callback(nodes.close)
    chosen = CoordinatorPlan(
        state=plans[0].state,
        settings=plans[0].settings,
        kubernetes=True,
        kubeconfig=str(kubeconfig or plans[0].kubeconfig),
    )
    return nodes, adapters.open_coordinator(chosen, cluster)


def _behind_ray(address: str, stack: ExitStack) -> tuple[Nodes, CoordinatorApi]:
    from actors import cluster, handles
    from actors.nodes import RayNodes

    stack.callback(cluster.attach(address).close)
    return RayNodes(), handles.find_coordinator()


def _name(told: str, kind: str = "claim") -> Name:
    namespace, slash, name = told.partition("/")
    if not (slash and namespace and name) or "/" in name:
        raise errors.InputInvalid(
            f"{told!r} names no {kind}", remedy="write it as NAMESPACE/NAME, like tenant/gpu"
        )
    return Name(name, namespace)


def _view(desk: _Desk, names: Sequence[str], asked: Sequence[str] = ()) -> NodeView | None:
    """The claim's node; None: it does not answer, or there is none."""
    answers = desk.nodes.views(dict.fromkeys(names, tuple(asked)))
    return next((one for one in answers.values() if isinstance(one, NodeView)), None)


def _on_units(coordinator: CoordinatorApi, reading: ClaimReading, view: NodeView) -> list[Lease]:
    """Whatever the store says about the claim's devices."""
    from fleet.control.binding.claim_facts import devices_of

    found = devices_of(view, reading.holding).values()
    units = {unit for device in found if device is not None for unit in device.units}
    return [lease for lease in coordinator.leases() if not lease.units.isdisjoint(units)]


def _pods(cluster: Cluster, reading: ClaimReading) -> Iterator[PodFact]:
    from fleet.control.binding.decisions import PodFact

    for pod in reading.pods:
        try:
            found = cluster.get(PODS, Name(pod.name, reading.name.namespace))
        except errors.ApiNotFound:
            continue
        if uid_of(found) == pod.uid:
            bound = bool((found.get("spec") or {}).get("nodeName"))
            yield PodFact(pod.name, pod.uid, bound, "deletionTimestamp" in found["metadata"])


# --- printing --------------------------------------------------------------------------------


def _answer(found: Allocated) -> BindAnswer:
    reading = found.reading
    return BindAnswer(
        namespace=reading.name.namespace,
        name=reading.name.name,
        uid=reading.uid,
        already=found.already,
        token=str(found.token),
        node=", ".join(reading.nodes),
        devices=tuple(
            BoundDevice(request=one.request, device=one.device) for one in reading.devices
        ),
        certificates=tuple(found.certificates),
        tried=tuple(found.tried),
    )


def _render_bound(found: Allocated, console: Console) -> None:
    reading = found.reading
    word = "was bound already" if found.already else "bound"
    console.print(text.plain(f"{reading.name}: {word} under token {found.token}"))
    for one in reading.devices:
        console.print(text.plain(f"  {one.request}: {one.node}/{one.device}"))
    for tried in found.tried:
        console.print(text.plain(f"  not {tried}", style="yellow"))


def _render_story(story: ClaimStory, console: Console) -> None:
    lines = {
        "claim": f"{story.namespace}/{story.name} ({story.uid})",
        "allocation": _allocation(story),
        "reserved for": ", ".join(story.pods) or "nobody",
        "hold": "yes" if story.held else "no",
        "finalizer": "yes" if story.finalizer else "no",
        "lease": ", ".join(story.leases) or "none",
        "node": _of_node(story),
        "coordinator": story.coordinator,
    }
    for name, value in lines.items():
        console.print(text.plain(f"{name:>12}: {value}"))
    for one in story.devices:
        said = ", ".join(f"{kind}={value}" for kind, value in one.conditions.items())
        console.print(
            text.joined(
                f"  {one.node}/{one.device}: ",
                text.coloured(one.state or "unknown"),
                f" {said or 'no condition'}, certified under {one.certified_under or '?'}",
            )
        )
    for why in story.coordinator_trouble:
        console.print(text.joined(("coordinator: ", "yellow"), why))
    for found in story.missing:
        console.print(text.joined(("missing: ", "yellow"), f"{found.check}: {found.detail}"))
        console.print(text.plain(f"    do: {found.remedy}"))


def _of_node(story: ClaimStory) -> str:
    if not story.node:
        return "-"
    known = story.record or ("no record" if story.node_answers else "unknown, it does not answer")
    return f"{story.node}: {known}"


def _allocation(story: ClaimStory) -> str:
    if not story.allocated:
        return "none" if story.allocating_until is None else "under way"
    if not story.gated:
        return "yes, nobody waits for conditions"
    if story.failed:
        return "failed"
    return "bound" if story.bound else "conditions pending"
