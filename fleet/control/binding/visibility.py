"""Whether the scheduler can still choose a device, and how we end that for a node that is silent.

Quarantine is read back before anybody is told that a claim failed (promise 6). The node publishes
it as a rule. Where it does not in time, the coordinator writes the node's slices itself
(`fleet.plugin.slices.takeover`); the node takes its word over when it is back.

Everything is read live and judged as a scheduler would judge it. That the node still has a write
under way which was decided earlier does no harm: ours changes the resourceVersion it is guarded by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleet.core import errors
from fleet.kube.base import SLICES, Cluster, Object, Selection, name_of
from fleet.plugin.slices.pool_view import blocked, devices_of, read_pools
from fleet.plugin.slices.takeover import take_over

ROUNDS = 6
"""Times one call reads, writes and reads again: enough for a conflict on every slice of a node."""


class Visible:
    """Sees to it that devices out of service can be seen to be so. Safe for threads."""

    def __init__(self, cluster: Cluster, driver: str) -> None:
        self._cluster = cluster
        self._driver = driver

    def is_visible(self, node: str, device: str) -> bool:
        """Whether no scheduler that reads the slices now can choose `device` (its slice name).

        Raises what `Cluster.list` raises.
        """
        return not self.hidden(node, (device,))

    def hidden(self, node: str, devices: Iterable[str]) -> frozenset[str]:
        """Those of `devices` whose quarantine cannot be relied on yet; one listing for all."""
        return self._hidden(node, self._slices(node), devices)

    def take_over(self, node: str, devices: Mapping[str, Iterable[str]], now: float) -> bool:
        """Mark the devices (name: reason codes) in the slices of `node`; whether it can be seen.

        False: conflicts or silence kept it from being settled; call again. An answer that did not
        come is settled by reading, never taken for a failure. Raises `ApiForbidden` when the right
        is missing, `InputInvalid` for a name left empty, which would select more than was meant
        (B53), and what `Cluster.list` raises. `now`: seconds since the epoch.
        """
        if not (self._driver and node and devices and all(devices)):
            raise errors.InputInvalid(
                f"no device is named: driver {self._driver!r}, node {node!r}, {[*devices]}",
                remedy="name driver, node and device",
            )
        asked = {name: tuple(codes) for name, codes in devices.items()}
        untaintable: set[str] = set()
        for _ in range(ROUNDS):
            found = self._slices(node)
            if self._settled(found, asked, now=now, removed=untaintable):
                return not self._hidden(node, found, asked)
            for part in found:
                self._write(part, asked, now=now, untaintable=untaintable)
        return not self.hidden(node, asked)

    def _settled(
        self,
        found: Sequence[Object],
        asked: Mapping[str, Sequence[str]],
        *,
        now: float,
        removed: set[str],
    ) -> bool:
        """Whether every slice says all of it."""
        return all(self._body(part, asked, now=now, untaintable=removed) is None for part in found)

    def _body(
        self,
        part: Object,
        asked: Mapping[str, Sequence[str]],
        *,
        now: float,
        untaintable: set[str],
    ) -> Object | None:
        out = {name: codes for name, codes in asked.items() if name in untaintable}
        body = take_over(part, out, driver=self._driver, now=now, remove=True) if out else None
        rest = {name: codes for name, codes in asked.items() if name not in out}
        return take_over(body or part, rest, driver=self._driver, now=now) or body

    def _write(
        self,
        part: Object,
        asked: Mapping[str, Sequence[str]],
        *,
        now: float,
        untaintable: set[str],
    ) -> None:
        """One slice; whatever came of it shows in the next reading."""
        body = self._body(part, asked, now=now, untaintable=untaintable)
        if body is None:
            return
        there = {str(entry.get("name")) for entry in devices_of(part)} & asked.keys()
        try:
            answer = self._cluster.replace(SLICES, body)
        except errors.ApiForbidden:
            raise
        except errors.ApiInvalid:
            untaintable |= there  # a server of other limits: out of the slice is out of reach too
        except (
            errors.ApiConflict,
            errors.ApiNotFound,
            errors.ApiFailed,
            errors.ApiUnavailable,
        ):
            return
        else:
            kept = {str(e.get("name")): e for e in devices_of(answer)}
            untaintable |= {n for n in there if n in kept and not kept[n].get("taints")}

    def _slices(self, node: str) -> Sequence[Object]:
        listing = self._cluster.list(
            SLICES, Selection(fields=f"spec.nodeName={node},spec.driver={self._driver}")
        )
        return sorted(listing.items, key=lambda part: name_of(part).name)

    def _hidden(self, node: str, found: Sequence[Object], devices: Iterable[str]) -> frozenset[str]:
        reading = read_pools(found).get((self._driver, node))
        if reading is None:
            return frozenset()  # no pool, no device to choose
        if not reading.complete:
            return frozenset(devices)
        key = f"{self._driver}/quarantined"
        return frozenset(
            name
            for name in devices
            if not all(
                blocked(entry) and any(t.get("key") == key for t in entry.get("taints") or ())
                for entry in reading.devices.get(name, ())
            )
        )
