"""What the plugin tells probes and scrapers about itself.

``/healthz`` fails only for what a restart of this process can cure: an event loop that stands, or a
socket that somebody took away. ``/readyz`` also wants kubelet's registration, an owner of the
node's journal, a node on which something can be prepared, its rights, and slices that are kept; it
names what is missing. ``/metrics`` has the figures behind both, and those of the node
(docs/metrics.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

from fleet.core.messages import PLUGIN_LACKS, NodeView
from fleet.metrics import of_node
from fleet.metrics.exposition import CONTENT_TYPE, rendered
from fleet.metrics.metric import Sample
from fleet.metrics.of_plugin import OWNERS, STARTED
from node_plugin.http import Page, Pages
from node_plugin.ports import Lack, Standing, Surroundings
from node_plugin.registration import Registered
from node_plugin.server import PluginServer

SILENCE_MAX_S = 10.0
"""Time, s, the event loop may take to show that it runs: ten of its beats."""
UNPUBLISHED_MAX_S = 30.0
"""Time, s, from our start in which the node's slices may be published for the first time."""
UNCONFIRMED_MAX_S = 60.0
"""Age, s, up to which the last confirmation of the slices counts."""

VIEW_AGE_MAX_S = 60.0
"""Age, s, up to which the owner's last view is told: longer than a change of owners takes."""
_UNTOLD = "no answer of the API server yet, or no Node object; the plugin's log says more"


class Vitals:
    """The pages of one plugin. Safe for threads."""

    def __init__(
        self,
        server: PluginServer,
        surroundings: Surroundings,
        *,
        node: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._server = server
        self._node = node
        self._surroundings = surroundings
        self._now = now
        self._began = now()

    def pages(self) -> Pages:
        """Pages by path."""
        return {"/healthz": self.healthz, "/readyz": self.readyz, "/metrics": self.metrics}

    def healthz(self) -> Page:
        """Whether this process should be left running."""
        return _verdict(self._sick())

    def readyz(self) -> Page:
        """Whether kubelet's calls get work done now."""
        standing = self._surroundings.standing()
        lesser = [one for one in standing.missing if one.lesser]
        return _verdict(
            [one.text for one in self._unready(standing)],
            [f"a right is missing that need not be: {one}" for one in lesser],
        )

    def lacks(self) -> Sequence[Lack]:
        """All that is not as it should be, also what keeps nobody from being served."""
        standing = self._surroundings.standing()
        lesser = [
            one
            for one in standing.degraded
            if one not in standing.blocked and not one.startswith(PLUGIN_LACKS)
        ]
        return [
            *self._unready(standing),
            *(
                Lack("RightMissing", f"a right is missing that need not be: {one}")
                for one in standing.missing
                if one.lesser
            ),
            *(Lack("NodeDegraded", why) for why in lesser),
            *(Lack("SlicesIncomplete", why) for why in standing.troubles),
            *(
                Lack("DeviceWithheld", f"{name} is not in the ResourceSlices: {why}")
                for name, why in sorted(standing.withdrawn.items())
            ),
        ]

    def _unready(self, standing: Standing) -> list[Lack]:
        registration = self._server.registration
        found = [Lack("NotServing", why) for why in self._sick()]
        if registration.state is Registered.WAITING:
            found.append(Lack("NotRegistered", "kubelet has not registered the plugin yet"))
        if registration.state is Registered.REFUSED:
            told = f"kubelet refused the registration: {registration.reason}"
            found.append(Lack("NotRegistered", told))
        if not standing.owner_reachable:
            why = f": {standing.unreachable}" if standing.unreachable else ""
            told = f"no owner of the node's journal answers; claims get retryable errors{why}"
            found.append(Lack("NodeSilent", told))
        elif standing.unviewed:
            told = f"the owner of the node's journal tells nothing: {standing.unviewed}"
            found.append(Lack("NodeSilent", told))
        found += [
            Lack("NodeBlocked", f"nothing can be prepared on this node: {why}")
            for why in standing.blocked
        ]
        found += [
            Lack("RightMissing", f"a right is missing: {one}")
            for one in standing.missing
            if not one.lesser
        ]
        return [*found, *self._unpublished(standing)]

    def metrics(self) -> Page:
        """All figures in Prometheus' text format."""
        standing = self._surroundings.standing()
        samples = (
            *self._server.figures.samples(),
            *self._samples(standing),
            *self._of_node(standing.view),
        )
        return Page(rendered(samples), content_type=CONTENT_TYPE)

    def _sick(self) -> list[str]:
        found = []
        if self._server.silent_s > SILENCE_MAX_S:
            found.append(f"the event loop does not run since more than {SILENCE_MAX_S:g} s")
        if not self._server.serving:
            found.append("not serving: a socket is missing, replaced or being closed")
        return found

    def _unpublished(self, standing: Standing) -> list[Lack]:
        age_s = self._age_s(standing)
        if age_s is None:
            return []
        never = standing.published_at is None
        if age_s <= (UNPUBLISHED_MAX_S if never else UNCONFIRMED_MAX_S):
            return []
        how = "were never published" if never else "are not confirmed"
        why = "; ".join(standing.troubles) or standing.unviewed or _UNTOLD
        told = f"the node's ResourceSlices {how} since {age_s:.0f} s: {why}"
        return [Lack("SlicesNotPublished", told)]

    def _age_s(self, standing: Standing) -> float | None:
        """Time since the slices were last confirmed, or since our start when they never were.

        None while another instance keeps them: their age is that one's to tell.
        """
        if standing.elsewhere:
            return None
        since = self._began if standing.published_at is None else standing.published_at
        return max(0.0, self._now() - since)

    def _samples(self, standing: Standing) -> Iterator[Sample]:
        registration = self._server.registration
        yield Sample(STARTED, self._began, (("node", self._node),))
        yield Sample("fleet_plugin_claims_in_work", self._server.claims_in_work)
        yield Sample("fleet_plugin_registered", registration.state is Registered.ACCEPTED)
        for result, count in (
            ("accepted", registration.accepted),
            ("refused", registration.refused),
        ):
            yield Sample("fleet_plugin_registrations_total", count, (("result", result),))
        yield Sample("fleet_plugin_owner_reachable", standing.owner_reachable)
        for owner in OWNERS if standing.owner else ():
            yield Sample("fleet_plugin_journal_owner", owner == standing.owner, (("owner", owner),))
        if standing.published_at is not None:
            confirmed = "fleet_plugin_slices_confirmed_timestamp_seconds"
            yield Sample(confirmed, standing.published_at)
        age_s = self._age_s(standing)
        if age_s is not None:
            yield Sample("fleet_plugin_slices_age_seconds", age_s)
        yield Sample("fleet_plugin_node_blocked", bool(standing.blocked))
        yield Sample("fleet_plugin_health_streams", self._server.board.streams)

    def _of_node(self, view: NodeView | None) -> Iterator[Sample]:
        """The node's figures as long as they are true; of an old view only when it was taken."""
        if view is None:
            return
        if self._now() - view.at <= VIEW_AGE_MAX_S:
            yield from of_node.samples(view)
        else:
            yield of_node.timestamp(view)


def _verdict(missing: list[str], notes: Sequence[str] = ()) -> Page:
    text = "".join(f"{line}\n" for line in (*(missing or ["ok"]), *notes))
    return Page(text, HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK)
