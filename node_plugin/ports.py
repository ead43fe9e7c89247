"""What the gRPC side needs of the rest: the claims behind it, and what it may say of the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.core.errors import FleetError
from fleet.core.messages import NodeView, Right
from fleet.plugin.requests import AskedClaim, PreparedClaim


class Claims(Protocol):
    """Prepares and unprepares claims. Blocking, safe for threads, idempotent.

    Each call runs in a thread of its own and goes on when kubelet has given up the RPC: single
    flight for each claim, its order and its budget are decided behind this port.
    """

    def prepare(self, asked: Sequence[AskedClaim]) -> Mapping[str, PreparedClaim | FleetError]:
        """The outcome for each UID. The gRPC side asks for one claim at a time."""
        ...

    def unprepare(self, asked: AskedClaim) -> FleetError | None:
        """Take the claim's devices back. None: nothing of it is left on this node."""
        ...


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that is not as it should be. `reason` is CamelCase, for machines."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Standing:
    """How the node behind the plugin stands now."""

    owner: str = ""
    """Kind of process that owns the node's journal (``actor``, ``standby``); "" unknown."""
    owner_reachable: bool = False
    unreachable: str = ""
    """Why nobody answers for the node, as far as that is known."""
    published_at: float | None = None
    """When the node's slices were last confirmed at the API, s since the epoch; None never."""
    elsewhere: str = ""
    """Who publishes instead of this instance now (an update is under way); "" nobody."""
    blocked: tuple[str, ...] = ()
    """Why nothing can be prepared on the node now, each with what to do."""
    degraded: tuple[str, ...] = ()
    """Why the node serves in a degraded way, `blocked` included."""
    unviewed: str = ""
    """Why an owner that answers says nothing about the node's devices; "": it does."""
    troubles: tuple[str, ...] = ()
    """What keeps the slices from saying what they should, each with what to do."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """Why a device is not in the slices, by its name."""
    missing: tuple[Right, ...] = ()
    """Rights at the API server that the plugin lacks."""
    view: NodeView | None = None
    """The last view an owner gave, for the node's figures; its own time says how old it is."""


class Surroundings(Protocol):
    """Tells how the node stands. Called from any thread, answers at once from memory."""

    def standing(self) -> Standing:
        """The latest known."""
        ...
