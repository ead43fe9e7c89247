"""What one step of the publisher found and did, for logs, metrics and promise 6. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.kube.slice_equality import Feature
from fleet.plugin.slices.takeover import Record


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that keeps the slices from saying what they should, with what to do."""

    kind: str
    """Class name in `fleet.core.errors`, or `dropped-field`."""
    detail: str
    remedy: str
    devices: tuple[str, ...] = ()
    """Names of the devices concerned."""

    def __str__(self) -> str:
        """Detail and remedy, as errors tell them."""
        return f"{self.detail} — {self.remedy}"

    @classmethod
    def of(cls, error: errors.FleetError, *, devices: tuple[str, ...] = ()) -> Trouble:
        """What an error tells."""
        return cls(type(error).__name__, error.detail, error.remedy, devices)

    @classmethod
    def skipped(cls, count: int) -> Trouble:
        """`count` entries of a listing are no objects (B19)."""
        return cls(
            kind="skipped-objects",
            detail=f"{count} entries of the list of slices are no objects",
            remedy="look for slices that no client can read; they are not judged here",
        )

    @classmethod
    def dropped(cls, feature: Feature, remedy: str) -> Trouble:
        """The server does not keep a field."""
        detail = f"the API server drops {feature} of slice devices"
        return cls(kind="dropped-field", detail=detail, remedy=remedy)


@dataclass(frozen=True, slots=True)
class PublishReport:
    """One step. UUIDs are those of the view."""

    settled: bool = False
    """The pool read from the API is complete, says what was wanted, and nothing of ours is under
    way that could change it."""
    writes: int = 0
    """Writes carried out in this step."""
    generation: int = 0
    """Pool generation read last."""
    offered: tuple[str, ...] = ()
    """Names of the devices wanted in the slices, in order."""
    withdrawn: Mapping[str, str] = field(default_factory=dict)
    """Why a device of the view is not offered at all, by UUID."""
    lost: tuple[str, ...] = ()
    """Names of devices the node no longer reports, kept in the slice as quarantined."""
    confirmed_quarantine: Mapping[str, float] = field(default_factory=dict)
    """Quarantined devices read back as such (or as absent), by UUID: the `since` of their view.
    Nothing of ours that is older can land any more (promise 6)."""
    unlisted_at: float = 0.0
    """`at` of the view that all slices were read back for, with nothing older left to land: what it
    does not list is absent or quarantined as lost. 0.0: not read back so in this step."""
    taken_over: tuple[Record, ...] = ()
    """Quarantines that the slices know of and the node does not: it has to take their reasons, and
    whoever brought them there says so with `merged`. Until then they stay published."""
    trouble: tuple[Trouble, ...] = ()
    refused_total: int = 0
    """Bodies the server refused since the start."""
    dropped: frozenset[Feature] = frozenset()
    """Fields the server does not keep."""
    elsewhere: str = ""
    """Who publishes instead of us now; nothing was read or written then."""
