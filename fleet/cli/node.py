"""`fleet node`: an operator's decisions about a whole node."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from fleet.cli import reach, text
from fleet.cli.cluster import (
    NAME_IT,
    KubeconfigOption,
    NoClusterOption,
    PolicyOption,
    Surroundings,
    surroundings,
)
from fleet.cli.options import (
    AddressOption,
    OperatorOption,
    StateOption,
    operator_name,
    state_directory,
)
from fleet.cli.output import AsJson, DeviceRow, VerbAnswer, emit, error_console, fields_of
from fleet.cli.standby import standby
from fleet.control.campaign.targets import choose
from fleet.control.coordinator_api import CoordinatorApi
from fleet.control.repair.drain import Drained, counted, drain, settled
from fleet.control.repair.lost_nodes import Forgotten, Parting, forget, life
from fleet.core import errors
from fleet.core.messages import NodeView
from fleet.core.model import HolderKind, State
from fleet.rpc.node_api import NodeApi
from fleet.wiring import adapters

app = typer.Typer(no_args_is_help=True)
LOOK_S = 1.0
"""Period, s, of looking whether the claims of a drained node have gone."""
NodeArgument = Annotated[str, typer.Argument(help="Name of the node.")]
app.command("standby")(standby)


@app.callback()
def node() -> None:
    """Decide about a whole node."""


class NodeAdoptAnswer(VerbAnswer):
    """Devices that an operator vouched for."""

    kind: Literal["node adopt"] = "node adopt"
    operator: str
    simulated: bool
    devices: tuple[DeviceRow, ...]


class DrainAnswer(Drained, VerbAnswer):
    """What a drain did, and what is left."""

    kind: Literal["node drain"] = "node drain"
    simulated: bool


class ForgetAnswer(Forgotten, VerbAnswer):
    """What was given up of a lost node."""

    kind: Literal["node forget"] = "node forget"
    cluster: bool
    """Whether a cluster was asked."""


@app.command("adopt")
def adopt(
    *,
    node: Annotated[
        str | None, typer.Option("--node", help="Only this node; all when not given.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="Only this device, by name or UUID; may be repeated."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="All real devices listed, without asking.")
    ] = False,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Record your word that HELD devices are free of any holder; they are DIRTY then.

    Without --device those that are HELD are listed, and your word covers these; real ones need a
    yes. A retired device comes back only where --device names it.
    """
    who = operator_name(operator)
    with reach.nodes(state_directory(state), address=address) as nodes:
        if node is not None and node not in nodes:
            raise errors.InputInvalid(
                f"there is no node {node!r}", remedy=f"name one of {', '.join(sorted(nodes))}"
            )
        chosen = {name: one for name, one in nodes.items() if node in (None, name)}
        wanted = _named(nodes, device, node) if device else _held(chosen, yes=yes)
        adopted = [
            (name, view)
            for name, uuids in wanted.items()
            for view in nodes[name].adopt(devices=uuids, operator=who)
        ]
        views = [one.view() for one in chosen.values()]

    def render(console: Console) -> None:
        text.banner(console, views)
        for name, view in adopted:
            console.print(Text.assemble(f"{name}/{view.name}: ", text.coloured(view.state)))
        console.print(f"{len(adopted)} devices adopted, recorded for {who}")

    answer = NodeAdoptAnswer(
        operator=who,
        simulated=any(view.simulated for view in views),
        devices=tuple(DeviceRow(**fields_of(view), node=name) for name, view in adopted),
    )
    emit(answer, as_json=as_json, render=render)


def _named(
    nodes: Mapping[str, NodeApi], devices: Sequence[str], node: str | None
) -> dict[str, list[str]]:
    """The devices named, by node. A name that is on several nodes is refused, all of them are."""
    found: dict[str, list[str]] = {}
    for device in devices:
        found.setdefault(reach.owner(nodes, device, node=node), []).append(device)
    return found


def _held(nodes: Mapping[str, NodeApi], *, yes: bool) -> dict[str, list[str]]:
    """The HELD devices of these nodes; real ones once somebody has seen which and said yes."""
    views = [_only_held(one.view()) for one in nodes.values()]
    real = [view for view in views if not view.simulated]
    count, _ = text.listed(error_console(), real)
    if count and not yes:
        if not sys.stdin.isatty():
            raise errors.InputInvalid(
                "these are real devices and nobody can be asked",
                remedy="name them with --device, run from a terminal, or say --yes",
            )
        asked = f"Is it your word that nobody uses these {count} devices? They are wiped next."
        if not typer.confirm(asked, err=True):
            raise errors.InputInvalid(
                "not confirmed: nothing was changed", remedy="name single devices with --device"
            )
    return {view.node: [one.uuid for one in view.devices] for view in views if view.devices}


def _only_held(view: NodeView) -> NodeView:
    held = choose(view, lambda one: one.state == State.HELD and not text.is_retired(view, one))
    return view.model_copy(update={"devices": held})


@app.command("drain")
def drain_node(
    node: NodeArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, in your words.")],
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, help="Seconds to wait for claims and copies of evidence."),
    ] = 0.0,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Give nobody new a device of this node; who has one finishes. Exit code 1: some are left.

    So are certificates that are not in the archive yet, where policy wants them there.
    `fleet quarantine clear` takes devices back into service.
    """
    who = operator_name(operator)
    with reach.nodes(state_directory(state), address=address) as nodes:
        if node not in nodes:
            raise errors.InputInvalid(
                f"there is no node {node!r}", remedy=f"name one of {', '.join(sorted(nodes))}"
            )
        done = drain(nodes[node], detail=reason, operator=who)
        done = settled(nodes[node], done, pause=_until(time.monotonic() + wait))
        view = nodes[node].view()
    emit(
        DrainAnswer.of(done, simulated=view.simulated),
        as_json=as_json,
        render=partial(_show_drained, done, view),
    )
    raise typer.Exit(1 if done.left or done.failed or done.uncopied != 0 else 0)


def _until(deadline: float) -> Callable[[], bool]:
    def pause() -> bool:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(LOOK_S, left_s))
        return True

    return pause


def _show_drained(done: Drained, view: NodeView, console: Console) -> None:
    text.banner(console, [view])
    console.print(
        text.plain(
            f"{done.node}: {len(done.taken)} devices taken out of service by {done.operator}"
        )
    )
    for device, error in done.failed.items():
        console.print(text.plain(f"  {device} could not be: {error}", style="red"))
    for one in done.left:
        place = ", ".join(one.devices)
        state = f" ({one.state})" if one.state else ""
        called = f"{one.name} {one.uid}".strip()
        console.print(text.plain(f"  still there: claim {called}{state} on {place}"))
    if done.uncopied != 0:
        why = f": {done.uncopied_because}" if done.uncopied_because else ""
        told = f"  {counted(done.uncopied)} on it only, not in the archive yet{why}"
        console.print(text.plain(told))
    if not done.left:
        console.print(text.plain("  nobody is left on it"))


@app.command("forget")
def forget_node(
    node: NodeArgument,
    *,
    force: Annotated[
        str,
        typer.Option(
            "--force",
            metavar="TEXT",
            help="Forget a node that still shows life; TEXT is `NODE is lost`, as confirmation.",
            show_default=False,
        ),
    ] = "",
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="UUID of an accelerator it had; where nothing tells."),
    ] = None,
    kubeconfig: KubeconfigOption = None,
    no_cluster: NoClusterOption = False,
    policy: PolicyOption = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Declare a node lost: its claims' leases, holds and finalizers end without its word.

    Refused while its Node object is Ready or it answers. If it comes back, all its devices are
    HELD until they are proven free. Exit code 1 when something could not be given up.
    """
    who = operator_name(operator)
    directory = state_directory(state)
    around = surroundings(
        directory, address=address, kubeconfig=kubeconfig, policy=policy, no_cluster=no_cluster
    )
    if force and force != f"{node} is lost":
        raise errors.InputInvalid(
            f"--force {force!r} is no confirmation", remedy=f"write --force '{node} is lost'"
        )
    if around.unasked and not force:
        raise errors.InputInvalid(
            f"the cluster that {node} belongs to cannot be asked: {around.unasked}",
            remedy=NAME_IT,
        )
    with reach.coordinator(directory, address=address) as coordinator:
        parting = Parting(
            marks=around.marks,
            coordinator=coordinator,
            cluster=around.cluster,
            holds=around.holds,
            devices=frozenset(device or ()),
        )
        if not force:
            _refuse_published(node, coordinator)
            _refuse_alive(node, _life(node, around, address) or life(node, parting))
        done = forget(node, parting, operator=who)
    asked = around.cluster is not None
    emit(
        ForgetAnswer.of(done, cluster=asked),
        as_json=as_json,
        render=partial(_show_forgotten, done, asked=asked),
    )
    raise typer.Exit(1 if done.failed else 0)


def _refuse_published(node: str, coordinator: CoordinatorApi) -> None:
    """A plugin that was killed is missed by nobody before its lease ends: no reason to force."""
    until = [
        lease.expires_at or 0.0
        for lease in coordinator.leases()
        if lease.holder.kind is HolderKind.PUBLISHER and lease.holder.name.startswith(f"{node}/")
    ]
    if until:
        left_s = max(0.0, max(until) - time.time())
        raise errors.InputInvalid(
            f"{node} is not lost: its plugin publishes its devices, or did so of late",
            remedy=f"`fleet node drain {node} --reason WHY`, and stop its plugin; if it was killed,"
            f" wait {left_s:.0f} s (its publisher lease ends), then repeat",
        )


def _refuse_alive(node: str, signs: str) -> None:
    if signs:
        raise errors.InputInvalid(
            f"{node} is not lost: {signs}",
            remedy=f"`fleet node drain {node} --reason WHY`, and stop it; only if it is surely"
            f" gone: --force '{node} is lost'",
        )


def _life(node: str, around: Surroundings, address: str | None) -> str:
    """Who answers for the node; empty: nobody."""
    if address is not None:
        return _life_in_ray(node)
    for plan in around.plans:
        if plan.node == node:
            door = adapters.open_door(plan)
            try:
                return f"{door.pulse().get('owner', 'its owner')} answers for it on this host"
            except errors.FleetError:
                return ""
            finally:
                door.close()
    return ""


def _life_in_ray(node: str) -> str:
    """Asked through the connection that is open: a process has one to Ray."""
    from actors import handles

    for one in handles.find_nodes():
        if one.name == node:
            try:
                one.ping()
            except errors.FleetError:
                return ""
            return "its node actor answers"
    return ""


def _show_forgotten(done: Forgotten, console: Console, *, asked: bool) -> None:
    if not asked:
        console.print(
            text.plain("no cluster was asked: holds and slices were not looked at", "yellow")
        )
    console.print(
        text.plain(
            f"{done.node} is given up, recorded for {done.operator}: {len(done.leases)} leases,"
            f" {len(done.claims)} claims, {len(done.slices)} slices"
        )
    )
    for error in done.failed:
        console.print(text.plain(f"  still there: {error}", style="red"))
    console.print(text.plain("if it comes back, its devices are HELD until proven free"))
