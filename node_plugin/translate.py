"""Between kubelet's messages and plain values. Pure, and no value of ours can break an answer.

A text that protobuf refuses would fail the whole call and with it every other claim of the pod, so
each entry is made by itself and one that cannot be made becomes that claim's error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fleet.core.errors import FleetError, Unforeseen
from fleet.plugin.requests import AskedClaim, PreparedClaim, PreparedDevice
from node_plugin.proto import dra_v1_pb2 as v1
from node_plugin.proto import dra_v1beta1_pb2 as v1beta1

ERROR_BYTES_MAX = 1024
"""Bytes of an error text: it becomes a pod's event, which is cut there."""
_CUT = "..."


class WireClaim(Protocol):
    """A claim on the wire, of either version."""

    namespace: str
    uid: str
    name: str


def asked_claims(claims: Iterable[WireClaim]) -> list[AskedClaim]:
    """The claims of a request, in its order."""
    return [AskedClaim(claim.namespace, claim.uid, claim.name) for claim in claims]


def prepared_v1(
    outcomes: Mapping[str, PreparedClaim | FleetError],
) -> v1.NodePrepareResourcesResponse:
    """The answer of v1, one entry for each outcome."""
    return v1.NodePrepareResourcesResponse(
        claims={uid: _entry_v1(outcome) for uid, outcome in outcomes.items()}
    )


def prepared_v1beta1(
    outcomes: Mapping[str, PreparedClaim | FleetError],
) -> v1beta1.NodePrepareResourcesResponse:
    """The answer of v1beta1, which knows no shares."""
    return v1beta1.NodePrepareResourcesResponse(
        claims={uid: _entry_v1beta1(outcome) for uid, outcome in outcomes.items()}
    )


def unprepared_v1(outcomes: Mapping[str, FleetError | None]) -> v1.NodeUnprepareResourcesResponse:
    """The answer of v1, one entry for each outcome."""
    return v1.NodeUnprepareResourcesResponse(
        claims={
            uid: v1.NodeUnprepareResourceResponse(error=error_text(outcome))
            for uid, outcome in outcomes.items()
        }
    )


def unprepared_v1beta1(
    outcomes: Mapping[str, FleetError | None],
) -> v1beta1.NodeUnprepareResourcesResponse:
    """The answer of v1beta1, one entry for each outcome."""
    return v1beta1.NodeUnprepareResourcesResponse(
        claims={
            uid: v1beta1.NodeUnprepareResourceResponse(error=error_text(outcome))
            for uid, outcome in outcomes.items()
        }
    )


def error_text(outcome: FleetError | None) -> str:
    """What is wrong and what to do, for a pod's event; "" when nothing is wrong, never else.

    The owner of the pod reads it: other tenants are not named, as they are in log and status.
    """
    if outcome is None:
        return ""
    return shortened(outcome.told, limit_bytes=ERROR_BYTES_MAX) or type(outcome).__name__


def shortened(text: str, *, limit_bytes: int, encoding: str = "utf-8") -> str:
    """`text` on one line, in characters `encoding` has, cut to `limit_bytes` between characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    encoded = line.encode(encoding, "replace")
    if len(encoded) <= limit_bytes:
        return encoded.decode(encoding)
    return encoded[: limit_bytes - len(_CUT)].decode(encoding, "ignore") + _CUT


def base_requests(device: PreparedDevice) -> list[str]:
    """Names of requests as containers name them: without the subrequest, each once."""
    return list(dict.fromkeys(name.partition("/")[0] for name in device.requests))


def _entry_v1(outcome: PreparedClaim | FleetError) -> v1.NodePrepareResourceResponse:
    if isinstance(outcome, FleetError):
        return v1.NodePrepareResourceResponse(error=error_text(outcome))
    try:
        return v1.NodePrepareResourceResponse(
            devices=[
                v1.Device(
                    request_names=base_requests(device),
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids,
                    share_id=device.share_id,
                )
                for device in outcome.devices
            ]
        )
    except (TypeError, ValueError) as error:
        return v1.NodePrepareResourceResponse(error=error_text(_unsendable(error)))


def _entry_v1beta1(outcome: PreparedClaim | FleetError) -> v1beta1.NodePrepareResourceResponse:
    if isinstance(outcome, FleetError):
        return v1beta1.NodePrepareResourceResponse(error=error_text(outcome))
    try:
        return v1beta1.NodePrepareResourceResponse(
            devices=[
                v1beta1.Device(
                    request_names=base_requests(device),
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids,
                )
                for device in outcome.devices
            ]
        )
    except (TypeError, ValueError) as error:
        return v1beta1.NodePrepareResourceResponse(error=error_text(_unsendable(error)))


def _unsendable(error: Exception) -> Unforeseen:
    return Unforeseen(f"the claim is prepared, but its answer cannot be sent: {error}")
