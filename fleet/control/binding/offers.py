"""What a node has to offer now: every device of its pools, with what is in the way. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.control.binding.wishes import Wish
from fleet.core.messages import DeviceView, NodeView
from fleet.core.model import State
from fleet.kube.base import Object
from fleet.kube.cel import qualified
from fleet.kube.marks import AGENT
from fleet.plugin.slices import counters, device_attributes
from fleet.plugin.slices.counters import Key
from fleet.plugin.slices.gate import is_quarantined
from fleet.plugin.slices.pool_view import BLOCKING, PoolReading, read_pools

OVERLAP = "overlapping an allocated one"


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a choice depends on, as read just now."""

    driver: str
    classes: Mapping[str, Object]
    slices: Sequence[Object]
    claims: Sequence[Object]
    """Claims of the cluster without the one to be served."""
    nodes: Mapping[str, NodeView]
    now: float
    fresh_s: float
    """Age, s, up to which a verdict of health or a view counts."""
    barred: Collection[str] = ()
    """UUIDs that were tried and could not be had."""
    only: Collection[str] = ()
    """UUIDs that we have secured: nothing else may be chosen. Empty: everything may."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One device of a pool."""

    driver: str
    pool: str
    name: str
    entry: Object
    ours: bool
    uuid: str = ""
    units: frozenset[str] = frozenset()
    obstacle: str = ""
    """Why nobody can be given the device now, taints aside; "" when somebody can."""
    counters: frozenset[Key] = frozenset()
    """What it consumes, as the scheduler counts: of devices that share one, one may be given."""
    unclean: str = ""
    """Key of the taint that only says what the node's view says later and better."""

    def taint(self, wish: Wish) -> str:
        """The taint that keeps the device from this request, as an obstacle; "" without one.

        No toleration opens a device of ours that is quarantined: its node may not know yet what
        was marked for it while it was away.
        """
        closed = f"{self.driver}/quarantined" if self.ours else ""
        for taint in self.entry.get("taints") or ():
            if taint.get("effect") not in BLOCKING or taint.get("key") == self.unclean:
                continue
            if taint.get("key") == closed or not _tolerated(taint, wish.tolerations):
                return f"tainted {taint.get('key')}"
        return ""

    def attribute(self, name: str) -> Object | None:
        """The value of a fully qualified attribute, with its type; None: it has none."""
        wanted = qualified(name, self.driver)
        for key, value in (self.entry.get("attributes") or {}).items():
            if qualified(key, self.driver) == wanted:
                return dict(value)
        return None


def of_node(scene: Scene, node: str) -> list[Offer]:
    """The devices of the node's pools in the order of driver, slice and list."""
    view = scene.nodes[node]
    used = _used(scene)
    found: list[Offer] = []
    for (driver, name), pool in sorted(read_pools(scene.slices).items()):
        ordered = sorted(pool.slices, key=lambda part: str(part["metadata"].get("name", "")))
        entries = [
            entry
            for part in ordered
            if part.get("spec", {}).get("nodeName") == node
            for entry in part["spec"].get("devices") or ()
        ]
        if driver == scene.driver and name == node:
            found += _ours(entries, pool, view, scene=scene, used=used)
        else:
            found += [_foreign(entry, pool) for entry in entries]
    return found


def _foreign(entry: Object, pool: PoolReading) -> Offer:
    why = "another driver's"
    name = str(entry.get("name", ""))
    return Offer(pool.driver, pool.pool, name, entry, ours=False, obstacle=why)


def _ours(
    entries: Sequence[Object],
    pool: PoolReading,
    view: NodeView,
    *,
    scene: Scene,
    used: frozenset[tuple[str, str]],
) -> Iterator[Offer]:
    uuids = {name: uuid for uuid, name in device_attributes.names(view.devices).items()}
    devices = {device.uuid: device for device in view.devices}
    taken = frozenset(
        unit
        for name, uuid in uuids.items()
        if (pool.pool, name) in used
        for unit in devices[uuid].units
    )
    consumed = frozenset(
        key
        for entry in entries
        if (pool.pool, str(entry.get("name", ""))) in used
        for key in counters.keys(entry)
    )
    for entry in entries:
        name = str(entry.get("name", ""))
        device = devices.get(uuids.get(name, ""))
        mine = counters.keys(entry)
        why = "in an incomplete pool" if not pool.complete else ""
        if (pool.pool, name) in used:
            why = why or "allocated to another claim"
        elif device is None:
            why = why or "not on its node" if name != AGENT else "the node's agent"
        else:
            shared = bool(taken.intersection(device.units) or consumed & mine)
            why = why or _obstacle(device, view, scene) or (OVERLAP if shared else "")
        yield Offer(
            pool.driver,
            pool.pool,
            name,
            entry,
            ours=True,
            uuid=device.uuid if device else "",
            units=frozenset(device.units) if device else frozenset(),
            obstacle=why,
            counters=mine,
            unclean=f"{scene.driver}/not-clean" if scene.only else "",
        )


def _obstacle(device: DeviceView, view: NodeView, scene: Scene) -> str:
    if view.blocked or abs(scene.now - view.at) > scene.fresh_s:
        return "on a node that cannot prepare now"
    if is_quarantined(device):
        return "quarantined"
    if device.state != State.CLEAN:
        return f"not clean ({device.state})"
    if device.claim or device.attached:
        return "held by a claim"
    if abs(scene.now - device.checked_at) > scene.fresh_s:
        return "not checked of late"
    if device.uuid in scene.barred:
        return "tried and not to be had"
    return "" if not scene.only or device.uuid in scene.only else "not the one secured"


def _used(scene: Scene) -> frozenset[tuple[str, str]]:
    """Our devices that another claim was given, as (pool, device); admin access uses none."""
    return frozenset(
        (str(result.get("pool")), str(result.get("device")))
        for claim in scene.claims
        for result in results_of(claim)
        if result.get("driver") == scene.driver and result.get("adminAccess") is not True
    )


def results_of(claim: Object) -> list[Object]:
    """Results of a claim's allocation, as far as they can be read."""
    status = _mapping(claim.get("status"))
    devices = _mapping(_mapping(status.get("allocation")).get("devices"))
    results = devices.get("results")
    return [one for one in results if isinstance(one, dict)] if isinstance(results, list) else []


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _tolerated(taint: Object, tolerations: Sequence[Object]) -> bool:
    """Whether a toleration matches by key, operator, value and effect as Kubernetes matches."""
    return any(_matches(taint, one) for one in tolerations)


def _matches(taint: Object, toleration: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    if not toleration.get("key"):
        return False
    return (toleration.get("value") or "") == (taint.get("value") or "")
