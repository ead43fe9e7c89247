"""Figures for the Ray dashboard, Prometheus and Grafana (E4).

Labels are few on purpose: node, state and outcome, never a device or a claim. Ray adds its own
worker id, so sum by node. Counters here restart with the actor: durable totals are in the journal.
"""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge

from fleet.messages import NodeView, Outcome
from fleet.model import State


class Tally:
    """Tells from one view to the next which wipes have ended. Pure."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, str]] = {}

    def ended(self, view: NodeView) -> list[tuple[Outcome, int]]:
        """Outcome and memory, bytes, of each device that came out of a wipe since the last view.

        The first sight of a device counts nothing: its past belongs to an earlier process.
        """
        found = []
        for device in view.devices:
            before = self._seen.get(device.uuid)
            self._seen[device.uuid] = (device.state, device.certificate)
            if before is None:
                continue
            state, certificate = before
            if device.certificate not in ("", certificate):
                found.append((Outcome.CERTIFIED, device.memory_bytes))
            elif device.state == State.QUARANTINED and state != State.QUARANTINED:
                found.append((Outcome.QUARANTINED, device.memory_bytes))
        return found


class NodeFigures:
    """The figures of one node, fed from its views."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._tally = Tally()
        keys = ("node",)
        self._devices = Gauge(
            "fleet_devices", description="Devices by state.", tag_keys=("node", "state")
        )
        self._degraded = Gauge(
            "fleet_node_degraded", description="1 while the node serves degraded.", tag_keys=keys
        )
        self._outbox = Gauge(
            "fleet_node_outbox", description="Releases waiting to be delivered.", tag_keys=keys
        )
        self._working = Gauge(
            "fleet_wipe_bytes_in_work",
            description="Bytes done in the wipes now in work, over all passes.",
            tag_keys=keys,
        )
        self._wipes = Counter(
            "fleet_wipes", description="Wipes ended, by outcome.", tag_keys=("node", "outcome")
        )
        self._bytes = Counter(
            "fleet_wiped_bytes",
            description="Memory of devices certified, bytes.",
            tag_keys=keys,
        )

    def observe(self, view: NodeView) -> None:
        """Publish `view`; a device whose certificate or state moved on counts as a wipe ended."""
        counts = dict.fromkeys((str(state) for state in State), 0)
        for device in view.devices:
            counts[device.state] = counts.get(device.state, 0) + 1
        for state, count in counts.items():
            self._devices.set(count, tags={"node": self._node, "state": state})
        tags = {"node": self._node}
        self._degraded.set(1 if view.degraded else 0, tags=tags)
        self._outbox.set(view.outbox, tags=tags)
        done = sum(device.progress.done for device in view.devices if device.progress)
        self._working.set(done, tags=tags)
        self._count(view)

    def _count(self, view: NodeView) -> None:
        for outcome, memory_bytes in self._tally.ended(view):
            self._wipes.inc(1, tags={"node": self._node, "outcome": outcome})
            if outcome == Outcome.CERTIFIED:
                self._bytes.inc(memory_bytes, tags={"node": self._node})
