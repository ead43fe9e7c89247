"""What a device of a campaign costs does not depend on how many there are (E5, issue 8)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.control.campaign.run import Campaign
from fleet.control.coordinator import Coordinator
from fleet.core.messages import Outcome
from fleet.core.model import RunId
from fleet.core.settings import CampaignPolicy
from fleet.stores.sqlite import open_stores
from tests.scale.driving import Clock, HostedNodes, Means, Metered, NoHeads, Order, campaign_of
from tests.scale.hosting import Host
from tests.scale.nodes import START

PERIOD_S = 0.5


class Ground:
    """Nodes in this process, with the time that they spend, and a store on disk."""

    def __init__(self, folder: Path, nodes: int, *, devices: int) -> None:
        folder.mkdir()
        self.clock = Clock(START)
        self.stores = open_stores(folder / "store.db", clock=self.clock)
        epoch = self.stores.leases.init().epoch
        self.host = Host(nodes, devices=devices, epoch=epoch)
        self.away_s = 0.0
        self.nodes = HostedNodes(self._ask, self.clock)
        coordinator = Coordinator(
            self.stores.leases, self.stores.runs, clock=self.clock, signer=NoHeads()
        )
        self.means = Means(self.nodes, self.stores, coordinator, self.clock)

    def _ask(self, message: Mapping[str, Any]) -> Any:
        began = time.process_time()
        try:
            return self.host.answer(message)
        finally:
            self.away_s += time.process_time() - began

    def campaign(self, parallel: int, *, resume: bool = False) -> Campaign:
        """A campaign of `parallel` devices at once, begun or resumed."""
        policy = CampaignPolicy(max_parallel=parallel)
        order = Order(socket="", state="", policy=policy, resume=resume)
        return campaign_of(order, self.means, Metered(self.means.coordinator, die_after=0))

    def steps(self, campaign: Campaign, most: int) -> float:
        """So many steps, or fewer; processor time of all but the nodes, s."""
        began, away_s = time.process_time(), self.away_s
        for _ in range(most):
            if not campaign.tick(self.clock.at):
                break
            campaign.status()
            self.clock.at += PERIOD_S
        return time.process_time() - began - (self.away_s - away_s)


@contextmanager
def ground(folder: Path, nodes: int, *, devices: int = 2) -> Iterator[Ground]:
    """A fleet; its store is closed afterwards."""
    found = Ground(folder, nodes, devices=devices)
    try:
        yield found
    finally:
        found.stores.close()


def whole(folder: Path, nodes: int) -> float:
    """Processor time of one campaign for each device, a tenth of them at once, s."""
    with ground(folder, nodes) as fleet:
        campaign = fleet.campaign(nodes * 2 // 10)
        spent_s = fleet.steps(campaign, 1000)
        report = campaign.report()
        assert report.totals.outcomes == {Outcome.CERTIFIED: nodes * 2}
        kept = fleet.stores.runs.get(RunId("run-1"))
        assert len(kept.results) == nodes * 2
        return spent_s / (nodes * 2)


def test_a_device_costs_the_same_in_ten_times_the_fleet(tmp_path: Path) -> None:
    """E5: a whole campaign, store included: twice the cost a device would be something that grows
    with the fleet."""
    few = min(whole(tmp_path / f"few-{n}", 50) for n in range(2))
    assert whole(tmp_path / "many", 500) / few < 2.0


def test_a_step_costs_what_is_in_work_not_what_there_is(tmp_path: Path) -> None:
    """E5: with sixteen devices in work a step takes as long in a fleet twenty times as large."""

    def step_s(nodes: int) -> float:
        with ground(tmp_path / str(nodes), nodes, devices=1) as fleet:
            campaign = fleet.campaign(16)
            fleet.steps(campaign, 10)
            return min(fleet.steps(campaign, 10) for _ in range(2))

    assert step_s(2400) / step_s(120) < 4.0


def test_a_driver_that_dies_half_way_costs_no_device_a_second_wipe(tmp_path: Path) -> None:
    """B02: the next one reads back what was in work, goes on with the rest and forgets nothing."""
    with ground(tmp_path / "state", 40) as fleet:
        first = fleet.campaign(8)
        fleet.steps(first, 12)
        assert 0 < len(fleet.stores.runs.get(RunId("run-1")).results) < 80
        second = fleet.campaign(8, resume=True)
        fleet.steps(second, 1000)
        assert second.report().totals.outcomes == {Outcome.CERTIFIED: 80}
        assert set(fleet.nodes.ask("wipes").values()) == {1}


def test_leases_and_results_of_a_step_are_one_call_each(tmp_path: Path) -> None:
    """E5: the store commits for a step, not for a device."""
    with ground(tmp_path / "state", 50, devices=4) as fleet:
        metered = Metered(fleet.means.coordinator, die_after=0)
        order = Order(socket="", state="", policy=CampaignPolicy(max_parallel=100))
        campaign = campaign_of(order, fleet.means, metered)
        steps = 0
        while campaign.tick(fleet.clock.at):
            fleet.clock.at += PERIOD_S
            steps += 1
        assert campaign.report().totals.outcomes == {Outcome.CERTIFIED: 200}
        assert metered.calls <= 3 * steps + 1
        assert metered.calls < 200
