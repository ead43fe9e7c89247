"""What an audit can find, and what to do about each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from fleet.core.messages import Message


class Trouble(StrEnum):
    """What an audit can find."""

    LEASE_UNKNOWN_UNIT = "lease-of-unknown-unit"
    LEASE_WITHOUT_HOLDER = "lease-without-holder"
    LEASE_FOREIGN = "lease-of-another"
    LEASE_RUN_ENDED = "lease-of-ended-run"
    LEASE_CLOSED = "lease-closed-by-node"
    IN_USE_WITHOUT_LEASE = "in-use-without-lease"
    TOKEN_AHEAD = "token-ahead-of-store"  # noqa: S105  a word for an operator, not a secret
    EPOCH_FOREIGN = "epoch-foreign"
    CERTIFICATE_MISSING = "certificate-missing"
    NODE_DEGRADED = "node-degraded"
    NODE_SILENT = "node-silent"
    EVIDENCE_BROKEN = "evidence-broken"
    QUARANTINE_WITHOUT_REASON = "quarantine-without-reason"
    LEASE_OF_GONE_CLAIM = "lease-of-gone-claim"
    RECORD_OF_GONE_CLAIM = "record-of-gone-claim"
    ALLOCATED_WITHOUT_LEASE = "allocated-without-lease"
    LEASE_MISSING = "lease-missing-in-store"
    ALLOCATED_TWICE = "allocated-twice"
    FREE_BUT_MARKED = "free-but-marked"
    CLAIM_UNCLEAR = "claim-unclear"
    API_SILENT = "api-silent"
    COORDINATOR_TROUBLED = "coordinator-troubled"


REMEDIES: Mapping[Trouble, str] = {
    Trouble.LEASE_UNKNOWN_UNIT: "start the node that has the unit, or forget it if it is gone",
    Trouble.LEASE_WITHOUT_HOLDER: "if the claim is gone, its node must abandon it; then release it",
    Trouble.LEASE_FOREIGN: "find out which of the two is right before anybody gets the device",
    Trouble.LEASE_RUN_ENDED: "nothing to do: it expires; a run that still works renews it",
    Trouble.LEASE_CLOSED: "the release waits in the node's outbox; if it stays, restart the node",
    Trouble.IN_USE_WITHOUT_LEASE: "the node lets nobody else have it; `fleet store adopt` puts back"
    " a lease that the store has lost",
    Trouble.TOKEN_AHEAD: "the store is an older copy: run `fleet store adopt`",
    Trouble.EPOCH_FOREIGN: "node and store do not belong together: mount or restore the store that"
    " the node knows, or run `fleet store adopt`",
    Trouble.CERTIFICATE_MISSING: "scrub the device; keep the ledger for inquiry",
    Trouble.NODE_DEGRADED: "see `fleet status`",
    Trouble.NODE_SILENT: "start the node's service, then audit again",
    Trouble.EVIDENCE_BROKEN: "see `fleet evidence verify`; if the node signs with a revoked"
    " key, stop it and run `fleet evidence keys rotate NODE` first; scrub the devices, keep the"
    " files",
    Trouble.QUARANTINE_WITHOUT_REASON: "run `fleet reconcile`",
    Trouble.LEASE_OF_GONE_CLAIM: "run `fleet reconcile`; it says what it waits for",
    Trouble.RECORD_OF_GONE_CLAIM: "the node tears it down; `fleet reconcile` begins it now",
    Trouble.ALLOCATED_WITHOUT_LEASE: "somebody bound our devices around us: find out who writes"
    " allocations; the node refuses them until they have a lease",
    Trouble.LEASE_MISSING: "the store was lost or is an older copy: run `fleet store adopt`, which"
    " reinstates it",
    Trouble.ALLOCATED_TWICE: "the node serves one of them only: delete the pod that waits",
    Trouble.FREE_BUT_MARKED: "run `fleet reconcile`",
    Trouble.CLAIM_UNCLEAR: "look at it with `kubectl`; whoever wrote it broke it",
    Trouble.API_SILENT: "name the cluster with --kubeconfig FILE, or see its API server; then"
    " audit again; --no-cluster says that the fleet serves none",
    Trouble.COORDINATOR_TROUBLED: "see its log; `fleet claim show` says what it means for a claim",
}


class AuditFinding(Message):
    """One disagreement."""

    trouble: Trouble
    place: str
    """node/device, or the units of a lease nobody reports."""
    detail: str
    remedy: str


def finding(trouble: Trouble, place: str, detail: str) -> AuditFinding:
    """One disagreement with its remedy."""
    return AuditFinding(trouble=trouble, place=place, detail=detail, remedy=REMEDIES[trouble])
