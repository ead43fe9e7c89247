"""`fleet evidence keys`: whose each public key is and when it was good, signed by the coordinator.

A list is made from the keys of this state directory and the list before it. It is copied to the
archive with the coordinator's next copies; whoever verifies takes the newest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet import bootstrap, errors
from fleet.cli.options import StateOption, state_directory
from fleet.cli.output import AsJson, emit
from fleet.evidence import dsse, key_list, layout
from fleet.evidence.disk import read_regular, replace
from fleet.evidence.key_list import KeyList, Listed
from fleet.evidence.keys import SHORT_ID, KeyRing, SigningKey
from fleet.evidence.segments import Damage, Place
from fleet.journal.lock import OwnerLock

app = typer.Typer(no_args_is_help=True)


@app.callback()
def keys() -> None:
    """List, replace and revoke the keys that evidence is signed with."""


@app.command("list")
def list_(state: StateOption = None, *, as_json: AsJson = False) -> None:
    """List all keys, and sign the list anew where a key is missing in it."""
    directory = state_directory(state)
    _show(_renewed(directory), as_json=as_json)


@app.command()
def rotate(
    node: Annotated[str, typer.Argument(help="Node whose key is replaced.")],
    state: StateOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a node a new key; the old private key is destroyed, what it signed stays valid.

    The node's service must be stopped: it would go on signing with the key it has read.
    """
    directory = state_directory(state)
    lock = OwnerLock(layout.node_directory(directory, node) / bootstrap.LOCK)
    lock.acquire(owner=f"rotation of the key of {node}")
    try:
        before = SigningKey.load(layout.node_key(directory, node))
        _renewed(directory)  # the old key is listed before it ends
        layout.node_key(directory, node).unlink()
        SigningKey.load_or_create(layout.node_key(directory, node))
    finally:
        lock.release()
    _show(_renewed(directory, old=before.key_id), as_json=as_json)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="Id of the key, or its first characters.")],
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, in your words.")],
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: what it signs from now on is invalid, what it signed before stays valid.

    A certificate names its own time. Whoever has the key can write an earlier one; only what was
    countersigned by now is proven to be older. Rotate the key of a node that goes on.
    """
    directory = state_directory(state)
    found = _renewed(directory)
    one = found.found(key.lower())
    if not one.node:
        raise errors.InputInvalid(
            f"{one.key_id[:SHORT_ID]} is the coordinator's key, which signs this list",
            remedy="revoke the keys of nodes here; replace the coordinator's by hand (docs/s3.md)",
        )
    after = key_list.revoked(found.keys, one, at=time.time(), reason=reason)
    _show(_sign(directory, found, after), as_json=as_json)


def _renewed(directory: Path, *, old: str = "") -> KeyList:
    """The list with all keys of the state directory in it, signed anew if one was not."""
    before = _read(directory)
    rings = {
        str(node): KeyRing.owned(layout.node_keys_directory(directory, node), layout.NODE_STEM)
        for node in layout.nodes(directory)
    }
    _coordinator(directory)
    rings[""] = _coordinator_ring(directory)
    keys = key_list.renewed(before, rings, now=time.time(), old=[old] if old else ())
    return before if keys == before.keys else _sign(directory, before, keys)


def _read(directory: Path) -> KeyList:
    """The list there is. Raises `EvidenceInvalid` for one the coordinator did not sign."""
    path = layout.key_list(directory)
    try:
        content = read_regular(path, most_bytes=key_list.MOST_BYTES)
    except FileNotFoundError:
        return KeyList()
    except OSError as error:
        raise errors.EvidenceInvalid(f"{path} cannot be read: {error.strerror}") from error
    damages: list[Damage] = []
    place = Place(str(path))
    found = key_list.checked(content, _coordinator_ring(directory), place, damages)
    if found is None:
        raise errors.EvidenceInvalid(
            f"{path}: {damages[0].detail}",
            remedy="keep the file for inquiry and restore it from the archive (keys/lists/)",
        )
    return found


def _sign(directory: Path, before: KeyList, keys: Mapping[str, Listed]) -> KeyList:
    path = layout.key_list(directory)
    previous = None
    with suppress(FileNotFoundError):
        previous = dsse.digest_of(read_regular(path, most_bytes=key_list.MOST_BYTES))
    content = key_list.sign(
        keys,
        number=before.number + 1,
        previous=previous,
        key=_coordinator(directory),
        now=time.time(),
    )
    replace(path, content)
    return key_list.read(content)


def _coordinator(directory: Path) -> SigningKey:
    """Never made here: a coordinator that never worked must not seem to have."""
    path = layout.coordinator_key(directory)
    if not path.exists():
        raise errors.InputInvalid(
            f"no coordinator has worked in {directory}: there is no key to sign a list with",
            remedy="name the coordinator's state directory with --state",
        )
    return SigningKey.load(path)


def _coordinator_ring(directory: Path) -> KeyRing:
    return KeyRing.owned(layout.coordinator_keys_directory(directory), layout.COORDINATOR_STEM)


def _show(found: KeyList, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [found.keys[key_id].as_json() for key_id in sorted(found.keys)]

    def render(console: Console) -> None:
        table = Table("key", "of", "listed", "replaced", "revoked", "why")
        for row in rows:
            times = [(row[name] or "-")[:19] for name in ("since", "until", "revoked_at")]
            owner = row["node"] or "coordinator"
            cells = [row["key_id"][:SHORT_ID], owner, *times, row["reason"] or "-"]
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
        console.print(f"list {found.number}, signed {dsse.moment(found.issued_at)[:19]}Z")

    emit({"number": found.number, "keys": rows}, as_json=as_json, render=render)
