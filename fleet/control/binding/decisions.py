"""The decisions about one claim, as types: one for each thing that can be done. Pure.

`why` goes into logs and `fleet claim show`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.core.messages import DeviceResult, DeviceView
from fleet.core.model import Lease

BUSY_S = 1.0
"""Pause, s, before something is tried again that somebody else is in the way of."""


@dataclass(frozen=True, slots=True)
class PodFact:
    """A pod of the claim as it is now."""

    name: str
    uid: str
    bound: bool
    """Whether it has a node."""
    leaving: bool
    """Whether it is being deleted."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do before something changes."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again in `again_s` seconds."""

    why: str
    again_s: float = BUSY_S
    told: str = ""
    """`why` for the owner of the claim, where it names others."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """The claim's pods must be known to decide."""

    why: str = "its pods are looked up"


@dataclass(frozen=True, slots=True)
class Acquire:
    """Get a lease of all units of these devices."""

    devices: tuple[DeviceView, ...]
    why: str = "it has no lease yet"


@dataclass(frozen=True, slots=True)
class Order:
    """Have these devices wiped and checked under the lease's token."""

    devices: tuple[DeviceView, ...]
    why: str = "its devices are to be wiped"


@dataclass(frozen=True, slots=True)
class Bind:
    """Say that every device is proven, and hold the claim."""

    proofs: Mapping[str, DeviceResult]
    """By name of the device in the slice."""
    why: str = "every device is proven"


@dataclass(frozen=True, slots=True)
class Finalize:
    """Put our finalizer on."""

    why: str = "it is bound"


@dataclass(frozen=True, slots=True)
class Unbind:
    """Take the conditions back: what they say is no longer so."""

    why: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one device will not become ready. `visible`: its quarantine must be read back first."""

    device: str
    """Name in the slice."""
    code: str
    text: str
    visible: bool
    codes: tuple[str, ...] = ()
    """Reasons of the catalogue for which the device is to go out of service; empty: it is, or it is
    not at fault."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell the scheduler that the claim will not become ready here."""

    faults: tuple[Fault, ...]
    silent: bool = False
    """Whether the node cannot say it itself: then the pool is taken over at once."""

    @property
    def why(self) -> str:
        return "; ".join(f"{one.device}: {one.text}" for one in self.faults)


@dataclass(frozen=True, slots=True)
class Undo:
    """Give these leases back: the node closes the token, then the store releases it."""

    leases: tuple[Lease, ...]
    why: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """Take hold and finalizer off."""

    quarantined: tuple[str, ...] = ()
    """Devices (names in the slice) out of service: seen to be so by the scheduler first."""
    why: str = "its devices are at rest and nobody uses it"


@dataclass(frozen=True, slots=True)
class Unexposed:
    """A pod is bound to a device that failed before the pod had it."""

    faults: tuple[Fault, ...]
    pods: tuple[PodFact, ...]

    @property
    def why(self) -> str:
        return f"its pod waits for a device that failed: {self.faults[0].text}"


Decision = (
    Rest
    | Wait
    | LookUp
    | Acquire
    | Order
    | Bind
    | Finalize
    | Unbind
    | Fail
    | Undo
    | LetGo
    | Unexposed
)
