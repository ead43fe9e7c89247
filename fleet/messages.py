"""What crosses a process border: orders to a node, snapshots and results back.

Always sent as JSON and validated on arrival (pickle skips validation). Every mutating order carries
an operation id, a token and the node it is meant for; repeating it is harmless.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fleet.settings import WipePolicy

TokenText = Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class Message(BaseModel):
    """Base of all messages: closed and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Outcome(StrEnum):
    """How a device came out of a scrub."""

    CERTIFIED = "certified"
    QUARANTINED = "quarantined"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    IN_USE = "in-use"
    HELD = "held"
    BUSY = "busy"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


GOOD = frozenset({Outcome.CERTIFIED, Outcome.IN_USE})
"""Outcomes that do not make a campaign exit 1: in-use devices are left alone on purpose."""


class ScrubOrder(Message):
    """Wipe, verify and certify one device under a campaign's lease."""

    operation: str
    node: str
    device: str
    """UUID of a whole accelerator or a partition."""
    token: TokenText
    run: str = ""
    wipe: WipePolicy | None = None
    """What to demand beyond the node's own policy; less is never granted."""


class ByteFigures(Message):
    """Byte arithmetic of a wipe: total = reserved + covered + residual."""

    total: int = 0
    reserved: int = 0
    covered: int = 0
    residual: int = 0


class Finding(Message):
    """One thing found, with what to do about it."""

    check: str
    verdict: str
    """fail, unknown or warn."""
    detail: str = ""
    remedy: str = ""


class ReasonView(Message):
    """A quarantine reason as shown to people and machines."""

    code: str
    source: str
    liftable: bool
    detail: str = ""
    remedy: str = ""
    since: float = 0.0


class DeviceResult(Message):
    """What became of one device in one operation."""

    operation: str = ""
    node: str
    device: str
    uuid: str
    outcome: Outcome
    state: str
    bytes: ByteFigures = ByteFigures()
    seconds: float = 0.0
    rate: float = 0.0
    """Bytes covered times passes, per second of the passes."""
    certificate: str = ""
    findings: tuple[Finding, ...] = ()


class WipeProgress(Message):
    """Live progress of one wipe, in bytes over all passes."""

    phase: str = ""
    done: int = 0
    total: int = 0
    started_at: float = 0.0


class DeviceView(Message):
    """One device now."""

    uuid: str
    name: str
    accelerator: str
    units: tuple[str, ...]
    memory_bytes: int
    profile: str = ""
    state: str
    """The least clean state among its units."""
    reasons: tuple[ReasonView, ...] = ()
    claim: str = ""
    operation: str = ""
    certificate: str = ""
    floor: TokenText = "0.0"
    """Newest token acted on or closed: what the lease store must not be behind."""
    closed: bool = False
    """Whether `floor` itself is closed."""
    since: float = 0.0
    progress: WipeProgress | None = None
    attributes: dict[str, str] = {}


class NodeView(Message):
    """One node now: identity, trouble, devices and the results asked for."""

    node: str
    incarnation: str
    """New for every start of the node service; an answer of an older one is stale."""
    boot_id: str
    at: float
    simulated: bool
    backend: str
    degraded: tuple[str, ...] = ()
    """Why the node serves in a degraded way; empty when all is well."""
    devices: tuple[DeviceView, ...] = ()
    results: tuple[DeviceResult, ...] = ()
    """Results of the operations asked for, as far as they are finished."""
    outbox: int = 0
    labels: dict[str, str] = {}
    """rack, pool and the like, for planning."""


class Acceptance(Message):
    """A node's answer to one order: accepted (or already known), or refused with the error."""

    operation: str
    accepted: bool
    error: str = ""
    kind: str = ""
    """Class name in `fleet.errors` when refused."""
    fields: dict[str, Any] = {}


class ClaimOrder(Message):
    """Prepare devices of one node for a claim."""

    uid: str = Field(min_length=1)
    node: str
    devices: tuple[str, ...] = Field(min_length=1)
    """Device UUIDs, a set in any order."""
    token: TokenText
    """Token of the claim's lease; the device is exposed under it."""
    namespace: str = ""
    name: str = ""
    consumers: tuple[str, ...] = ()
    """UIDs of live consumer pods. After a tombstone at least one is required."""


class ClaimAnswer(Message):
    """A claim prepared on this node."""

    uid: str
    state: str
    devices: tuple[str, ...] = ()
    spec: str = ""
    certificates: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    """Devices that did not come back clean from a teardown."""
