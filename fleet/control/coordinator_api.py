"""What may be asked of the coordinator, wherever it runs.

`fleet.control.coordinator.Coordinator` does it; `actors.handles.RemoteCoordinator` asks its actor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from fleet.control.binding.loop import BindingView
from fleet.core.leases import AcquireRequest
from fleet.core.messages import DeviceResult, Message, Replication, TokenText
from fleet.core.model import HolderKind, Lease, NodeName, RunId, Token
from fleet.evidence.ledger import LedgerHead
from fleet.rpc.calls import Interface, Refusal, verb
from fleet.stores.base import Release, Renewal, RunRecord


class CoordinatorView(Message):
    """The coordinator now."""

    incarnation: str
    at: float
    newest: TokenText
    suspended: TokenText | None = None
    """The floor by which the store was found behind; nothing is granted then."""
    leases: int = 0
    holders: dict[HolderKind, int] = Field(default_factory=dict)
    """Leases in force by kind of holder."""
    out_of_service: int = 0
    open_runs: tuple[str, ...] = ()
    binding: BindingView | None = None
    """How the claims of a cluster stand; None: this coordinator does not reconcile any."""
    replication: Replication | None = None
    """Copies of countersignatures and runs in the archive; None: no archive is named."""
    operations: dict[str, int] = Field(default_factory=dict)
    """Operations on leases since this coordinator started, as `lease_operations.key` has them."""


class CoordinatorApi(Interface):
    """Leases, runs and chain heads of one fleet.

    Every method raises `StoreUnavailable` when the store does not answer, and `SettingsInvalid`
    when it is another host's.
    """

    @verb()
    def view(self) -> CoordinatorView:
        """The coordinator now, for status and audit."""

    @verb()
    def newest(self) -> Token:
        """Epoch and last counter issued."""

    # --- leases ---

    @verb()
    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> Sequence[Lease | Refusal]:
        """One answer for each request, in order, all decided in one transaction."""

    @verb()
    def renew_all(self, renewals: Sequence[Renewal]) -> Sequence[Lease | Refusal]:
        """Prolong leases, one answer for each; `LeaseLost` for one that is gone."""

    @verb()
    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | Refusal]:
        """Give leases back; whether anything was held, for each."""

    @verb()
    def leases(self) -> Sequence[Lease]:
        """The leases in force, by token."""

    # --- runs ---

    @verb()
    def open(self, record: RunRecord) -> RunRecord:
        """Begin a run. Repeating it with the same content returns what is stored."""

    @verb()
    def resume(self, run: RunId) -> RunRecord:
        """Go on with a run that was stopped or whose job died."""

    @verb()
    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        """Keep results with the run; a repeated one changes nothing."""

    @verb()
    def close(self, run: str, exit_reason: str) -> None:
        """End a run and give its leases up. It can be resumed unless the reason is final."""

    @verb()
    def run(self, run: RunId) -> RunRecord:
        """One run with its results. Raises `RunUnknown`."""

    @verb()
    def runs(self, limit: int) -> Sequence[RunRecord]:
        """The newest runs first."""

    @verb()
    def unfinished(self) -> Sequence[RunRecord]:
        """Runs that are RUNNING or STOPPED, oldest first."""

    # --- evidence ---

    @verb()
    def sign_heads(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Countersign the newest certificates the nodes report."""
