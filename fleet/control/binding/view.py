"""What the coordinator says of its reconciliation: read by verbs, which load nothing of it."""

from __future__ import annotations

from fleet.core.messages import Message, Moment, Right


class BindingView(Message):
    """How the reconciliation of claims stands. Times are seconds since the epoch."""

    stepped_at: Moment = 0.0
    """When a step last ended well; 0.0: not since the start."""
    step_s: float = 0.0
    """How long it took, s."""
    open_claims: int = 0
    """Claims that are kept an eye on."""
    silent_nodes: tuple[str, ...] = ()
    """Nodes that did not answer at the last survey."""
    trouble: str = ""
    """Why nothing is done, or not everything, with what to do; "" while all is well."""
    trouble_since: Moment = 0.0
    missing: tuple[Right, ...] = ()
    """Rights at the API server that its account lacks."""
    nodes: str = ""
    """Label selector of the Nodes whose claims it decides about; "": all."""
