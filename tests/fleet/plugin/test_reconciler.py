"""Slices, kubelet's health and the node are kept of one mind, whoever is silent."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fleet.control.binding.visibility import Visible
from fleet.core import errors
from fleet.core.messages import Published
from fleet.core.model import State, Uuid
from fleet.core.settings import Unexposed
from fleet.kube.base import SLICES
from fleet.plugin.health import Health, HealthVerdict
from fleet.plugin.reconciler import Keeper
from fleet.plugin.requests import AskedClaim
from fleet.plugin.slices.report import PublishReport
from fleet.plugin.slices.takeover import Record, taken_over
from tests.fleet.node.conftest import wait_for
from tests.fleet.plugin.benches import DRIVER, Bench, bench


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
    assert len(site.cluster.list(SLICES).items) == 2  # devices, and counters of gpu-1's partitions
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

    def merged(self, records: Iterable[Record]) -> None:
        """Nothing was asked of the node."""
        raise AssertionError(f"nothing was reported: {list(records)}")


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


def test_a_pause_between_refusals_is_no_end_of_them(
    site: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that tries nothing says nothing; one mind is told once the slices were read so, and
    by nobody who only looks on."""
    refused, pause = errors.ApiForbidden("no right to write"), PublishReport()
    done, onlooker = PublishReport(settled=True), PublishReport(elsewhere="process 7 publishes")
    steps: list[PublishReport | errors.FleetError]
    steps = [refused, pause, refused, pause, done, refused, onlooker, done]
    keeper = Keeper(site.door, Scripted(*steps), lambda _: None)
    with caplog.at_level(logging.WARNING):
        for now in range(len(steps)):
            keeper.step(float(now))
    assert [record.message for record in caplog.records] == [
        "no right to write",
        "slices and node are of one mind again",
        "no right to write",
    ]


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
        for device in found["spec"].get("devices", ())
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


def refused(site: Bench) -> AskedClaim:
    """A claim whose device was out of service before the node had heard of the claim."""
    asked = site.bound("a", "gpu-0")
    site.node.quarantine_add("gpu-0", detail="smells", operator="tester")
    with pytest.raises(errors.DeviceUnfit):
        site.serving.prepare(asked)
    assert site.record(asked) == "ABSENT"
    return asked


def test_a_pod_refused_at_once_is_evicted_until_it_has_left(site: Bench) -> None:
    """DESIGN 5, Bound but not exposed: also where the node has no record of the claim."""
    asked = refused(site)
    keeper = site.keeper()
    keeper.step(time.time())
    assert set(site.effects("gpu-0")) == {"NoSchedule", "NoExecute"}
    site.serving.unprepare(asked)
    keeper.step(time.time())
    assert set(site.effects("gpu-0")) == {"NoSchedule"}


@pytest.mark.parametrize("policy", [Unexposed.DELETE, Unexposed.EVENT])
def test_nobody_is_evicted_where_the_policy_is_another(policy: Unexposed) -> None:
    """kubernetes.unexposed: without `taint` the quarantine keeps new pods away, no more."""
    with bench(unexposed=policy) as site:
        refused(site)
        waits = site.bound("b", "gpu-1")
        site.fault("dirty-word", device="gpu-1", times=0)
        with pytest.raises(errors.DeviceUnfit):
            site.serving.prepare(waits)
        site.keeper().step(time.time())
        for name in ("gpu-0", "gpu-1"):
            assert set(site.effects(name)) == {"NoSchedule"}


def overtake(site: Bench, name: str, *codes: str) -> None:
    """The coordinator's word in the node's slices."""
    assert Visible(site.cluster, DRIVER).take_over("n1", {name: codes}, time.time())


def marks(site: Bench) -> list[Record]:
    """Records in the slices."""
    found = site.cluster.list(SLICES).items
    return sorted({record for part in found for record in taken_over(part, driver=DRIVER)})


def test_the_node_takes_over_what_was_said_for_it(site: Bench) -> None:
    """Promise 6: merged into the journal first, then published as the node's own; a fresh full
    pass lifts it, and nothing of the take-over is left."""
    cleaned(site)
    site.keeper().step(time.time())
    overtake(site, "gpu-0", "node-silent")
    site.plug()
    keeper = site.keeper()
    keeper.step(time.time())
    assert site.device().state == State.QUARANTINED
    assert {(r.code, r.source) for r in site.device().reasons} == {("node-silent", "coordinator")}
    assert len(marks(site)) == 1
    keeper.step(time.time())
    assert marks(site) == []
    assert "quarantined" in site.taints("gpu-0")
    site.scrub("gpu-0")
    site.let_go()
    site.node.sweep()
    keeper.step(time.time())
    assert site.taints("gpu-0") == []
    assert site.taints("gpu-1") == []


def test_a_mark_stays_while_the_node_cannot_take_it(
    site: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that does not answer, or a disk that is full, leaves the coordinator's word alone."""
    cleaned(site)
    site.keeper().step(time.time())
    overtake(site, "gpu-0", "node-silent")
    site.plug()
    keeper = site.keeper()
    with site.failing_disk(1, for_good=True), caplog.at_level(logging.WARNING):
        for _ in range(3):
            keeper.step(time.time())
    assert len(marks(site)) == 1
    assert "quarantined" in site.taints("gpu-0")
    assert "the disk is full" in caplog.text
    keeper.step(time.time())
    keeper.step(time.time())
    assert marks(site) == []
    assert site.device().state == State.QUARANTINED


def test_an_end_between_merging_and_publishing_loses_nothing(site: Bench) -> None:
    """Crash-safe: the plugin and the node start anew after each step, and it ends the same."""
    cleaned(site)
    site.keeper().step(time.time())
    overtake(site, "gpu-0", "node-silent", "memory-mismatch")
    site.plug()
    site.keeper().step(time.time())
    site.restart()
    assert "quarantined" in site.taints("gpu-0")
    keeper = site.keeper()
    keeper.step(time.time())
    keeper.step(time.time())
    assert marks(site) == []
    assert {r.code for r in site.device().reasons} == {"node-silent", "memory-mismatch"}
    assert len([a for a in site.node._registry.journal.acts() if a["act"] == "quarantine add"]) == 1


def test_slices_are_what_is_left_when_journal_and_copy_are_lost(site: Bench) -> None:
    """DESIGN 4: the taints of the node's own slices become reasons of the new journal again."""
    cleaned(site)
    site.fault("remap-failed")
    site.node.sweep()
    keeper = site.keeper()
    keeper.step(time.time())
    site.backend.clear_fault(Uuid(site.device().uuid), "remap-failed")
    lost = site.state / "lost"
    site.node.close()
    site.directory.rename(lost)
    site.open()
    assert (site.device().state, site.device().reasons) == (State.HELD, ())
    keeper = site.keeper()
    keeper.step(time.time())
    assert "quarantined" in site.taints("gpu-0")
    keeper.step(time.time())
    site.free()
    assert site.device().state == State.QUARANTINED
    assert {(r.code, r.source) for r in site.device().reasons} == {("remap-failed", "coordinator")}
    keeper.step(time.time())
    assert "quarantined" in site.taints("gpu-0")
