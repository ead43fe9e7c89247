"""The nodes of the cluster behind their actors, as the coordinator asks for them: in batches.

All calls of a batch are started, then waited for together, for one bounded time. No call here waits
longer, whatever has become of a node, of its actor or of Ray's head:

1. A node that let a batch wait is not waited for again while that call is still open: until then it
   is an error at once, and for some seconds more where the node still shows itself, since the same
   thing will take as long again. Otherwise one silent node would slow every step down.
2. Actors are looked for in a thread of its own, since that asks the head and may take a minute
   without one. Handles found once are used meanwhile: calls to live actors outlast the head.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from actors import handles, methods
from actors.handles import Ref, RemoteNode
from actors.node_api import ActorApi
from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.core.messages import NodeView
from fleet.evidence.ledger import LedgerHead
from fleet.rpc.nodes import CalledNodes, NodeCall

LOG = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""Longest time, s, a batch is waited for."""
HUNG_S = 15.0
"""Time, s, after a call that was not answered in time, in which the same is not asked again, though
it has ended; a look at the node is, since only that shows that it is back."""
LOOK_S = 30.0
"""Period, s, in which actors are looked for although nothing is missing."""
LOOK_AGAIN_S = 2.0
"""Pause, s, between two looks when something is missing."""

VIEW = "view"


def _pending(ref: Ref) -> bool:
    _, late = ray.wait([ref], timeout=0)
    return bool(late)


@dataclass(frozen=True, slots=True)
class Reach:
    """What of Ray is used; tests have their own."""

    find: Callable[[], Sequence[RemoteNode]] = handles.find_nodes
    gather: Callable[..., dict[str, Any]] = handles.gather
    pending: Callable[[Ref], bool] = _pending


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A call that was not answered in time, since when, and who was asked."""

    ref: Ref
    since: float
    actor: object
    incarnation: str


class RayNodes(CalledNodes):
    """`fleet.rpc.nodes.Nodes` over node actors. Safe for threads."""

    api = ActorApi

    def __init__(
        self,
        reach: Reach | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        """`timeout_s`: longest time, s, one call of this class takes."""
        self._reach = reach or Reach()
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: dict[str, RemoteNode] = {}
        self._looked = threading.Event()
        self._looking = False
        self._looked_at = float("-inf")
        self._missing = True
        self._silent: dict[tuple[str, str], _Unanswered] = {}
        """Calls by node and method that were not answered in time."""
        self._incarnations: dict[str, str] = {}
        """Of each node, by the last view of it."""

    def names(self) -> Collection[str]:
        """Nodes whose actor was seen at the last look."""
        self._look()
        with self._lock:
            return tuple(self._known)

    def views(
        self, asked: Mapping[str, Sequence[str]]
    ) -> Mapping[str, NodeView | errors.FleetError]:
        """As `Nodes.views`."""
        found = super().views(asked)
        with self._lock:
            for node, view in found.items():
                if isinstance(view, NodeView):
                    self._incarnations[node] = view.incarnation
        return found

    def heads(self) -> Mapping[str, LedgerHead | errors.FleetError]:
        """The end of every node's ledger."""
        return self.every("head", dict.fromkeys(self.names(), ()))

    # --- calls -----------------------------------------------------------------------------------

    def each(self, calls: Mapping[str, NodeCall]) -> Mapping[str, Any | errors.FleetError]:
        """As `CalledNodes.each`."""
        with self._lock:
            unknown = any(call.node not in self._known for call in calls.values())
        self._look(missing=unknown)
        refs: dict[str, Ref] = {}
        failed: dict[str, errors.FleetError] = {}
        for key, call in calls.items():
            try:
                refs[key] = self._node(call.node, call.verb.name).start(call.verb, call.given)
            except errors.FleetError as error:
                failed[key] = error
        found = self._waited(calls, refs)
        return {
            key: failed[key] if key in failed else methods.node_answer(calls[key].verb, found[key])
            for key in calls
        }

    def _waited(self, calls: Mapping[str, NodeCall], refs: Mapping[str, Ref]) -> Mapping[str, Any]:
        what = next((call.verb.name for call in calls.values()), "")
        found = self._reach.gather(refs, call=what, timeout_s=self._timeout_s)
        for key, answer in found.items():
            if isinstance(answer, errors.RayUnavailable):
                late = self._reach.pending(refs[key])
                with self._lock:
                    self._missing = True
                    if late:
                        node, method = calls[key].node, calls[key].verb.name
                        at, of = self._clock.monotonic(), self._incarnations.get(node, "")
                        asked = self._actor(node)
                        self._silent[node, method] = _Unanswered(refs[key], at, asked, of)
        return found

    def _hangs(self, name: str, method: str) -> bool:
        """Whether an earlier call of this kind was not answered in time, and it is not the time to
        ask again. Others of the node are answered meanwhile, unless not even a look at it was.
        """
        with self._lock:
            silent = {kind: self._silent.get((name, kind)) for kind in {VIEW, method}}
            incarnation, actor = self._incarnations.get(name, ""), self._actor(name)
        for kind, found in silent.items():
            if found is None:
                continue
            again_s = 0.0 if kind == VIEW else HUNG_S
            waits = self._clock.monotonic() - found.since < again_s
            # Who was asked then is not there any more: nothing of that call hangs here (F73).
            gone = actor is not None and actor != found.actor
            gone |= kind != VIEW and "" != found.incarnation != incarnation
            if not gone and (waits or self._reach.pending(found.ref)):
                return True
            with self._lock:
                if self._silent.get((name, kind)) == found:
                    del self._silent[name, kind]
        return False

    def _actor(self, name: str) -> object | None:
        """Which actor stands for a node, as far as is known: handles of one are equal. The lock is
        held.
        """
        node = self._known.get(name)
        return None if node is None else node.handle

    def _node(self, name: str, method: str) -> RemoteNode:
        if self._hangs(name, method):
            raise errors.RayUnavailable(f"{name} has still not answered an earlier call")
        with self._lock:
            node = self._known.get(name)
        if node is None:
            raise errors.RayUnavailable(
                f"no node actor of {name} is known in this Ray",
                remedy="see the log of the node plugin there: its bridge creates the actor",
            )
        return node

    # --- looking for actors ----------------------------------------------------------------------

    def _look(self, *, missing: bool = False) -> None:
        """Look for actors if it is time to; only the first look, or a call of an unknown node's,
        is waited for."""
        with self._lock:
            self._missing |= missing
            period_s = LOOK_AGAIN_S if self._missing else LOOK_S
            due = self._clock.monotonic() - self._looked_at >= period_s
            begin = due and not self._looking
            if begin:
                self._looking, self._missing = True, False
                self._looked.clear()
        if begin:
            threading.Thread(target=self._find, name="look-for-nodes", daemon=True).start()
        if begin and (missing or not self._known):
            self._looked.wait(self._timeout_s)

    def _find(self) -> None:
        found: dict[str, RemoteNode] | None = None
        try:
            found = {node.name: node for node in self._reach.find()}
        except errors.FleetError as error:
            LOG.warning("node actors cannot be looked for now: %s", error)
        except Exception:
            LOG.exception("node actors cannot be looked for")
        with self._lock:
            self._looking = False
            self._looked_at = self._clock.monotonic()
            self._known = self._known if found is None else found
        self._looked.set()
