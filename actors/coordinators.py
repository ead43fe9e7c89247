"""Names of the coordinators of one Ray: one for all nodes, or one for each selection of nodes.

An actor outlives whoever made it, so a coordinator whose selection is not asked for any more has to
be ended: it would go on deciding beside the new ones. That is harmless, and no sharing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import ray
from ray.util import list_named_actors

from actors.cluster import NAMESPACE
from actors.translate import translated

LOG = logging.getLogger(__name__)
COORDINATOR = "coordinator"
"""Name of the one for all nodes."""
_OF_SOME = f"{COORDINATOR}:"


def name_of(nodes: str) -> str:
    """The actor's name of the coordinator of these nodes (a label selector; "": all)."""
    return f"{_OF_SOME}{nodes}" if nodes else COORDINATOR


def running() -> Sequence[str]:
    """Names of the coordinators of this Ray, that of all nodes first."""
    with translated("looking for coordinators"):
        names = [
            str(entry["name"])
            for entry in list_named_actors(all_namespaces=True)
            if entry["namespace"] == NAMESPACE
        ]
    return sorted(one for one in names if one == COORDINATOR or one.startswith(_OF_SOME))


def end_others(kept: Collection[str]) -> Sequence[str]:
    """End the coordinators that reconcile for other selections than those of `kept` (names); what
    was ended. They may be killed at any moment: whoever takes over reads everything anew."""
    ended = [name for name in running() if name not in kept]
    for name in ended:
        with translated(f"ending {name}"):
            try:
                handle = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                continue  # it is gone
            LOG.warning("%s is ended: the settings ask for %s", name, ", ".join(sorted(kept)))
            ray.kill(handle, no_restart=True)
    return ended
