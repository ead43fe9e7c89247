"""Slices, kubelet's health and the node are kept of one mind, whoever is silent."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fleet import errors
from fleet.dra.asking import AskedClaim
from fleet.dra.health import Health, HealthVerdict
from fleet.dra.keeping import Keeper
from fleet.kube.base import SLICES
from fleet.messages import Published
from fleet.model import State, Uuid
from fleet.slices.reporting import PublishReport
from tests.fleet.dra.benches import Bench
from tests.fleet.node.conftest import wait_for


def cleaned(site: Bench) -> None:
    """Both devices CLEAN and freshly checked."""
    for name in ("gpu-0", "gpu-1"):
        site.scrub(name)
    site.let_go()
    site.node.sweep()


def failing_teardown(site: Bench) -> AskedClaim:
    """A prepared claim whose wipe will find a word that is not what was written."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.fault("dirty-word")
    return asked


def test_a_step_publishes_shows_and_tells(site: Bench) -> None:
    """What the node says is in the slices and in kubelet's health after one step."""
    cleaned(site)
    shown: list[Mapping[str, HealthVerdict]] = []
    keeper = replace(site.keeper(), show=shown.append)
    keeper.step(time.time())
    assert keeper.report.settled
    assert keeper.published_at is not None
    assert (site.taints("gpu-0"), site.taints("gpu-1")) == ([], [])
    assert shown[-1]["gpu-0"].health is Health.HEALTHY


def test_a_failed_teardown_answers_once_its_quarantine_is_read_back(site: Bench) -> None:
    """Promise 6: success only after the taint was written, listed again and told to the node."""
    asked = failing_teardown(site)
    keeper = site.keeper()
    keeper.step(time.time())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(site.serving.unprepare, asked)
        wait_for(lambda: site.device().state == State.QUARANTINED)
        assert not answer.done()
        assert site.record(asked) == "UNPREPARING"
        wait_for(lambda: stepped(keeper) and answer.done())
        answer.result()
    assert site.taints("gpu-0") == ["not-clean", "quarantined"]
    assert (site.record(asked), site.specs) == ("ABSENT", [])


def stepped(keeper: Keeper) -> bool:
    keeper.step(time.time())
    return True


def test_without_the_api_a_failed_teardown_stays_open(site: Bench) -> None:
    """Promise 6: retryable while nothing can be read back; let go once the API is back."""
    asked = failing_teardown(site)
    site.cluster.faults.offline = True
    with site.kept():
        with pytest.raises(errors.DeviceBusy, match=r"not visible|takes longer"):
            replace(site.serving, budget_s=0.25).unprepare(asked)
        assert site.record(asked) == "UNPREPARING"
        wait_for(lambda: site.device().state == State.QUARANTINED)
        site.cluster.faults.offline = False
        site.serving.unprepare(asked)
    assert site.record(asked) == "ABSENT"
    assert "quarantined" in site.taints("gpu-0")


def test_without_the_api_a_clean_teardown_succeeds(site: Bench) -> None:
    """DESIGN 5: everything local is done, and nothing is left that the scheduler must see."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.cluster.faults.offline = True
    with site.kept():
        site.serving.unprepare(asked)
    assert (site.record(asked), site.device().state) == ("ABSENT", State.CLEAN)


def test_slices_outlive_a_silent_owner_and_become_stale(site: Bench) -> None:
    """Promise 5: they stay published; after `fresh_s` nothing more is allocated of them."""
    cleaned(site)
    keeper = site.keeper()
    now = time.time()
    keeper.step(now)
    site.node.close()
    fresh_s = site.settings.health.fresh_s
    keeper.step(now + 1.0)
    assert keeper.view is None
    assert site.taints("gpu-0") == []
    keeper.step(now + fresh_s + 2.0)
    assert site.taints("gpu-0") == site.taints("gpu-1") == ["not-clean"]
    assert len(site.cluster.list(SLICES).items) == 1
    site.node = site.open()
    site.node.sweep()
    fresh = site.keeper()
    fresh.step(time.time())
    assert (site.taints("gpu-0"), site.taints("gpu-1")) == ([], [])


def test_the_same_keeper_goes_on_when_the_owner_is_back(site: Bench) -> None:
    """The plugin outlives owners: no restart is needed for the taints to go."""
    cleaned(site)
    keeper = site.keeper()
    keeper.step(time.time())
    site.node.close()
    keeper.step(time.time() + 100.0)
    assert site.taints("gpu-0") == ["not-clean"]
    site.node = super(Bench, site).open()
    site.node.sweep()
    keeper.step(time.time())
    assert keeper.view is not None
    assert site.taints("gpu-0") == []


class Scripted:
    """A publisher that answers from a list; an error in it is raised."""

    def __init__(self, *answers: PublishReport | errors.FleetError) -> None:
        self.answers = list(answers)
        self.views: list[object] = []
        self.evicted: list[frozenset[str]] = []

    def step(self, now: float, view: object) -> PublishReport:
        self.views.append((now, view))
        found = self.answers.pop(0)
        if isinstance(found, errors.FleetError):
            raise found
        return found

    def evicting(self, uuids: Iterable[str]) -> None:
        """Remembered, the latest last."""
        self.evicted.append(frozenset(uuids))


def test_nothing_stops_the_keeper(site: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A step raises nothing; a trouble is logged once, and its end too."""
    away = errors.ApiUnavailable("the API is away")
    publisher = Scripted(away, away, PublishReport(settled=True), PublishReport(settled=True))
    shown: list[object] = []
    keeper = Keeper(site.door, publisher, shown.append)
    with caplog.at_level(logging.WARNING):
        for now in (1.0, 2.0, 3.0, 4.0):
            keeper.step(now)
    assert [record.message for record in caplog.records] == [
        "the API is away",
        "slices and node are of one mind again",
    ]
    assert keeper.published_at == 4.0
    assert len(shown) >= 2


def test_a_silent_owner_is_told_to_the_publisher(site: Bench) -> None:
    """Without a view the publisher still steps: kubelet's clean-up is undone meanwhile."""
    site.node.close()
    publisher = Scripted(PublishReport(settled=True))
    shown: list[object] = []
    Keeper(site.door, publisher, shown.append).step(5.0)
    assert publisher.views == [(5.0, None)]
    assert shown == []
    site.open()


def effects(site: Bench, name: str) -> set[str]:
    """Effects of the quarantine taint of a device in the slices."""
    return {
        taint["effect"]
        for found in site.cluster.list(SLICES).items
        for device in found["spec"]["devices"]
        if device["name"] == name
        for taint in device.get("taints", ())
        if taint["key"].endswith("/quarantined")
    }


def test_a_pod_that_waits_for_a_device_gone_bad_is_evicted(site: Bench) -> None:
    """DESIGN 5: bound but not exposed: NoExecute, so that its owner makes it again elsewhere."""
    asked = site.bound("a", "gpu-0")
    site.fault("dirty-word", times=0)
    with pytest.raises(errors.DeviceUnfit):
        site.serving.prepare(asked)
    assert (site.record(asked), site.device().state) == ("PREPARING", State.QUARANTINED)
    site.keeper().step(time.time())
    assert effects(site, "gpu-0") == {"NoExecute"}


def test_a_pod_in_teardown_is_not_evicted_for_its_device(site: Bench) -> None:
    """A quarantine of what is being given back only keeps new pods away."""
    asked = failing_teardown(site)
    with pytest.raises(errors.DeviceBusy):
        replace(site.serving, budget_s=0.25).unprepare(asked)
    wait_for(lambda: site.device().state == State.QUARANTINED)
    site.keeper().step(time.time())
    assert effects(site, "gpu-0") == {"NoSchedule"}


def test_a_pod_that_waits_for_a_bad_device_is_evicted(site: Bench) -> None:
    """DESIGN 5, Bound but not exposed: its owner makes it again elsewhere; whoever has the device
    already keeps it (NoSchedule)."""
    waits, has = site.bound("a", "gpu-0"), site.bound("b", "gpu-1")
    site.serving.prepare(has)
    site.fault("dirty-word")
    with pytest.raises(errors.DeviceUnfit):
        site.serving.prepare(waits)
    site.node.quarantine_add("gpu-1", detail="smells", operator="tester")
    site.keeper().step(time.time())
    assert set(site.effects("gpu-0")) == {"NoSchedule", "NoExecute"}
    assert set(site.effects("gpu-1")) == {"NoSchedule"}


def test_an_instance_that_looks_on_says_nothing_of_the_slices(site: Bench) -> None:
    """Invariant 40, promise 6: what the other one read back is not taken back by one that does not
    read."""
    published = site.node._parts.holding.teardown.visibility
    published.published(Published(quarantined={"SIM-x": 9.0}))
    looking = Scripted(PublishReport(elsewhere="process 7 publishes"), PublishReport())
    keeper = Keeper(site.door, looking, lambda _: None)
    keeper.step(1.0)
    assert published.covers(Uuid("SIM-x"), 9.0)
    keeper.step(2.0)
    assert not published.covers(Uuid("SIM-x"), 9.0)
