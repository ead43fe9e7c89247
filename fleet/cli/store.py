"""`fleet store`: make the lease store, or adopt one whose history is in doubt.

Both act on the file or the API object itself, so that they work while no coordinator runs; one that
runs sees the change with its next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.text import Text

from fleet import errors, settings_file
from fleet.cli import reach
from fleet.cli.options import (
    AddressOption,
    OperatorOption,
    StateOption,
    operator_name,
    state_directory,
)
from fleet.cli.output import AsJson, emit
from fleet.clock import SystemClock
from fleet.messages import Message, NodeView, TokenText
from fleet.model import NO_TOKEN, Token
from fleet.planning import plan_fleet
from fleet.settings import Settings
from fleet.stores.opening import StorePlace, Stores
from fleet.stores.sqlite import store_path

PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Settings (TOML or JSON) whose `store` is meant; those of the state directory's plugin"
        " when not given.",
        show_default=False,
    ),
]
KubeconfigOption = Annotated[
    str,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="API server of a store on Kubernetes; the pod's own, else the user's when not given.",
        show_default=False,
    ),
]

app = typer.Typer(no_args_is_help=True)


@app.callback()
def store() -> None:
    """Make or adopt the lease store of this host or cluster."""


@app.command("init")
def init(
    *,
    policy: PolicyOption = None,
    kubeconfig: KubeconfigOption = "",
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Make the store and mint its epoch; a store that exists is left as it is."""
    place = _place(state_directory(state), policy, kubeconfig)
    with closing(place.open(SystemClock())) as stores:
        made = not stores.initialised
        newest = stores.leases.init()

    def render(console: Console) -> None:
        what = "made" if made else "exists already, nothing was changed"
        console.print(
            Text(f"store {place.named}: {what}; epoch {newest.epoch}, last token {newest}")
        )

    document = {
        "store": place.named,
        "made": made,
        "epoch": newest.epoch,
        "newest": str(newest),
    }
    emit(document, as_json=as_json, render=render)


@app.command("adopt")
def adopt(
    *,
    at_least: Annotated[
        str | None,
        typer.Option(
            "--at-least",
            metavar="TOKEN",
            help="A token the nodes have seen; the floor that suspended the store when not given.",
            show_default=False,
        ),
    ] = None,
    nodes_only: Annotated[
        bool,
        typer.Option(
            "--nodes-only",
            help="Only have the nodes reached follow the store's epoch: for the other hosts of a"
            " cluster once its store was adopted.",
        ),
    ] = False,
    operator: OperatorOption = None,
    policy: PolicyOption = None,
    kubeconfig: KubeconfigOption = "",
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a restored or moved store, under a new epoch above all tokens known.

    The nodes reached are told to follow it. Do it once no other copy of the store is in use: two
    stores that grant are two owners.
    """
    floor = _token(at_least)
    who = operator_name(operator)
    directory = state_directory(state)
    place = _place(directory, policy, kubeconfig)
    with closing(_existing(place)) as stores:
        # First the store: nodes and coordinator of a moved one cannot even be opened before.
        if not nodes_only:
            stores.leases.adopt(floor, who)
        try:
            with reach.nodes(directory, address=address) as nodes:
                adoption = follow(stores, nodes, who, nodes_only=nodes_only)
        except errors.DriverAbsent:
            # No fleet here: a store alone on its host, or a cluster whose nodes are elsewhere.
            adoption = follow(stores, {}, who, unreached=_ELSEWHERE if place.shared else "")
        except errors.FleetError as error:
            adoption = follow(stores, {}, who, unreached=str(error))
    emit(adoption, as_json=as_json, render=partial(_render, adoption))
    if adoption.failed:
        raise typer.Exit(1)


class Follower(Protocol):
    """What adoption asks of a node."""

    def view(self) -> NodeView: ...

    def follow_epoch(self, epoch: int, *, operator: str) -> None: ...


class Adoption(Message):
    """What an adoption came to."""

    newest: TokenText
    epoch: int
    operator: str
    leases: int
    """Leases that stayed in force."""
    following: tuple[str, ...]
    """Nodes that follow the new epoch."""
    failed: dict[str, str]
    """Nodes that refuse our tokens until told again, with the reason; "" for all of them."""


_ELSEWHERE = (
    "the cluster's nodes are not of this host — give the Ray that reaches them with --address, or"
    " run `fleet store adopt --nodes-only` on each"
)


def follow(
    stores: Stores,
    nodes: Mapping[str, Follower],
    operator: str,
    *,
    nodes_only: bool = False,
    unreached: str = "",
) -> Adoption:
    """Have each node follow the adopted store, adopted again above what they have seen if need be.

    With `nodes_only` it is not: nodes that have seen more than it has issued are refused
    (`StoreBehind`). One that fails stops no other; `unreached` is why none could be reached.
    """
    failed = {"": unreached} if unreached else {}
    floors = []
    for name, node in nodes.items():
        try:
            floors += [Token.parse(device.floor) for device in node.view().devices]
        except errors.FleetError as error:
            failed[name] = str(error)
    newest, highest = stores.leases.newest(), max(floors, default=NO_TOKEN)
    if highest > newest:
        if nodes_only:
            raise errors.StoreBehind(
                f"a node has acted under {highest}, the store has issued only up to {newest}",
                remedy="adopt it first: run `fleet store adopt` without --nodes-only",
                newest=newest,
                floor=highest,
            )
        newest = stores.leases.adopt(highest, operator)
    for name, node in nodes.items():
        try:
            node.follow_epoch(newest.epoch, operator=operator)
            failed.pop(name, None)
        except errors.FleetError as error:
            failed[name] = str(error)
    return Adoption(
        newest=str(newest),
        epoch=newest.epoch,
        operator=operator,
        leases=len(stores.leases.leases()),
        following=tuple(sorted(set(nodes) - set(failed))),
        failed=failed,
    )


def _render(adoption: Adoption, console: Console) -> None:
    console.print(
        Text(
            f"store adopted by {adoption.operator}: epoch {adoption.epoch},"
            f" {adoption.leases} leases kept"
        )
    )
    for name in adoption.following:
        console.print(Text(f"  {name}: follows"))
    for name, error in adoption.failed.items():
        who = name or "nodes"
        console.print(Text.assemble(f"  {who}: ", ("not told", "red"), f": {error}"))
    if adoption.failed:
        console.print(Text("run it again once they can be reached"))


def _place(state: Path, policy: Path | None, kubeconfig: str) -> StorePlace:
    return StorePlace(_settings(state, policy), state, kubeconfig)


def _settings(state: Path, policy: Path | None) -> Settings:
    if policy is not None:
        return settings_file.load(policy)
    try:
        return plan_fleet(state).nodes[0].settings
    except errors.DriverAbsent:
        return Settings()


def _existing(place: StorePlace) -> Stores:
    path = store_path(place.state)
    if not place.shared and not path.exists():
        raise errors.InputInvalid(
            f"there is no store at {path}",
            remedy="name its state directory with --state, or make one with `fleet store init`",
        )
    return place.open(SystemClock())


def _token(text: str | None) -> Token:
    if text is None:
        return NO_TOKEN
    try:
        return Token.parse(text)
    except ValueError as error:
        raise errors.InputInvalid(
            str(error), remedy="write it as `fleet status` shows it: epoch.counter"
        ) from error
