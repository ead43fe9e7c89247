"""The Node condition that says a device of the node needs a reboot.

Written by server-side apply under a field manager of our own, so that we own this one condition
and nothing else of the Node: conditions of others, taints and cordons stay as they are. Whether to
reboot, and when, is decided by people or by whatever watches node conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet import errors
from fleet.health.reboots import needs_reboot
from fleet.kube.base import NODES, Cluster, Name, Object, uid_of, version_of
from fleet.messages import NodeView

MANAGER = "fleetscrub-nodes"
"""Field manager of this condition alone."""
RESYNC_S = 300.0
"""Age, s, at which the Node is looked at again though nothing changed."""
MESSAGE_MAX = 1024
NONE = "no device needs a reboot"


@dataclass(frozen=True, slots=True)
class _Said:
    true: bool
    message: str
    at: float


@dataclass
class RebootConditions:
    """Keeps the condition of all nodes. `step` on one thread."""

    cluster: Cluster
    driver: str
    _said: dict[str, _Said] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Type of the condition."""
        return f"{self.driver}/RebootRequired"

    def step(
        self, views: Mapping[str, NodeView | errors.FleetError | None], now: float
    ) -> Mapping[str, errors.FleetError]:
        """Say it where it changed; the nodes that could not be written, by name.

        A node that is silent keeps its condition. One that never needed a reboot gets none.
        `now`: seconds since the epoch.
        """
        failed: dict[str, errors.FleetError] = {}
        for gone in self._said.keys() - views.keys():
            del self._said[gone]
        for node, view in views.items():
            if not isinstance(view, NodeView):
                continue
            message = _message(view)
            wanted = _Said(bool(message), message or NONE, now)
            known = self._said.get(node)
            if known is not None and _same(known, wanted) and 0 <= now - known.at < RESYNC_S:
                continue
            try:
                self._say(node, wanted, now)
            except errors.ApiNotFound:
                self._said[node] = wanted  # no Node of that name now; looked for again later
            except errors.FleetError as error:
                failed[node] = error
            else:
                self._said[node] = wanted
        return failed

    def _say(self, node: str, wanted: _Said, now: float) -> None:
        found = self.cluster.get(NODES, Name(node))
        stored = self._stored(found)
        status = "True" if wanted.true else "False"
        if stored is None and not wanted.true:
            return
        if stored and (stored.get("status"), stored.get("message")) == (status, wanted.message):
            return
        same = stored is not None and stored.get("status") == status
        since = stored.get("lastTransitionTime") if same and stored else None
        condition = {
            "type": self.kind,
            "status": status,
            "reason": "DeviceFault" if wanted.true else "NoDeviceFault",
            "message": wanted.message,
            "lastHeartbeatTime": _stamp(now),
            "lastTransitionTime": since or _stamp(now),
        }
        body = {
            "apiVersion": NODES.api_version,
            "kind": NODES.kind,
            "metadata": {"name": node, "uid": uid_of(found), "resourceVersion": version_of(found)},
            "status": {"conditions": [condition]},
        }
        self.cluster.apply(NODES, body, manager=MANAGER, subresource="status")

    def _stored(self, found: Object) -> Object | None:
        listed = (found.get("status") or {}).get("conditions") or ()
        return next((dict(one) for one in listed if one.get("type") == self.kind), None)


def _same(one: _Said, other: _Said) -> bool:
    return (one.true, one.message) == (other.true, other.message)


def _message(view: NodeView) -> str:
    """The devices that need it, "" when there is none. Names no tenant."""
    found = sorted(
        f"{device.name} ({', '.join(codes)})"
        for device in view.devices
        if (codes := sorted({r.code for r in device.reasons if needs_reboot(r)}))
    )
    return f"needed by {'; '.join(found)}"[:MESSAGE_MAX] if found else ""


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
