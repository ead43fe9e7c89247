"""`fleet store`: make the lease store, or adopt one whose history is in doubt.

Both act on the file or the API object itself, so that they work while no coordinator runs; one that
runs sees the change with its next call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Protocol

import typer
from pydantic import Field
from rich.console import Console
from rich.text import Text

from fleet.cli import reach
from fleet.cli.cluster import POLICY
from fleet.cli.options import (
    AddressOption,
    OperatorOption,
    StateOption,
    operator_name,
    state_directory,
)
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core import errors, settings_file
from fleet.core.clock import SystemClock
from fleet.core.messages import Message, NodeView, TokenText
from fleet.core.model import NO_TOKEN, Holder, HolderKind, Lease, Token, UnitId
from fleet.core.settings import Settings
from fleet.stores.factory import StorePlace, Stores
from fleet.stores.sqlite import store_path
from fleet.wiring.membership import is_founded
from fleet.wiring.plans import plan_fleet

PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        envvar=POLICY,
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


class StoreAnswer(VerbAnswer):
    """The store that is there now."""

    kind: Literal["store init"] = "store init"
    store: str
    made: bool
    """Whether it was made now."""
    epoch: int
    newest: str
    """The last token issued."""


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
        made, founded = not stores.initialised, is_founded(place.state)
        newest = stores.leases.init()

    def render(console: Console) -> None:
        what = "made" if made else "exists already, nothing was changed"
        console.print(
            Text(f"store {place.named}: {what}; epoch {newest.epoch}, last token {newest}")
        )
        if made and founded:
            console.print(Text("its nodes do not follow it yet: now run `fleet store adopt`"))

    answer = StoreAnswer(store=place.named, made=made, epoch=newest.epoch, newest=str(newest))
    emit(answer, as_json=as_json, render=render)


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
    """Go on with a restored, moved or newly made store, under a new epoch above all tokens known.

    Leases that it lacks and that claims on the nodes reached have are put back, and these nodes are
    told to follow it. Do it once no other copy of the store is in use: two stores that grant are
    two owners.
    """
    floor = _token(at_least)
    who = operator_name(operator)
    directory = state_directory(state)
    place = _place(directory, policy, kubeconfig)
    with closing(_existing(place)) as stores, ExitStack() as stack:
        nodes: Mapping[str, Follower] = {}
        unreached = ""
        try:
            nodes = stack.enter_context(reach.nodes_alone(directory, address=address))
        except errors.DriverAbsent:
            # No fleet here: a store alone on its host, or a cluster whose nodes are elsewhere.
            unreached = _ELSEWHERE if place.shared else ""
        except errors.FleetError as error:
            unreached = str(error)
        terms = Terms(who, at_least=floor, nodes_only=nodes_only, unreached=unreached)
        adoption = follow(stores, nodes, terms)
    emit(AdoptAnswer.of(adoption), as_json=as_json, render=partial(_render, adoption))
    if adoption.failed or adoption.conflicts:
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
    """Leases in force now."""
    reinstated: int = 0
    """Leases of claims put back, which nodes have in their records and the store lacked."""
    conflicts: dict[str, str] = Field(default_factory=dict)
    """Leases that were not, by claim, with the reason."""
    following: tuple[str, ...]
    """Nodes that follow the new epoch."""
    failed: dict[str, str]
    """Nodes that refuse our tokens until told again, with the reason; "" for all of them."""


class AdoptAnswer(Adoption, VerbAnswer):
    """What an adoption came to."""

    kind: Literal["store adopt"] = "store adopt"


_ELSEWHERE = (
    "the cluster's nodes are not of this host — give the Ray that reaches them with --address, or"
    " run `fleet store adopt --nodes-only` on each"
)


@dataclass(frozen=True, slots=True)
class Terms:
    """How to adopt. `unreached`: why no node could be reached; "" when that is no trouble."""

    operator: str
    at_least: Token = NO_TOKEN
    nodes_only: bool = False
    unreached: str = ""


def follow(stores: Stores, nodes: Mapping[str, Follower], terms: Terms) -> Adoption:
    """Adopt the store above all that nodes have seen, put back what they hold, have them follow.

    In this order: the floors tell what the new epoch has to be above, and once nodes follow it
    their devices can be leased anew. With `nodes_only` the store's epoch stays: nodes that have
    seen more than it has issued are refused (`StoreBehind`). A node that fails stops no other.
    """
    failed = {"": terms.unreached} if terms.unreached else {}
    views: list[NodeView] = []
    for name, node in nodes.items():
        try:
            views.append(node.view())
        except errors.FleetError as error:
            failed[name] = str(error)
    held = [lease for view in views for lease in _held(view)]
    newest = _minted(stores, max(_seen(views, held), default=NO_TOKEN), terms)
    answers = stores.leases.reinstate(held) if held else []
    conflicts = {
        lease.holder.name: str(answer)
        for lease, answer in zip(held, answers, strict=True)
        if isinstance(answer, errors.FleetError)
    }
    for name, node in nodes.items():
        try:
            node.follow_epoch(newest.epoch, operator=terms.operator)
            failed.pop(name, None)
        except errors.FleetError as error:
            failed[name] = str(error)
    return Adoption(
        newest=str(newest),
        epoch=newest.epoch,
        operator=terms.operator,
        leases=len(stores.leases.leases()),
        reinstated=sum(answer is True for answer in answers),
        conflicts=conflicts,
        following=tuple(sorted(set(nodes) - set(failed))),
        failed=failed,
    )


def _minted(stores: Stores, highest: Token, terms: Terms) -> Token:
    if not terms.nodes_only:
        return stores.leases.adopt(max(highest, terms.at_least), terms.operator)
    newest = stores.leases.newest()
    if highest > newest:
        raise errors.StoreBehind(
            f"a node has acted under {highest}, the store has issued only up to {newest}",
            remedy="adopt it first: run `fleet store adopt` without --nodes-only",
            newest=newest,
            floor=highest,
        )
    return newest


def _seen(views: Sequence[NodeView], held: Sequence[Lease]) -> Iterator[Token]:
    """What the store's tokens have to be above."""
    for view in views:
        yield Token(view.epoch, 0)
        yield from (Token.parse(device.floor) for device in view.devices)
    yield from (lease.token for lease in held)


def _held(view: NodeView) -> Iterator[Lease]:
    """The leases that a node's claims have by its records, which are what counts (DESIGN 4)."""
    for claim in view.claims:
        token = Token.parse(claim.token)
        if claim.units and token > NO_TOKEN:
            units = frozenset(UnitId(unit) for unit in claim.units)
            yield Lease(units, Holder(HolderKind.CLAIM, claim.uid), token)


def _render(adoption: Adoption, console: Console) -> None:
    console.print(
        Text(
            f"store adopted by {adoption.operator}: epoch {adoption.epoch},"
            f" {adoption.leases} leases in force, {adoption.reinstated} of them reinstated from"
            " what nodes hold"
        )
    )
    for name in adoption.following:
        console.print(Text(f"  {name}: follows"))
    for name, error in adoption.failed.items():
        who = name or "nodes"
        console.print(Text.assemble(f"  {who}: ", ("not told", "red"), f": {error}"))
    for uid, error in adoption.conflicts.items():
        console.print(Text.assemble(f"  claim {uid}: ", ("no lease", "red"), f": {error}"))
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
