"""The Node condition that says a device of the node needs a reboot.

Written by server-side apply under a field manager of our own, so that we own this one condition
and nothing else of the Node: conditions of others, taints and cordons stay as they are. Whether to
reboot, and when, is decided by people or by whatever watches node conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fleet.control.binding.object_cache import Cached
from fleet.core import errors
from fleet.core.messages import NodeView, ReasonView
from fleet.devices.health import checks, reasons, xids
from fleet.kube.base import NODES, Cluster, Name, Object, name_of, uid_of, version_of

# Which quarantine reasons only a reboot of the node ends. Pure.
#
# The tables say so: a check, a fault code or the driver's own verdict whose action is ``reboot``. A
# reason keeps the remedy of what gave it, and by that it is known again; the code alone does not
# tell, since one code (`xid`) stands for many faults.


def _remedies() -> frozenset[str]:
    found = {row["remedy"] for row in checks.RECOVERY.values() if row.get("action") == "reboot"}
    found |= {check.remedy for check in checks.CHECKS if check.action is checks.Action.REBOOT}
    found.add(checks.remedy_of(xids.Severity.REBOOT))
    found.add(reasons.entry("reset-failed").remedy)
    return frozenset(found)


REMEDIES = _remedies()
"""Others may mention a reboot as a last resort; these ask for one."""


def needs_reboot(reason: ReasonView) -> bool:
    """Whether nothing less than a reboot brings the device back."""
    return reason.source == "health" and reason.remedy in REMEDIES


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
    nodes: Cached | None = None
    """All Nodes, if somebody watches them: what they show is not asked for again."""
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
        shown: Mapping[str, Object] | None = None
        for node, view in views.items():
            if not isinstance(view, NodeView):
                continue
            message = _message(view)
            wanted = _Said(bool(message), message or NONE, now)
            known = self._said.get(node)
            if known is not None and _same(known, wanted) and 0 <= now - known.at < RESYNC_S:
                continue
            shown = self._shown() if shown is None else shown
            if self.nodes is not None and not wanted.true and not self.nodes.synced:
                continue  # the watch says soon whether anything has to be taken back
            if node in shown and self._stands(self._stored(shown[node]), wanted):
                self._said[node] = wanted
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
        if self._stands(stored, wanted):
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

    def _shown(self) -> Mapping[str, Object]:
        """Nodes by name, as far as they are known without asking."""
        items = self.nodes.items.values() if self.nodes is not None else ()
        return {name_of(found).name: found for found in items}

    def _stands(self, stored: Object | None, wanted: _Said) -> bool:
        """Whether nothing is to be written; one that never needed a reboot gets no condition."""
        if stored is None:
            return not wanted.true
        status = "True" if wanted.true else "False"
        return (stored.get("status"), stored.get("message")) == (status, wanted.message)

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
