"""Whether a state directory has a fleet that follows a lease store already.

Where one does, a store that is missing is lost or not mounted: made anew in passing it would have
another epoch and none of the leases, and nobody would be told.
"""

from __future__ import annotations

from pathlib import Path

from fleet.core import errors, sqlite
from fleet.evidence import layout
from fleet.node.journal import schema

JOURNAL = "journal.db"
"""File name of a node's journal."""
WAIT_S = 2.0
"""How long, s, a journal that is written to is waited for."""


def is_founded(state: Path) -> bool:
    """Whether there are certificates, countersignatures or a node that follows an epoch."""
    if any(layout.heads_directory(state).glob("*.jsonl")):
        return True
    nodes = layout.nodes(state)
    return has_certificates(state) or any(_follows(state, node) for node in nodes)


def has_certificates(state: Path) -> bool:
    """Whether any node has a certificate."""
    ledgers = [layout.ledger_directory(state, node) for node in layout.nodes(state)]
    return any(path.stat().st_size for ledger in ledgers for path in ledger.glob("*.jsonl"))


def _follows(state: Path, node: str) -> bool:
    """Whether the node's journal names an epoch; one that cannot be read is taken for such.

    One that is just being made has no tables yet, and names none.
    """
    path = layout.node_directory(state, node) / JOURNAL
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        journal = sqlite.open_database(path, schema=schema.SCHEMA, timeout_s=WAIT_S, read_only=True)
    except (errors.FleetError, OSError):
        return True
    try:
        made = journal.query("SELECT 1 FROM sqlite_master WHERE name = 'meta'")
        named = "SELECT 1 FROM meta WHERE key = 'epoch' AND value <> '0'"
        return bool(made and journal.query(named))
    except errors.FleetError:
        return True
    finally:
        journal.close()
