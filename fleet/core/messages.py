"""What crosses a process border: orders to a node, snapshots and results back.

Always sent as JSON and validated on arrival (pickle skips validation). Every mutating order carries
an operation id, a token and the node it is meant for; repeating it is harmless.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    WithJsonSchema,
    model_validator,
)

from fleet.core.model import Token
from fleet.core.settings import WipePolicy


def _token(text: str) -> str:
    """The text, if it is a token's. Raises ValueError."""
    Token.parse(text)
    return text


TokenText = Annotated[str, AfterValidator(_token)]


FOR_PEOPLE = "for-people"
"""Context of serialization for what leaves the fleet: `--json` of the verbs."""


def _told(at: float | None, asked: SerializationInfo) -> Any:
    """Between processes a number, as the clocks have it; for others RFC 3339, null for never."""
    if asked.context != FOR_PEOPLE:
        return at
    if not at:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


_TOLD = (
    PlainSerializer(_told),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        mode="serialization",
    ),
)
Moment = Annotated[float, *_TOLD]
"""A time, seconds since the epoch; 0.0: never."""
MomentOrNone = Annotated[float | None, *_TOLD]


class Message(BaseModel):
    """Base of all messages: closed and immutable."""

    # Built when first used: a command line uses few of them, and building is most of a start.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


_LESSER = frozenset({"events", "leases", "resourceclaims/binding"})


PLUGIN_LACKS = "the plugin lacks a right: "
"""How a node's view begins to tell what the plugin told its owner."""


class Right(Message):
    """What an account may not do. `resource`: its plural, with ``/subresource`` where of one."""

    verb: str
    resource: str
    group: str = ""
    account: str

    @property
    def lesser(self) -> bool:
        """Whether all goes on without it: nobody is told, or devices in use are tainted instead."""
        return self.resource in _LESSER

    def __str__(self) -> str:
        """In words, as a role has it."""
        where = f".{self.group}" if self.group else ""
        plural, slash, part = self.resource.partition("/")
        return f"{self.verb} {plural}{where}{slash}{part} (account {self.account})"


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


UNMET = "demand-unmet"
"""Check of a finding: the device passed by its node's own policy, and not by what a claim demands
beyond it. Such a wipe is REFUSED, and the device stays in service."""

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
    since: Moment = 0.0


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
    before: str = ""
    """State of the device when the campaign found it; "" outside campaigns."""
    started_at: Moment = 0.0
    """When its wipe began, by the node's clock (the campaign's where no wipe is told of), seconds
    since the epoch; 0.0: it was never begun."""
    ended_at: Moment = 0.0
    """When its wipe ended, by the same clock; 0.0: not told."""


class WipeProgress(Message):
    """Live progress of one wipe, in bytes over all passes."""

    phase: str = ""
    done: int = 0
    total: int = 0
    started_at: Moment = 0.0


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
    certified_under: TokenText = "0.0"
    """Token that the certificate in force was made under; 0.0: there is none."""
    held: bool = False
    """Whether our reservation keeps the allocation of `claim` until the device is at rest."""
    floor: TokenText = "0.0"
    """Newest token acted on or closed: what the lease store must not be behind."""
    closed: bool = False
    """Whether `floor` itself is closed."""
    since: Moment = 0.0
    checked_at: Moment = 0.0
    """When its health was last read and judged without a fault; 0.0: not since the service
    started."""
    attached: tuple[str, ...] = ()
    """Claims that look into the device with adminAccess."""
    kept_by: str = ""
    """Who has had it for too long while it is out of service or dirty: pod or process, in words."""
    progress: WipeProgress | None = None
    partitioning: str = ""
    """Of an accelerator that is partitioned: how it stands, and the baseline taken before."""
    attributes: dict[str, str] = {}


class ClaimBrief(Message):
    """A claim record on a node. Without one, no call of the claim is in work there either."""

    uid: str
    state: str
    namespace: str = ""
    name: str = ""
    held: bool = False
    """Whether our reservation was seen on the claim when it was prepared."""
    token: TokenText = "0.0"  # noqa: S105  a fencing token, not a secret
    """Token of the lease it has by the record; 0.0: none yet."""
    units: tuple[str, ...] = ()
    """What it has to itself."""


class Owed(Message):
    """A buried claim whose marks (hold, finalizer) are still to be taken off at the API.

    Told once the claim's lease has been given back: lease, hold, finalizer, in this order (D6).
    """

    uid: str
    namespace: str
    name: str
    devices: tuple[str, ...] = ()
    """UUIDs of the devices it had to itself."""


class Replication(Message):
    """How far copies of evidence in the archive are."""

    archive: str = ""
    """As people name it; empty before it was opened."""
    required: bool = True
    """Whether whoever goes must have copied all of it before (policy `replicated`)."""
    backlog: int | None = 0
    """What is not in the archive yet; None: it cannot be told, which is no better than some."""
    oldest_at: Moment = 0.0
    """When the oldest of it was made; 0.0: there is none."""
    error: str = ""
    """Why the last try failed."""
    refused: bool = False
    """Whether it failed for something that no later try changes: somebody has to repair it."""
    aside: tuple[str, ...] = ()
    """What the archive would not take, part of `backlog`."""


class UnitsView(Message):
    """The units of a node that are in one state."""

    units: int = 0
    bytes: int = 0
    since: Moment = 0.0
    """Since when the one is that came first, s since the epoch; 0.0: there is none."""
    late: int = 0
    """Those longer in it than `fleet.core.state_targets` allows."""


class Tally(Message):
    """What the node's wipes have come to since its journal began; only wipes that wrote count."""

    wipes: dict[Outcome, int] = {}
    covered_bytes: int = 0
    """Memory written and verified in certified wipes."""
    wanted_bytes: int = 0
    """Memory those wipes were to cover: all of it but what the driver reserves."""
    seconds: float = 0.0
    """Duration of those wipes."""
    cleaned: tuple[int, ...] = ()
    """Devices that became clean, by the first of `fleet.node.tallies.BOUNDS_S` that their time
    from dirty to clean kept, and one more for those that kept none."""
    cleaned_seconds: float = 0.0
    """Those times added up."""


class LostDevice(Message):
    """A device the node had and has no more, as its journal has it."""

    device: DeviceView
    slot: str = ""
    closed: str = ""
    """Why nothing is to be done about it any more ("board replaced by ..."); "": it is missed."""


class NodeView(Message):
    """One node now: identity, trouble, devices and the results asked for."""

    node: str
    incarnation: str
    """New for every start of the node service; an answer of an older one is stale."""
    boot_id: str
    at: Moment
    simulated: bool
    backend: str
    epoch: int = 0
    """Epoch of the lease store it follows; 0: none yet."""
    blocked: tuple[str, ...] = ()
    """Why nothing can be prepared on this node now, with what to do; empty: it can."""
    degraded: tuple[str, ...] = ()
    """Why the node serves in a degraded way, `blocked` included; empty when all is well."""
    notes: tuple[str, ...] = ()
    """What cannot be told on this node, or concerns none of its devices; degrades nothing."""
    devices: tuple[DeviceView, ...] = ()
    results: tuple[DeviceResult, ...] = ()
    """Results of the operations asked for, as far as they are finished."""
    outbox: int = 0
    claims: tuple[ClaimBrief, ...] = ()
    """Claim records on the node."""
    owed: tuple[Owed, ...] = ()
    """Claims to be let go at the API; whoever did it says so with `paid`."""
    retired: tuple[str, ...] = ()
    """UUIDs of devices that an operator took out of the slices for good."""
    gone: tuple[str, ...] = ()
    """Units it knows of and does not have any more: it still answers for their tokens."""
    lost: tuple[LostDevice, ...] = ()
    """Devices it had and does not have any more, with what is open against them."""
    replication: Replication | None = None
    """Copies of its certificates in the archive; None: no archive is named."""
    labels: dict[str, str] = {}
    """rack, pool and the like, for planning."""
    units: dict[str, UnitsView] = {}
    """Units of memory by state, those in none left out."""
    tally: Tally = Tally()
    refused: dict[str, int] = {}
    """Acts refused for their token since the service started, by class of the error."""
    log_losses: int = 0
    """Times since then that the kernel log lost records before they were read."""


class Acceptance(Message):
    """A node's answer to one order: accepted (or already known), or refused with the error."""

    operation: str
    accepted: bool
    error: str = ""
    kind: str = ""
    """Class name in `fleet.core.errors` when refused."""
    fields: dict[str, Any] = {}


class Swept(Message):
    """What a sweep saw of one accelerator."""

    device: str
    uuid: str
    failing: bool
    error: str = ""
    """Why it could not be read; empty when it could."""
    findings: tuple[Finding, ...] = ()


class ClaimOrder(Message):
    """Prepare devices of one node for a claim."""

    uid: str = Field(min_length=1)
    node: str
    devices: tuple[str, ...] = ()
    """Device UUIDs or names held by the claim alone, a set in any order."""
    attached: tuple[str, ...] = ()
    """Devices of results with adminAccess: looked into, never held (B35)."""
    token: TokenText | None = None
    """Token of the claim's lease; the device is exposed under it. None: the node finds the claim's
    lease in the store, or acquires one."""
    namespace: str = ""
    name: str = ""
    consumers: tuple[str, ...] = ()
    """UIDs of live consumer pods. After a tombstone at least one is required."""
    wipe: WipePolicy | None = None
    """What to demand beyond the node's own policy; less is never granted."""
    fresh: bool = False
    """Demand a wipe under this claim's own token, whatever the profile accepts."""
    held: bool = False
    """Whether our reservation is on the claim, so that its allocation outlives its pods."""
    note: str = ""
    """Kept with the record and answered again: what the caller needs to answer without the API."""

    @model_validator(mode="after")
    def _names_something(self) -> ClaimOrder:
        if not self.devices and not self.attached:
            raise ValueError("a claim order names at least one device")
        return self


class TeardownOrder(Message):
    """Tear a claim down on one node."""

    uid: str = Field(min_length=1)
    consumers: tuple[str, ...] = ()
    """UIDs of further pods known to use or to have used the claim, for the proof that the tenant
    is gone (kubelet's checkpoint, the live claim)."""
    reserved: tuple[str, ...] = ()
    """UIDs of pods that the API's claim is reserved for now. While one of them still runs, the
    teardown is refused and nothing is changed: kubelet can ask too early (reference 1.5 a)."""
    unheld: bool = False
    """Whether the API has given the claim up: no allocation keeps others off its devices any more,
    so that they must be tainted until they are at rest."""


class Published(Message):
    """What was read back from the node's ResourceSlices."""

    quarantined: dict[str, float] = {}
    """Devices whose quarantine is visible to the scheduler (promise 6): UUID to the `since` of the
    view that was published, so that an earlier quarantine never stands for a later one."""
    unlisted_at: Moment = 0.0
    """When the view was taken (`NodeView.at`) that the slices were read back complete for: a device
    it does not list is not in them, or quarantined as lost. 0.0: not read back so."""
    missing: tuple[Right, ...] = ()
    """Rights at the API server that the plugin lacks."""


class ClaimAnswer(Message):
    """A claim prepared on this node."""

    uid: str
    state: str
    devices: tuple[str, ...] = ()
    spec: str = ""
    cdi: dict[str, tuple[str, ...]] = {}
    """Fully qualified CDI device ids by device UUID, unique first id per device."""
    note: str = ""
    namespace: str = ""
    name: str = ""
    certificates: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    """Devices that did not come back clean from a teardown."""
