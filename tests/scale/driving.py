"""One campaign over nodes of `tests.scale.hosting`: campaign, coordinator and stores are real.

The process that is measured: what it spends is what the product spends, the nodes' side of the
socket is another process. The store is SQLite on disk with durable commits, as it would be for a
fleet of one host; time is virtual, so no wipe is waited for.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.control.campaign import select
from fleet.control.campaign.ports import Requests
from fleet.control.campaign.run import Campaign, Scope
from fleet.control.coordinator import Coordinator
from fleet.core.errors import FleetError, RayUnavailable
from fleet.core.leases import AcquireRequest
from fleet.core.messages import Acceptance, DeviceResult, Message, NodeView, Outcome, ScrubOrder
from fleet.core.model import Lease, NodeName, RunId
from fleet.core.settings import CampaignPolicy
from fleet.evidence.ledger import LedgerHead
from fleet.stores.base import Release, Renewal, RunRecord
from fleet.stores.sqlite import Stores, open_stores
from tests.scale import hosting
from tests.scale.nodes import START

PERIOD_S = 0.1
"""Period, s of virtual time, of the campaign's step: as `jobs.scrub`."""
TICKS_MAX = 2_000_000


class Order(Message):
    """What one driver is to do."""

    socket: str
    state: str
    policy: CampaignPolicy = CampaignPolicy()
    run: str = "run-1"
    resume: bool = False
    die_after: int = 0
    """Kill itself, as kill -9 does, once so many results are in the store; 0: never."""


class Bill(Message):
    """What the campaign cost this process, and how it ended."""

    devices: int
    exit_reason: str
    exit_code: int
    breaker: str
    outcomes: dict[Outcome, int]
    cpu_s: float
    """Processor time from the first step to the run's end, report and store included."""
    coordinator_s: float
    """Of it inside the coordinator and its store."""
    telling_s: float
    """Of it for the status at each step and the report at the end."""
    wall_s: float
    virtual_s: float
    ticks: int
    looks: int
    """Views of nodes asked for."""
    calls: int
    """Calls of the coordinator, each one transaction of the store at most."""
    rss_before: int
    rss_peak: int
    """Bytes resident before the first step, and at most."""
    store_bytes: int
    wiped_most: int = 0
    """Wipes of the device that was wiped most often, over all drivers of the run."""


class Clock:
    """`fleet.core.clock.Clock` whose time the driver sets."""

    def __init__(self, now: float) -> None:
        self.at = now

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    def monotonic(self) -> float:
        """Seconds since the nodes began."""
        return self.at - START


class Line:
    """The nodes' process at the other end of a socket."""

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)

    def ask(self, message: Mapping[str, Any]) -> Any:
        """One question. Raises `RayUnavailable` where the nodes' process is gone."""
        hosting.send(self._connection, message)
        answer = hosting.receive(self._connection)
        if answer is None:
            raise RayUnavailable("the nodes' process is gone")
        return answer

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class HostedNodes:
    """`fleet.control.campaign.ports.Nodes`: questions to `tests.scale.hosting`, wherever it is."""

    def __init__(self, ask: Callable[[Mapping[str, Any]], Any], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self.looks = 0
        """Views asked for."""

    def ask(self, verb: str, nodes: Mapping[str, Sequence[str]] | None = None) -> Any:
        """One question to all nodes named."""
        return self._ask({"at": self._clock.at, "verb": verb, "nodes": nodes})

    def names(self) -> Sequence[str]:
        """All nodes."""
        names: list[str] = self.ask("names")
        return names

    def views(self, requests: Requests) -> Mapping[str, NodeView | FleetError]:
        """Every view asked for; a silent node is an error."""
        self.looks += len(requests)
        found = self.ask("views", {name: list(some) for name, some in requests.items()})
        return {
            name: NodeView.model_validate_json(found[name])
            if name in found
            else RayUnavailable(f"{name} does not answer")
            for name in requests
        }

    def scrub_all(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | FleetError]:
        """Give orders."""
        asked = {name: [one.model_dump_json() for one in some] for name, some in orders.items()}
        found = self.ask("scrub", asked)
        return {
            name: [Acceptance.model_validate_json(one) for one in found[name]]
            if name in found
            else RayUnavailable(f"{name} does not answer")
            for name in orders
        }

    def cancel(self, requests: Requests) -> Mapping[str, FleetError | None]:
        """Cancel operations."""
        self.ask("cancel", {name: list(some) for name, some in requests.items()})
        return dict.fromkeys(requests)


class NoHeads:
    """Ledgers are another measurement (`lab.bench.evidence`): nothing is countersigned here."""

    def sign(self, heads: Mapping[NodeName, LedgerHead]) -> None:
        """Nothing."""


class Metered:
    """`fleet.control.campaign.ports.CampaignCoordinator`: the real one, its processor time
    noted.
    """

    def __init__(self, coordinator: Coordinator, *, die_after: int) -> None:
        self.coordinator = coordinator
        self.spent_s = 0.0
        self.calls = 0
        self.kept = 0
        self._die_after = die_after

    def acquire(self, requests: Sequence[AcquireRequest]) -> Sequence[Lease | FleetError]:
        """One answer for each."""
        with self._metered():
            return self.coordinator.acquire(requests)

    def renew_all(self, renewals: Sequence[Renewal]) -> Sequence[Lease | FleetError]:
        """One answer for each."""
        with self._metered():
            return self.coordinator.renew_all(renewals)

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | FleetError]:
        """One answer for each."""
        with self._metered():
            return self.coordinator.release_all(releases)

    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        """Keep results; past the number given, the process dies with its leases out."""
        with self._metered():
            self.coordinator.append(run, results)
        self.kept += len(results)
        if self._die_after and self.kept >= self._die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self, run: str, exit_reason: str) -> None:
        """End the run."""
        with self._metered():
            self.coordinator.close(run, exit_reason)

    @contextmanager
    def _metered(self) -> Iterator[None]:
        self.calls += 1
        began = time.process_time()
        try:
            yield
        finally:
            self.spent_s += time.process_time() - began


def drive(order: Order) -> Bill:
    """Run or resume one campaign to its end; what it cost."""
    state = Path(order.state)
    clock = Clock(START)
    with (
        closing(Line(order.socket)) as line,
        closing(open_stores(state / "store.db", clock=clock)) as stores,
    ):
        nodes = HostedNodes(line.ask, clock)
        clock.at = float(nodes.ask("now"))
        coordinator = Coordinator(stores.leases, stores.runs, clock=clock, signer=NoHeads())
        return _run(order, Means(nodes, stores, coordinator, clock))


@dataclass(frozen=True, slots=True)
class Means:
    """What a campaign is driven with."""

    nodes: HostedNodes
    stores: Stores
    coordinator: Coordinator
    clock: Clock


def _run(order: Order, means: Means) -> Bill:
    metered = Metered(means.coordinator, die_after=order.die_after)
    began, wall, from_s = time.process_time(), time.perf_counter(), means.clock.at
    before = _resident()
    campaign = campaign_of(order, means, metered)
    telling_s, ticks = 0.0, 0
    while campaign.tick(means.clock.at):
        asked = time.process_time()
        campaign.status()
        telling_s += time.process_time() - asked
        means.clock.at += PERIOD_S
        ticks += 1
        if ticks > TICKS_MAX:
            raise AssertionError(f"not over after {ticks} steps: {campaign.status().phases}")
    asked = time.process_time()
    report = campaign.report()
    telling_s += time.process_time() - asked
    return Bill(
        devices=report.totals.devices,
        exit_reason=report.exit_reason,
        exit_code=report.exit_code,
        breaker=str(campaign.breaker.stance),
        outcomes=report.totals.outcomes,
        cpu_s=time.process_time() - began,
        coordinator_s=metered.spent_s,
        telling_s=telling_s,
        wall_s=time.perf_counter() - wall,
        virtual_s=means.clock.at - from_s,
        ticks=ticks,
        looks=means.nodes.looks,
        calls=metered.calls,
        rss_before=before,
        rss_peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        store_bytes=sum(path.stat().st_size for path in Path(order.state).iterdir()),
    )


def campaign_of(order: Order, means: Means, metered: Metered) -> Campaign:
    """As `jobs.scrub` begins or resumes a run."""
    if order.resume:
        ended = means.coordinator.run(RunId(order.run)).exit_reason
        record = means.coordinator.resume(RunId(order.run))
        policy = CampaignPolicy.model_validate(record.policy)
        scope = Scope(select.ALL, tuple(record.results.values()), resumed=True, exit_reason=ended)
        return Campaign(record.id, means.nodes, metered, policy, scope)
    record = RunRecord(
        id=order.run,
        started_at=means.clock.at,
        policy=order.policy.model_dump(mode="json"),
        simulated=True,
    )
    means.coordinator.open(record)
    return Campaign(record.id, means.nodes, metered, order.policy)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.stdout.write(drive(Order.model_validate_json(sys.argv[1])).model_dump_json() + "\n")
