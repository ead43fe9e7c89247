"""Which cluster a state directory belongs to, by UIDs that no other cluster has.

A kubeconfig is a file that people swap, and its current context is one command away from another
cluster. There every claim of ours is "gone" and every slice "nobody's": whoever acted on that would
take leases and marks away from tenants who run. So the cluster is written down when plugin or
coordinator first meet it, and every other one is refused.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleet.core import errors
from fleet.kube.base import NAMESPACES, NODES, Cluster, Name, uid_of

LOG = logging.getLogger(__name__)
FILE = "cluster.json"
SYSTEM = Name("kube-system")
"""The namespace that is as old as its cluster."""
_SYSTEM_KEY = f"namespace {SYSTEM}"


def identify(cluster: Cluster, nodes: Iterable[str]) -> dict[str, str]:
    """UIDs by what has them: of the namespace kube-system and of these Nodes.

    What may not be read or is not there is left out; empty where the server does not answer.
    """
    found: dict[str, str] = {}
    asked = [(_SYSTEM_KEY, NAMESPACES, SYSTEM)]
    asked += [(f"Node {node}", NODES, Name(node)) for node in sorted(nodes)]
    for key, resource, name in asked:
        try:
            found[key] = uid_of(cluster.get(resource, name))
        except errors.ApiUnavailable:
            return found
        except errors.FleetError:
            continue
    return found


def recorded(state: Path) -> Mapping[str, str]:
    """What was written down; empty: the cluster was not met yet. Raises `ClusterForeign`."""
    path = state / FILE
    try:
        read = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise errors.ClusterForeign(
            f"{path} cannot be read, so that it is not known which cluster this is: {error}",
            remedy="repair the file; delete it only if you know the cluster to be the right one",
        ) from error
    return {str(key): str(uid) for key, uid in read.items()} if isinstance(read, dict) else {}


def verify(state: Path, cluster: Cluster, nodes: Iterable[str]) -> bool:
    """Whether it is known to be the cluster written down. Raises `ClusterForeign` if another is."""
    known = recorded(state)
    return bool(known) and _agree(state, known, identify(cluster, nodes))


def meet(state: Path, cluster: Cluster, nodes: Iterable[str]) -> bool:
    """As `verify`, and write the cluster down at the first meeting. False: it does not tell.

    Raises `ClusterForeign`, and nothing where the file cannot be written.
    """
    known, found = recorded(state), identify(cluster, nodes)
    same = _agree(state, known, found)
    if found and (same or not known) and known != (merged := {**known, **found}):
        _write(state / FILE, merged)
    return same or (bool(found) and not known)


def _agree(state: Path, known: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """A Node may be made anew in its cluster: its UID counts only where nothing better is told."""
    shared = [key for key in (_SYSTEM_KEY,) if key in known and key in found]
    shared = shared or sorted(known.keys() & found.keys())
    for key in shared:
        if known[key] != found[key]:
            raise errors.ClusterForeign(
                f"this is another cluster: {key} has the UID {found[key]}, {state} belongs to the"
                f" one with {known[key]}",
                remedy="name the right one with --kubeconfig; if the cluster was made anew, delete"
                f" {state / FILE}: what was left at the old one is yours to judge",
                ours=known[key],
                theirs=found[key],
            )
    return bool(shared)


def _write(path: Path, found: Mapping[str, str]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(json.dumps(found, indent=2) + "\n")
        temporary.replace(path)
    except OSError as error:
        LOG.warning("the cluster's identity is not written down: %s", error)
