"""`fleet evidence keys`: whose each public key is and when it was good, signed by the coordinator.

A list is made from the keys of this state directory and the list before it. It is countersigned and
copied to the archive at once; whoever verifies takes the newest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from fleet.cli import archive, text
from fleet.cli.options import StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import Message
from fleet.evidence import dsse, kept_list, key_list, layout
from fleet.evidence.heads import Countersigner, HeadsLog
from fleet.evidence.key_list import Chosen, KeyList, Listed
from fleet.evidence.keys import SHORT_ID, KeyRing, PublicKey, SigningKey
from fleet.evidence.layout import PUBLIC_SUFFIX
from fleet.node.journal.lock import OwnerLock
from fleet.wiring import adapters

TRIES, PAUSE_S = 20, 0.1
"""How often, and after how many seconds each, another process is waited for that countersigns."""
_KEY_ID = re.compile(r"[0-9a-f]{64}")

app = typer.Typer(no_args_is_help=True)


@app.callback()
def keys() -> None:
    """List, replace and revoke the keys that evidence is signed with."""


@app.command("list")
def list_(state: StateOption = None, *, as_json: AsJson = False) -> None:
    """List all keys, and sign the list anew where a key is missing in it."""
    directory = state_directory(state)
    before = kept_list.read(directory)
    _show(_renewed(directory, before), state=directory, before=before, as_json=as_json)


@app.command()
def rotate(
    node: Annotated[str, typer.Argument(help="Node whose key is replaced.")],
    state: StateOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a node a new key; the old private key is destroyed, what it signed stays valid.

    The node's service must be stopped: it would go on signing with the key it has read. On a host
    where no coordinator works only the key is replaced.
    """
    directory = state_directory(state)
    if not layout.node_directory(directory, node).is_dir():
        raise errors.InputInvalid(
            f"there is no node {node} in {directory}",
            remedy="name the node's own state directory with --state, on its host",
        )
    listing = kept_list.has_worked(directory)
    before = kept_list.read(directory) if listing else None
    lock = OwnerLock(layout.node_directory(directory, node) / adapters.LOCK)
    lock.acquire(owner=f"rotation of the key of {node}")
    try:
        old = SigningKey.load(layout.node_key(directory, node)).key_id
        if listing:
            _renewed(directory, before)  # the old key is listed before it ends
        layout.node_key(directory, node).unlink()
        new = SigningKey.load_or_create(layout.node_key(directory, node)).key_id
    finally:
        lock.release()
    if not listing:
        simulated = archive.is_simulated(directory)
        _tell_coordinator(node, old, new, simulated=simulated, as_json=as_json)
        return
    found = _renewed(directory, kept_list.read(directory), old=old)
    _show(found, state=directory, before=before, as_json=as_json)


@app.command()
def revoke(
    key: Annotated[
        str, typer.Argument(help="Id of the key, its first characters, or its .pub file.")
    ],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, in your words.")],
    node: Annotated[
        str, typer.Option("--node", help="Whose key it is; needed for one this host never saw.")
    ] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Revoke the key that a node of this fleet signs with.")
    ] = False,
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: what it signs from now on is invalid, what it signed before stays valid.

    A certificate names its own time. Whoever has the key can write an earlier one; only what was
    countersigned by now is proven to be older. Stop the node and rotate its key first: a node knows
    of no revocation, and all it signs until then is invalid for good.
    """
    directory = state_directory(state)
    before = kept_list.read(directory)
    found = _renewed(directory, before)
    one = _chosen(found, key, node)
    if not one.node:
        raise errors.InputInvalid(
            f"{one.key_id[:SHORT_ID]} is the coordinator's key, which signs this list",
            remedy="revoke the keys of nodes here; replace the coordinator's by hand (docs/s3.md)",
        )
    current = _is_current(directory, one)
    if current and not now:
        raise errors.InputInvalid(
            f"{one.key_id[:SHORT_ID]} is the key that {one.node} signs with: what it certifies"
            " after the revocation is invalid for good",
            remedy=f"stop {one.node}, run `fleet evidence keys rotate {one.node}`, start it, then"
            " revoke; or say --now, if nothing is to count until then",
        )
    after = key_list.revoked(found.keys, one, at=time.time(), reason=reason)
    signed = _signed(directory, kept_list.read(directory), after)
    follows = _follows(one, current=current)
    _show(signed, state=directory, before=before, follows=follows, as_json=as_json)


def _is_current(directory: Path, one: Listed) -> bool:
    """Whether a node signs with it; False for nodes of other hosts, whose keys are not here."""
    held = layout.node_keys_directory(directory, one.node)
    return KeyRing.owned(held, layout.NODE_STEM).current == one.key_id


def _follows(one: Listed, *, current: bool) -> str:
    """What the revocation means for a node that may still sign with the key; "": nothing."""
    act = f"stop it and run `fleet evidence keys rotate {one.node}`"
    if current:
        return (
            f"{one.node} goes on signing with it, and no certificate from now on counts: {act};"
            " then scrub its devices again"
        )
    if one.told:
        return f"If {one.node} still signs with it, none of that counts: {act} on its host."
    return ""


def _chosen(found: KeyList, key: str, node: str) -> Listed:
    """The key meant: one of the list, or one of a node on another host, in full and with --node."""
    wanted = PublicKey.load(Path(key)).key_id if key.endswith(PUBLIC_SUFFIX) else key.lower()
    one = found.keys.get(wanted)
    if one is None and _KEY_ID.fullmatch(wanted):
        if not node:
            raise errors.InputInvalid(
                f"no key {wanted[:SHORT_ID]} is known here",
                remedy="say whose it is with --node NODE",
            )
        return Listed(wanted, layout.checked_name(node), since=time.time(), told=True)
    one = one or found.found(wanted)
    if node and one.node != node:
        owner = one.node or "the coordinator"
        raise errors.InputInvalid(
            f"{one.key_id[:SHORT_ID]} is the key of {owner}, not of {node}",
            remedy="see `fleet evidence keys list`",
        )
    return one


def _renewed(directory: Path, before: Chosen | None, *, old: str = "") -> KeyList:
    """The list with all keys of the state directory in it, signed anew if one was not."""
    if not kept_list.has_worked(directory):
        raise errors.InputInvalid(
            f"no coordinator has worked in {directory}: there is no key to sign a list with",
            remedy="name the coordinator's state directory with --state",
        )
    rings = {
        str(node): KeyRing.owned(layout.node_keys_directory(directory, node), layout.NODE_STEM)
        for node in layout.nodes(directory)
    }
    rings[""] = kept_list.ring(directory)
    listed = before.listed if before is not None else KeyList()
    keys = key_list.renewed(listed, rings, now=time.time(), old=[old] if old else ())
    return listed if keys == listed.keys else _signed(directory, before, keys)


def _signed(directory: Path, before: Chosen | None, keys: Mapping[str, Listed]) -> KeyList:
    """Sign the list, and countersign that it is the newest: an older one shows from here on."""
    key = _coordinator(directory)
    found = kept_list.signed(directory, before, keys, key=key, now=time.time())
    log = HeadsLog(layout.heads_directory(directory))
    signer = Countersigner(log, key, SystemClock(), partial(kept_list.named, directory))
    for left in reversed(range(TRIES)):
        try:
            signer.sign({})
        except errors.NotOwner:  # a coordinator at work is writing this very moment
            if not left:
                raise
            time.sleep(PAUSE_S)
        else:
            break
    return found


def _coordinator(directory: Path) -> SigningKey:
    """Never made here: that is for the coordinator, which keeps the old public half."""
    path = layout.coordinator_key(directory)
    if not path.exists():
        raise errors.KeyUnusable(
            f"the coordinator's key {path} is not there: no list can be signed",
            remedy="start the coordinator once: it makes another and keeps the old public half;"
            " then run again",
        )
    return SigningKey.load(path)


class RotateAnswer(VerbAnswer):
    """A key that was replaced where no coordinator works."""

    kind: Literal["evidence keys rotate"] = "evidence keys rotate"
    simulated: bool
    node: str
    old: str
    new: str
    at_the_coordinator: str
    """The command to run on the coordinator's host if anybody else may have the old key."""


class KeyRow(Message):
    """A public key, and when it counted."""

    key_id: str
    node: str
    """"": the coordinator's."""
    since: str
    until: str | None
    revoked_at: str | None
    reason: str
    told: bool


class KeysAnswer(VerbAnswer):
    """The list of keys."""

    kind: Literal["evidence keys"] = "evidence keys"
    simulated: bool
    number: int
    keys: tuple[KeyRow, ...]
    not_in_the_archive: str
    follows: str
    """What is to be done next; "" for nothing."""


def _tell_coordinator(node: str, old: str, new: str, *, simulated: bool, as_json: bool) -> None:
    """What is left to do where the node's keys are listed."""
    act = f"fleet evidence keys revoke {old} --node {node} --reason WHY"

    def render(console: Console) -> None:
        text.warn(console, simulated=simulated)
        console.print(Text(f"{node} signs with key {new} from its next start on."))
        console.print(Text(f"No coordinator works here, so that no list says key {old} ended."))
        console.print(Text(f"If anybody else may have it, run on the coordinator's host: {act}"))

    found = RotateAnswer(simulated=simulated, node=node, old=old, new=new, at_the_coordinator=act)
    emit(found, as_json=as_json, render=render)


def _show(
    found: KeyList, *, state: Path, before: Chosen | None, as_json: bool, follows: str = ""
) -> None:
    """Show the list, copied to the archive if it is a new one; exit code 1 when it is not there.

    `follows`: what is to be done next, "" for nothing.
    """
    fresh = before is None or found.number > before.listed.number
    waiting = archive.copy_list(state) if fresh else ""
    rows: list[dict[str, Any]] = [found.keys[key_id].as_json() for key_id in sorted(found.keys)]

    simulated = archive.is_simulated(state)

    def render(console: Console) -> None:
        text.warn(console, simulated=simulated)
        table = text.table("key", "of", "listed", "replaced", "revoked", "why")
        for row in rows:
            times = [(row[name] or "-")[:19] for name in ("since", "until", "revoked_at")]
            owner = row["node"] or "coordinator"
            cells = [row["key_id"][:SHORT_ID], owner, *times, row["reason"] or "-"]
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
        console.print(f"list {found.number}, signed {dsse.stamp(found.issued_at)}")
        for said in filter(None, (waiting, follows)):
            console.print(Text(said, style="yellow"))

    answer = KeysAnswer(
        simulated=simulated,
        number=found.number,
        keys=tuple(KeyRow(**row) for row in rows),
        not_in_the_archive=waiting,
        follows=follows,
    )
    emit(answer, as_json=as_json, render=render)
    if waiting:
        raise typer.Exit(1)
