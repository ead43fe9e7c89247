"""Where evidence lies below a state directory: the only place that spells these names."""

from __future__ import annotations

import re
from pathlib import Path

from fleet.core.errors import InputInvalid
from fleet.core.model import NodeName

PUBLIC_SUFFIX = ".pub"
NODE_STEM = "node"
COORDINATOR_STEM = "coordinator"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def is_name(node: str) -> bool:
    """Whether a node can be called so: it is one path component."""
    return _NAME.fullmatch(node) is not None


def checked_name(node: str) -> NodeName:
    """`node`, if it can be one path component. Raises `InputInvalid`."""
    if not is_name(node):
        raise InputInvalid(
            f"{node!r} is not a node name",
            remedy="use letters, digits, dots and dashes, as host names do",
        )
    return NodeName(node)


def nodes_directory(state: Path) -> Path:
    """Directory with one entry per node."""
    return state / "nodes"


def node_directory(state: Path, node: str) -> Path:
    """Everything one node keeps. Raises `InputInvalid` on a name that is not one path component."""
    return nodes_directory(state) / checked_name(node)


def ledger_directory(state: Path, node: str) -> Path:
    """The node's certificates."""
    return node_directory(state, node) / "ledger"


def losses_directory(state: Path, node: str) -> Path:
    """The node's data-loss records."""
    return node_directory(state, node) / "losses"


def archive_cursor(state: Path, node: str = "") -> Path:
    """How far the node's ledger was copied to the archive; the coordinator's without a node."""
    owner = node_directory(state, node) if node else coordinator_directory(state)
    return owner / "archive.json"


def key_list(state: Path) -> Path:
    """The coordinator's signed list of public keys."""
    return coordinator_directory(state) / "keys.json"


def node_keys_directory(state: Path, node: str) -> Path:
    """The node's private key and all public keys it ever signed with."""
    return node_directory(state, node) / "keys"


def node_key(state: Path, node: str) -> Path:
    """The node's private key; the public one lies beside it with suffix ``.pub``."""
    return node_keys_directory(state, node) / f"{NODE_STEM}.key"


def coordinator_directory(state: Path) -> Path:
    """Everything the coordinator keeps. There only where a coordinator works or worked."""
    return state / "coordinator"


def coordinator_keys_directory(state: Path) -> Path:
    """The coordinator's private key and all public keys it ever signed with."""
    return coordinator_directory(state) / "keys"


def coordinator_key(state: Path) -> Path:
    """The coordinator's private key."""
    return coordinator_keys_directory(state) / f"{COORDINATOR_STEM}.key"


def heads_directory(state: Path) -> Path:
    """The coordinator's countersignatures."""
    return coordinator_directory(state) / "heads"


def nodes(state: Path) -> tuple[NodeName, ...]:
    """Names of all nodes that left anything below `state`, sorted."""
    directory = nodes_directory(state)
    if not directory.is_dir():
        return ()
    found = (path.name for path in directory.iterdir() if path.is_dir())
    return tuple(sorted(NodeName(name) for name in found if _NAME.fullmatch(name)))
