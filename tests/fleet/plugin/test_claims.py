"""Kubelet's two requests, from the claim in the API to the record on the node."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from fleet.core import errors
from fleet.core.model import HolderKind, State
from fleet.evidence import layout
from fleet.evidence.losses import LossLog
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from fleet.kube import answers
from fleet.kube.base import Name, Object, Resource
from fleet.plugin.claims import ENDED, ClaimServing
from fleet.plugin.configuration import API_VERSION, KIND
from fleet.plugin.requests import AskedClaim, PreparedClaim
from fleet.plugin.tags import TagKeys, TagKeysUnreadable, seconds_of
from fleet.plugin.tags_claim import Isolation
from fleet.plugin.tags_list import without_key
from fleet.wiring import adapters
from tests.fleet.admission.rights import ISSUER, KEYS, NOW, issued, parameters
from tests.fleet.plugin.benches import DRIVER, NODE, SPACE, Bench, bench, result
from tests.lab.apiserver.cluster import MemoryCluster


def durable(site: Bench) -> object:
    """All that is durable of claims and units, and the specs with their content."""
    registry = site.node._registry
    specs = {name: (site.cdi / name).read_text() for name in site.specs}
    return dict(registry.journal.units), dict(registry.journal.claims), specs


def ids_in(site: Bench, asked: AskedClaim) -> set[str]:
    """CDI ids that a runtime finds in the claim's spec."""
    found = json.loads(site.spec(asked).read_text())
    return {f"{found['kind']}={device['name']}" for device in found["devices"]}


def ids_of(prepared: PreparedClaim) -> set[str]:
    return {cdi for device in prepared.devices for cdi in device.cdi_ids}


# --- prepare, again and at once ------------------------------------------------


def test_a_repeated_prepare_answers_the_same_and_does_nothing(site: Bench) -> None:
    """Invariant 6: same answer, same ids, no second wipe, a valid spec after each."""
    asked = site.bound("a", "gpu-0")
    first = site.serving.prepare(asked)
    before = durable(site)
    with site.tenant():
        assert site.serving.prepare(asked) == first
    assert durable(site) == before
    assert ids_of(first) == ids_in(site, asked)
    assert site.ledger.count == 1
    (device,) = first.devices
    assert (device.requests, device.pool, device.device) == (("gpu",), NODE, "gpu-0")


def test_prepares_at_once_share_one_wipe(site: Bench) -> None:
    """Invariant 7: two pods of one claim ask together; one answer, one spec, one wipe."""
    asked = site.bound("a", "gpu-0")
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: site.serving.prepare(asked), range(6)))
    assert all(answer == answers[0] for answer in answers)
    assert ids_in(site, asked) == ids_of(answers[0])
    assert site.specs == [site.spec(asked).name]
    assert site.ledger.count == 1


def test_a_lost_spec_is_back_before_the_answer(site: Bench) -> None:
    """Invariant 8: whoever asks again gets ids that resolve."""
    asked = site.bound("a", "gpu-0")
    first = site.serving.prepare(asked)
    site.spec(asked).unlink()
    assert site.serving.prepare(asked) == first
    assert ids_in(site, asked) == ids_of(first)


def test_a_start_rebuilds_specs_without_kubelet(site: Bench) -> None:
    """Invariant 9: kubelet never repairs a lost spec while it lives, so the start does."""
    asked = site.bound("a", "gpu-0")
    first = site.serving.prepare(asked)
    site.node.close()
    site.spec(asked).unlink()
    site.open()
    assert ids_in(site, asked) == ids_of(first)


# --- what is in the claim ------------------------------------------------------


def test_what_cannot_be_prepared_leaves_nothing(site: Bench) -> None:
    """Invariants 10 and 11: missing, replaced, unallocated: an error each, and no trace."""
    before = durable(site)
    with pytest.raises(errors.ApiNotFound):
        site.serving.prepare(AskedClaim("tenant", "u-1", "nowhere"))
    claim = site.bound("a", "gpu-0")
    with pytest.raises(errors.ClaimReplaced):
        site.serving.prepare(AskedClaim("tenant", "u-1", claim.name))
    with pytest.raises(errors.ClaimUnready, match="no allocation"):
        site.serving.prepare(site.create("b"))
    assert durable(site) == before


def test_a_claim_with_nothing_of_ours_is_prepared_empty(site: Bench) -> None:
    """Invariant 11: other drivers' and other nodes' devices: success, no device, no trace."""
    before = durable(site)
    asked = site.create("a", "nic", "far")
    site.allocate(
        asked,
        result("gpu-0", request="nic", driver="nic.example.com"),
        result("gpu-0", request="far", pool="n2"),
    )
    assert site.serving.prepare(asked) == PreparedClaim()
    assert durable(site) == before
    site.serving.unprepare(asked)


def test_names_in_the_answer_are_those_of_the_allocation(site: Bench) -> None:
    """Invariant 12: base request names; pool and device as allocated; shareID only where set."""
    asked = site.create("a", "one/large", "two", "three")
    share = "1c5b7a6e-0000-4000-8000-000000000001"
    site.allocate(
        asked,
        result("gpu-0", request="one/large"),
        result("gpu-1-1g-0", request="two", shareID=share),
        result("gpu-1-1g-1", request="three"),
    )
    site.reserve(asked, site.pod())
    found = {device.device: device for device in site.serving.prepare(asked).devices}
    assert found["gpu-0"].requests == ("one",)
    assert found["gpu-1-1g-0"].share_id == share
    assert (found["gpu-0"].share_id, found["gpu-1-1g-1"].share_id) == (None, None)
    assert {device.pool for device in found.values()} == {NODE}
    assert len({device.cdi_ids[0] for device in found.values()}) == 3


def test_configuration_of_the_claim_reaches_the_wipe(site: Bench) -> None:
    """Invariant 13: foreign entries are passed over, ours is strict, the claim's word is last."""

    def entry(source: str, driver: str = DRIVER, **parameters: object) -> dict[str, object]:
        kind = {"apiVersion": "config.fleetscrub.dev/v1", "kind": "SanitizationConfig"}
        opaque = {"driver": driver, "parameters": {**kind, **parameters}}
        return {"source": source, "opaque": opaque}

    refused = site.create("a")
    site.allocate(refused, result("gpu-0"), config=[entry("FromClaim", nonsense=1)])
    site.reserve(refused, site.pod())
    with pytest.raises(errors.ClaimConfigInvalid):
        site.serving.prepare(refused)
    assert site.record(refused) == "ABSENT"
    foreign = site.create("b")
    site.allocate(
        foreign, result("gpu-0"), config=[entry("FromClass", "nic.example.com", nonsense=1)]
    )
    site.reserve(foreign, site.pod("pod-2"))
    assert site.serving.prepare(foreign).devices


# --- exclusivity ---------------------------------------------------------------


def test_a_held_device_is_refused_naming_the_holder(site: Bench) -> None:
    """B01, invariant 14: retryable, names the other claim, and changes nothing of it."""
    held = site.bound("a", "gpu-0")
    site.serving.prepare(held)
    rival = site.bound("b", "gpu-1", "gpu-0")
    before = durable(site)
    with pytest.raises(errors.DeviceBusy) as refused:
        site.serving.prepare(rival)
    assert held.uid in str(refused.value)
    assert isinstance(refused.value, errors.Retryable)
    assert durable(site) == before
    assert 10.0 <= site.clock.monotonic() < 12.0
    assert site.device("gpu-1").claim == ""
    site.serving.unprepare(held)
    site.node.tick(0.0)
    assert site.serving.prepare(rival).devices


def test_a_holder_in_teardown_is_waited_for(site: Bench) -> None:
    """B01, invariant 14: what is on its way out is waited for inside the budget, beyond 10 s."""
    held = site.bound("a", "gpu-0", pods=[site.pod("held")])
    site.serving.prepare(held)
    pod = site.pod("stubborn")
    pod.run()
    site.remember({held.uid: [pod.uid]})
    with pytest.raises(errors.DeviceBusy, match="still runs"):
        site.node.unprepare(held.uid, budget_s=5.0)
    assert site.record(held) == "UNPREPARING"

    def later(now: float) -> None:
        if now > 20.0:
            pod.leave()
            site.node.unprepare(held.uid)
            site.node.tick(0.0)

    site.meanwhile = later
    rival = site.bound("b", "gpu-0")
    assert site.serving.prepare(rival).devices
    assert 20.0 <= site.clock.monotonic() < 25.0


def test_f60_the_node_refuses_admin_access_to_namespaces_that_may_not_look(site: Bench) -> None:
    """F60: whose claims may look into devices is our setting, asked by the node at prepare:
    whatever label a namespace has been given, its claims get nothing of anybody's device."""
    held = site.bound("a", "gpu-0")
    site.serving.prepare(held)
    strange = site.create("b")
    mixed = site.create("c", "gpu", "look")
    site.allocate(strange, *(result(f"gpu-{one}", adminAccess=True) for one in range(2)))
    site.allocate(mixed, result("gpu-1"), result("gpu-0", request="look", adminAccess=True))
    for asked in (strange, mixed):
        site.reserve(asked, site.pod(f"pod-{asked.name}"))
    for kubernetes in ({"admin_namespaces": ("ops",)}, {"admin_namespaces": ()}):
        section = site.settings.kubernetes.model_copy(update=kubernetes)
        site.restart(settings=site.settings.model_copy(update={"kubernetes": section}))
        before = durable(site)
        for asked in (strange, mixed):
            with pytest.raises(errors.ClaimConfigInvalid, match="adminAccess") as refused:
                site.serving.prepare(asked)
            assert "kubernetes.admin_namespaces" in str(refused.value)
            assert site.record(asked) == "ABSENT"
        assert durable(site) == before
    own = site.settings.kubernetes.model_copy(
        update={"admin_namespaces": (), "agent_namespace": SPACE}
    )
    site.restart(settings=site.settings.model_copy(update={"kubernetes": own}))
    assert site.serving.prepare(strange).devices  # our own namespace: the default


def test_f60_every_look_is_signed_before_a_container_can_start(site: Bench) -> None:
    """F60: a claim let into devices with adminAccess leaves a signed record that names it, its pods
    and the devices; where the back end can, the devices are given for reading alone."""
    admin = site.create("b")
    pod = site.pod("admin")
    site.allocate(admin, result("gpu-0", adminAccess=True))
    site.reserve(admin, pod)
    log = LossLog(layout.losses_directory(site.state, NODE))
    shutil.rmtree(log.directory, ignore_errors=True)
    log.directory.write_text("in the way")
    with pytest.raises(errors.LedgerUnavailable):
        site.serving.prepare(admin)
    assert not site.spec(admin).exists()
    log.directory.unlink()
    site.serving.prepare(admin)
    site.serving.prepare(admin)
    (record,) = log.records()
    assert (record.looked, record.claim, record.devices) == (
        True,
        admin.uid,
        (site.device().uuid,),
    )
    said = record.envelope.predicate
    assert (said["pods"], said["read_only"], said["claim"]["name"]) == ([pod.uid], True, "b")
    mounts = json.loads(site.spec(admin).read_text())["devices"][0]["containerEdits"]["mounts"]
    assert mounts
    assert all("ro" in mount["options"] for mount in mounts)
    report = verify(collect(site.state))
    assert not report.defects
    assert any("admin-access" in note for note in report.notes)


def test_an_attached_administrator_is_no_holder(site: Bench) -> None:
    """B35, invariant 14: adminAccess is let in beside a holder, and nothing is wiped under it."""
    held = site.bound("a", "gpu-0")
    site.serving.prepare(held)
    admin = site.create("b")
    site.allocate(admin, result("gpu-0", adminAccess=True))
    site.reserve(admin, site.pod("admin"))
    (device,) = site.serving.prepare(admin).devices
    assert (device.device, device.requests) == ("gpu-0", ("gpu",))
    assert ids_in(site, admin) == set(device.cdi_ids)
    assert site.device().claim == held.uid
    assert site.device().attached == (admin.uid,)
    with pytest.raises(errors.DeviceBusy, match=admin.uid):
        site.node.unprepare(held.uid, budget_s=5.0)
    assert site.ledger.count == 1
    site.serving.unprepare(admin)
    site.serving.unprepare(held)
    assert site.ledger.count == 2


def test_a_device_that_cannot_be_given_is_an_error_for_the_pod(site: Bench) -> None:
    """Invariant 15: unknown and quarantined devices: a short message with what to do."""
    unknown = site.bound("a", "gpu-7")
    with pytest.raises(errors.DeviceUnknown) as refused:
        site.serving.prepare(unknown)
    assert "gpu-7" in refused.value.detail
    assert "delete the pod" in refused.value.remedy
    site.node.quarantine_add("gpu-0", detail="smells", operator="tester")
    quarantined = site.bound("b", "gpu-0")
    with pytest.raises(errors.DeviceUnfit, match=r"gpu-0 is QUARANTINED \(operator\)"):
        site.serving.prepare(quarantined)
    assert (site.record(unknown), site.record(quarantined), site.specs) == ("ABSENT", "ABSENT", [])


def test_a_prepare_given_up_goes_on_and_the_retry_joins(site: Bench) -> None:
    """Invariant 16: the budget ends the call, not the work; the retry gets its result."""
    asked = site.bound("a", "gpu-0")
    site.fault("slow-memory", times=0, bytes_per_s=str(site.device().memory_bytes * 8))
    with pytest.raises(errors.DeviceBusy, match="takes longer"):
        replace(site.serving, budget_s=0.05).prepare(asked)
    assert site.serving.prepare(asked).devices
    assert site.ledger.count == 1


# --- what fails in between -----------------------------------------------------


def commits_of(act: Callable[[Bench, AskedClaim], object], *, prepared: bool) -> int:
    """How many transactions an undisturbed call makes."""
    with bench() as site:
        asked = site.bound("a", "gpu-0")
        if prepared:
            site.serving.prepare(asked)
        with site.failing_disk(0) as seen:
            act(site, asked)
        return len(seen)


@pytest.mark.parametrize("for_good", [False, True], ids=["one write fails", "and then it dies"])
def test_a_prepare_that_fails_anywhere_can_be_repeated_and_undone(for_good: bool) -> None:
    """Invariant 17: whichever write fails, prepare goes on from there, and unprepare ends it.

    A write that fails in a wipe takes the device out of service; that is an answer too.
    """
    count = commits_of(lambda site, asked: site.serving.prepare(asked), prepared=False)
    assert count >= 5
    for number in range(1, count + 1):
        with bench() as site:
            asked = site.bound("a", "gpu-0")
            with site.failing_disk(number, for_good=for_good):
                outcome(replace(site.serving, budget_s=0.5).prepare, asked)
                if for_good:
                    site.node.close()
            if for_good:
                site.open()
            again = outcome(site.serving.prepare, asked)
            if isinstance(again, PreparedClaim):
                assert ids_of(again) == ids_in(site, asked)
            else:
                assert (type(again), site.specs) == (errors.DeviceUnfit, [])
            with site.kept():
                site.serving.unprepare(asked)
            assert_nothing_left(site, asked)


def test_an_unprepare_that_fails_anywhere_can_be_repeated() -> None:
    """Invariants 17 and 21: after an error the record is there, and a retry ends it."""
    count = commits_of(lambda site, asked: site.serving.unprepare(asked), prepared=True)
    assert count >= 5
    for number in range(1, count + 1):
        with bench() as site:
            asked = site.bound("a", "gpu-0")
            site.serving.prepare(asked)
            with site.failing_disk(number), site.kept():
                failed = outcome(replace(site.serving, budget_s=0.5).unprepare, asked)
            if isinstance(failed, errors.FleetError):
                assert site.record(asked) != "ABSENT"
            with site.kept():
                site.serving.unprepare(asked)
            assert_nothing_left(site, asked)


def outcome(call: Callable[[AskedClaim], object], asked: AskedClaim) -> object:
    """What a call answered or raised, as one value."""
    try:
        return call(asked)
    except errors.FleetError as error:
        return error


def assert_nothing_left(site: Bench, asked: AskedClaim) -> None:
    """No spec, no record, no unit with a holder, no lease once the outbox is drained."""
    assert site.specs == []
    assert site.record(asked) == "ABSENT"
    assert {device.claim for device in site.node.view().devices} == {""}
    site.node.tick(0.0)
    held = [lease for lease in site.coordinator.leases() if lease.holder.kind is HolderKind.CLAIM]
    assert held == []


def broken(site: Bench, how: str) -> None:
    """Make the directory of specs one that cannot be written."""
    shutil.rmtree(site.cdi, ignore_errors=True)
    if how == "a file":
        site.cdi.write_text("")
    else:
        site.cdi.symlink_to(site.state / "nowhere" / "cdi")


@pytest.mark.parametrize("how", ["a file", "a dangling link"])
def test_a_spec_that_cannot_be_written(site: Bench, how: str) -> None:
    """B67: an error, no record that says prepared, no device lost; the retry goes on with it."""
    broken(site, how)
    asked = site.bound("a", "gpu-0")
    with pytest.raises(errors.SpecUnavailable):
        replace(site.serving, budget_s=2.0).prepare(asked)
    assert site.record(asked) == "PREPARING"
    site.cdi.unlink()
    first = site.serving.prepare(asked)
    assert [device.device for device in first.devices] == ["gpu-0"]
    assert ids_of(first) == ids_in(site, asked)
    other = site.bound("b", "gpu-1")
    assert site.serving.prepare(other).devices
    assert site.specs == sorted([site.spec(asked).name, site.spec(other).name])


def test_a_directory_that_is_mended_inside_the_budget(site: Bench) -> None:
    """B67: kubelet comes back only after a minute, so what passes is waited for."""
    broken(site, "a file")
    site.meanwhile = lambda now: site.cdi.unlink(missing_ok=True) if now > 3.0 else None
    assert site.serving.prepare(site.bound("a", "gpu-0")).devices
    assert 3.0 < site.clock.monotonic() < 4.0


# --- unprepare -----------------------------------------------------------------


def test_unknown_and_finished_claims_unprepare_with_success(site: Bench) -> None:
    """Invariant 18: never seen, twice, and after a prepare that failed: success."""
    site.serving.unprepare(AskedClaim("tenant", "never-seen", "x"))
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.serving.unprepare(asked)
    site.serving.unprepare(asked)
    refused = site.bound("b", "gpu-7")
    with pytest.raises(errors.DeviceUnknown):
        site.serving.prepare(refused)
    site.serving.unprepare(refused)


@pytest.mark.parametrize("how", ["gone", "replaced", "away", "failing"])
def test_unprepare_needs_no_api(site: Bench, how: str) -> None:
    """Invariant 19: the record is enough when the claim is gone or nobody answers."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    if how in ("gone", "replaced"):
        site.deallocate(asked)
        site.delete(asked)
    if how == "replaced":
        site.bound(asked.name, "gpu-1")
    if how == "failing":
        site.cluster.faults.fail_next("get", errors.ApiFailed("HTTP 500"), times=9)
    site.cluster.faults.offline = how == "away"
    site.serving.unprepare(asked)
    assert site.specs == []
    assert site.record(asked) == "ABSENT"
    assert site.device().state == State.CLEAN


class Silent(MemoryCluster):
    """An API server that accepts a request and never answers it, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.let_go = threading.Event()

    def get(self, resource: Resource, name: Name) -> Object:  # noqa: ARG002 - part of the port
        """Hang as long as the test runs."""
        self.asked += 1
        self.let_go.wait(60.0)
        raise errors.ApiUnavailable("no answer")


def test_b72_a_silent_api_keeps_no_pod(site: Bench) -> None:
    """B72: with an API server that accepts and is silent a claim is torn down within 5 s, the next
    ones do not wait for it again, and of a claim that nobody here knows it is not asked."""
    first, second = site.bound("a", "gpu-0"), site.bound("b", "gpu-1")
    site.serving.prepare(first)
    site.serving.prepare(second)
    silent = Silent()
    serving = replace(site.serving, cluster=silent)
    try:
        began = time.monotonic()
        serving.unprepare(AskedClaim(SPACE, "never-seen", "x"))
        assert silent.asked == 0
        serving.unprepare(first)
        assert time.monotonic() - began < 5.0
        serving.unprepare(second)
        assert silent.asked == 1
    finally:
        silent.let_go.set()
    assert (site.record(first), site.record(second), site.specs) == ("ABSENT", "ABSENT", [])


def test_b72_a_pod_that_kubelet_remembers_is_no_unknown_claims_end(site: Bench) -> None:
    """B72, promise 4: of a claim whose record is gone kubelet's own checkpoint says whose pod it
    is; while that runs kubelet is not told of an end, though the API is not asked."""
    asked = site.bound("a", "gpu-0")
    pod = site.pod("still-here")
    pod.run()
    site.remember({asked.uid: [pod.uid]})
    with pytest.raises(errors.DeviceBusy, match="in use by pod"):
        site.serving.unprepare(asked)
    pod.leave()
    site.serving.unprepare(asked)


def test_another_instance_unprepares_what_one_prepared(site: Bench) -> None:
    """Invariant 20: the record is on disk; neither process that prepared is needed."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.plug()
    assert site.serving.prepare(asked).devices
    site.node.close()
    site.open()
    site.serving.unprepare(asked)
    assert_nothing_left(site, asked)


def test_a_failed_unprepare_keeps_the_record(site: Bench) -> None:
    """Invariant 21, promise 4: while the tenant lives nothing is wiped, and the error names it."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    site.reserve(asked, site.pod("next"))
    pod.run()
    with pytest.raises(errors.DeviceBusy, match=f"pod {pod.uid} of claim {asked.uid} still runs"):
        replace(site.serving, budget_s=2.0).unprepare(asked)
    assert (site.record(asked), site.specs) == ("UNPREPARING", [])
    assert site.ledger.count == 1
    pod.leave()
    site.serving.unprepare(asked)
    assert_nothing_left(site, asked)


def test_a_pod_that_only_kubelet_knew_is_not_forgotten(site: Bench) -> None:
    """Promise 4: kubelet's checkpoint names a pod once; what it says later takes nothing back."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    late = site.pod("late")
    late.run()
    site.remember({asked.uid: [late.uid]})
    with pytest.raises(errors.DeviceBusy, match=late.uid):
        replace(site.serving, budget_s=2.0).unprepare(asked)
    site.remember({})
    with pytest.raises(errors.DeviceBusy, match=late.uid):
        replace(site.serving, budget_s=2.0).unprepare(asked)
    late.leave()
    site.serving.unprepare(asked)
    assert_nothing_left(site, asked)


def test_a_teardown_asked_for_too_early_changes_nothing(site: Bench) -> None:
    """Reference 1.5 a: the pod the claim is reserved for runs, so another's end is not its end."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    first = site.serving.prepare(asked)
    pod.run()
    with pytest.raises(errors.DeviceBusy, match="in use by pod"):
        site.serving.unprepare(asked)
    assert site.record(asked) == "PREPARED"
    assert ids_of(first) == ids_in(site, asked)
    assert 10.0 <= site.clock.monotonic() < 12.0


def test_too_early_is_too_early_with_the_api_away(site: Bench) -> None:
    """Reference 1.5 a: kubelet's own record then says which pods the claim is for."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    pod.run()
    site.remember({asked.uid: [pod.uid]})
    site.cluster.faults.offline = True
    with pytest.raises(errors.DeviceBusy, match="in use by pod"):
        replace(site.serving, budget_s=2.0).unprepare(asked)
    assert (site.record(asked), len(site.specs)) == ("PREPARED", 1)
    pod.leave()
    site.serving.unprepare(asked)
    assert site.record(asked) == "ABSENT"


class Answering:
    """An API server that gives one answer to whoever asks for a claim."""

    def __init__(self, answer: Object | errors.FleetError) -> None:
        self.answer = answer

    def get(self, *_: object) -> Object:
        if isinstance(self.answer, errors.FleetError):
            raise self.answer
        return self.answer


def answering(site: Bench, answer: Object | errors.FleetError) -> ClaimServing:
    """The plugin's side, with little patience, before such a server."""
    cluster = Answering(answer)
    return replace(site.serving, cluster=cluster, budget_s=2.0)  # type: ignore[arg-type] # reads


def odd_answers(claim: Object) -> list[Object | errors.FleetError]:
    """Answers that are none about this claim; each looks as if nobody used it."""
    head, free = claim["metadata"], {**claim, "status": {}}
    return [
        *(answers.failure(code, b"404 page not found", what="GET x") for code in CODES),
        answers.failure(401, b"Unauthorized", what="GET x"),
        {},
        {"kind": "Status", "metadata": {}},
        {**free, "metadata": {**head, "uid": ""}},
        {**free, "metadata": {**head, "name": "another", "uid": "another"}},
        {**free, "metadata": "of a newer API"},
        {**claim, "status": "of a newer API"},
        {**claim, "status": {"reservedFor": {"pods": []}}},
        {**claim, "status": {"reservedFor": ["pod-1"]}},
        {**claim, "status": {"reservedFor": [{"resource": "pods", "name": "pod-1"}]}},
    ]


CODES = (302, 400, 403, 404, 405, 409, 410, 422, 429, 500, 502, 503, 504)


@pytest.mark.parametrize("known_to", ["kubelet", "the record"])
def test_only_an_answer_about_this_claim_frees_it(site: Bench, known_to: str) -> None:
    """Reference 1.5 a, promise 5: refused, missing and odd answers are silence: nothing changes.

    Who uses the claim is then what kubelet and the record know, be it only one of them.
    """
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    pod.run()
    site.remember({asked.uid: [pod.uid]} if known_to == "kubelet" else {})
    if known_to == "kubelet":
        site.serving.prepare(site.reserve(asked, site.pod("another")))
    before = durable(site)
    for answer in odd_answers(site.claim_of(asked)):
        with pytest.raises(errors.DeviceBusy, match="in use by pod"):
            answering(site, answer).unprepare(asked)
        assert durable(site) == before
    pod.leave()
    answering(site, errors.ApiForbidden("HTTP 403")).unprepare(asked)
    assert_nothing_left(site, asked)


@pytest.mark.parametrize("word", ["nothing has it", "another claim has it"])
def test_f69_a_wrong_name_for_a_known_claim_frees_nothing(site: Bench, word: str) -> None:
    """F69: a claim is its uid; the name it was prepared by counts, not the one a caller gives."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    pod.run()
    wrong = replace(asked, namespace="elsewhere", name="b")
    if word == "another claim has it":
        wrong = replace(asked, name=site.bound("b", "gpu-1").name)
    before = durable(site)
    with pytest.raises(errors.DeviceBusy, match="in use by pod"):
        replace(site.serving, budget_s=2.0).unprepare(wrong)
    assert durable(site) == before
    pod.leave()
    site.serving.unprepare(wrong)
    assert_nothing_left(site, asked)


@pytest.mark.parametrize("how", ["gone", "replaced"])
def test_an_answer_about_this_claim_ends_it(site: Bench, how: str) -> None:
    """Invariant 19: a claim the API knows to be gone is nobody's, and its teardown begins."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    pod.run()
    site.remember({asked.uid: [pod.uid]})
    site.deallocate(asked)
    site.delete(asked)
    if how == "replaced":
        site.bound(asked.name, "gpu-1")
    with pytest.raises(errors.DeviceBusy, match="still runs"):
        replace(site.serving, budget_s=2.0).unprepare(asked)
    assert (site.record(asked), site.specs) == ("UNPREPARING", [])
    pod.leave()
    site.serving.unprepare(asked)


def demanding(floor: float) -> Object:
    """A configuration that asks for this much coverage."""
    parameters = {"apiVersion": API_VERSION, "kind": KIND, "coverageFloor": floor}
    opaque = {"driver": DRIVER, "parameters": parameters}
    return {"source": "FromClaim", "requests": [], "opaque": opaque}


def test_a_raised_policy_is_no_leave_to_tear_down(site: Bench) -> None:
    """Reference 1.5 a: what a claim asked for once has no say in whose it is now."""
    pod = site.pod()
    asked = site.create("a")
    site.allocate(asked, result("gpu-0"), config=[demanding(0.98)])
    site.serving.prepare(site.reserve(asked, pod))
    pod.run()
    raised = site.serving.policy.model_copy(update={"coverage_floor": 0.99})
    stricter = replace(site.serving, policy=raised, budget_s=2.0)
    with pytest.raises(errors.ClaimConfigInvalid):
        stricter.prepare(asked)
    with pytest.raises(errors.DeviceBusy, match="in use by pod"):
        stricter.unprepare(asked)
    assert (site.record(asked), len(site.specs)) == ("PREPARED", 1)
    pod.leave()
    stricter.unprepare(asked)
    assert_nothing_left(site, asked)


def test_a_record_of_an_earlier_version_is_served_and_torn_down(site: Bench) -> None:
    """Invariant 20: records outlive an update; the note of old named the results alone."""
    asked = site.bound("a", "gpu-0")
    first = site.serving.prepare(asked)
    (known,) = site.node.claims()
    order = site.claim(asked.uid, "gpu-0")
    old = json.dumps(json.loads(known.note)["shown"])
    site.node.prepare(order.model_copy(update={"note": old}))
    site.cluster.faults.offline = True
    assert site.serving.prepare(asked) == first
    site.node.prepare(order.model_copy(update={"note": "of somebody else"}))
    with pytest.raises(errors.ApiUnavailable):
        replace(site.serving, budget_s=2.0).prepare(asked)
    site.serving.unprepare(asked)
    assert_nothing_left(site, asked)


def test_a_lingering_tenant_costs_few_transactions(site: Bench) -> None:
    """Promise 7: the node backs off from a tenant that stays; asking for it must not undo that."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    site.reserve(asked, site.pod("next"))
    pod.run()
    with site.failing_disk(0) as seen, pytest.raises(errors.DeviceBusy, match="still runs"):
        replace(site.serving, budget_s=9.0).unprepare(asked)
    assert 8.0 <= site.clock.monotonic() <= 9.0
    assert 2 <= len(seen) <= 15
    pod.leave()
    site.serving.unprepare(asked)


def test_claims_do_not_touch_each_others_files(site: Bench) -> None:
    """Invariants 22 and 23: same name, new UID: files and ids of their own, one device each."""
    old = site.bound("a", "gpu-0")
    first = site.serving.prepare(old)
    site.deallocate(old)
    site.delete(old)
    new = site.bound("a", "gpu-1")
    second = site.serving.prepare(new)
    assert (old.name, old.namespace) == (new.name, new.namespace)
    assert not ids_of(first) & ids_of(second)
    assert len(site.specs) == 2
    site.serving.unprepare(old)
    assert site.specs == [site.spec(new).name]
    assert ids_in(site, new) == ids_of(second)


def test_a_recreated_claim_does_not_get_the_old_ones_device(site: Bench) -> None:
    """Invariant 23: exclusivity is by UID; the same name earns nothing."""
    old = site.bound("a", "gpu-0")
    site.serving.prepare(old)
    site.deallocate(old)
    site.delete(old)
    new = site.bound("a", "gpu-0")
    with pytest.raises(errors.DeviceBusy, match=old.uid):
        replace(site.serving, budget_s=2.0).prepare(new)


def test_a_cleared_allocation_does_not_free_the_device(site: Bench) -> None:
    """Invariant 38: force delete clears the allocation; the device is held until the teardown."""
    pod = site.pod()
    held = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(held)
    pod.run()
    pod.delete()
    site.deallocate(held)
    rival = site.bound("b", "gpu-0")
    with pytest.raises(errors.DeviceBusy, match=held.uid):
        replace(site.serving, budget_s=2.0).prepare(rival)
    assert site.spec(held).exists()
    pod.leave()
    site.serving.unprepare(held)
    site.node.tick(0.0)
    assert site.serving.prepare(rival).devices


# --- the API is away -----------------------------------------------------------


def test_a_prepared_claim_is_answered_from_its_record(site: Bench) -> None:
    """A4: a kubelet that restarts asks again; without the API the record answers, at once."""
    asked = site.create("a", "one", "two")
    site.allocate(
        asked, result("gpu-0", request="one"), result("gpu-0", request="two", adminAccess=True)
    )
    site.reserve(asked, site.pod())
    first = site.serving.prepare(asked)
    assert first.devices[0].requests == ("one", "two")
    site.cluster.faults.offline = True
    site.spec(asked).unlink()
    site.plug()
    assert site.serving.prepare(asked) == first
    assert ids_in(site, asked) == ids_of(first)
    assert site.clock.monotonic() == 0.0


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_prepared_claim_is_answered_though_we_are_not_let_in(site: Bench, code: int) -> None:
    """A4: an expired token says nothing about a claim, so its pod's restart does not fail by it.

    Without a record nobody is served on trust.
    """
    asked, other = site.bound("a", "gpu-0"), site.bound("b", "gpu-1")
    first = site.serving.prepare(asked)
    refused = answers.failure(code, b"404 page not found", what="GET x")
    assert answering(site, refused).prepare(asked) == first
    assert site.clock.monotonic() == 0.0
    with pytest.raises(type(refused)):
        answering(site, refused).prepare(other)
    assert site.record(other) == "ABSENT"


def test_an_unprepared_claim_waits_for_the_api(site: Bench) -> None:
    """Half the budget is the API's, so that the other half is left for the work."""
    asked = site.bound("a", "gpu-0")
    site.cluster.faults.offline = True
    with pytest.raises(errors.ApiUnavailable):
        site.serving.prepare(asked)
    assert 19.0 < site.clock.monotonic() <= 20.0
    site.cluster.faults.offline = False
    site.cluster.faults.fail_next("get", errors.ApiUnavailable("429"), times=2)
    assert site.serving.prepare(asked).devices


def test_a_server_error_is_waited_out(site: Bench) -> None:
    """Kubelet comes back only after a minute, and a changing leader answers 500 for a second."""
    asked = site.bound("a", "gpu-0")
    site.cluster.faults.fail_next("get", errors.ApiFailed("HTTP 500"), times=8)
    assert site.serving.prepare(asked).devices
    assert 0.5 < site.clock.monotonic() < 2.0


def test_an_owner_that_changes_is_waited_for(site: Bench) -> None:
    """DESIGN 5, Ray: between two owners every call waits inside its budget."""
    asked = site.bound("a", "gpu-0")
    site.node.close()

    def comes(now: float) -> None:
        if now > 4.0 and not (site.directory / "door.sock").exists():
            site.node = adapters.open_node(site.plan)

    site.meanwhile = comes
    assert site.serving.prepare(asked).devices
    site.node.close()
    site.meanwhile = lambda _: None
    with pytest.raises(errors.NotOwner):
        replace(site.serving, budget_s=2.0).unprepare(asked)
    site.meanwhile = comes
    site.serving.unprepare(asked)


# --- who is to use it ----------------------------------------------------------


@pytest.mark.parametrize("phase", sorted(ENDED))
def test_a_claim_whose_pods_have_ended_is_not_prepared(site: Bench, phase: str) -> None:
    """B12: neither a finished pod, nor one that is gone, elsewhere or replaced, is a consumer."""
    asked = site.bound("a", "gpu-0")
    ended, elsewhere, gone = site.pod("p"), site.pod("q", node="n2"), site.pod("r")
    ended.end(phase)
    gone.delete()
    replaced = {**site.pod("s").entry, "uid": "another"}
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}
    site.reserve(asked, ended, elsewhere, gone, replaced, group)
    with pytest.raises(errors.ClaimUnready, match="no live pod"):
        site.serving.prepare(asked)
    assert site.record(asked) == "ABSENT"
    site.reserve(asked, ended, site.pod("t"))
    assert site.serving.prepare(asked).devices


def test_f21_a_claim_that_a_group_shares_is_refused_by_that_name(site: Bench) -> None:
    """F21: a claim reserved for a group of pods is refused with the group's name and what to write
    instead; a pod beside the group is served, and our own hold is no group.
    """
    asked = site.bound("a", "gpu-0")
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}
    site.reserve(asked, group)
    with pytest.raises(errors.ClaimUnready, match=r"podgroups\.scheduling\.k8s\.io g") as refused:
        site.serving.prepare(asked)
    assert "resourceClaimTemplate in the pods alone" in refused.value.remedy
    assert site.record(asked) == "ABSENT"
    hold = {"apiGroup": site.serving.seat.driver, "resource": "nodes", "name": "n1", "uid": "h"}
    ended = site.pod("e")
    ended.end("Failed")
    site.reserve(asked, ended, hold)
    with pytest.raises(errors.ClaimUnready) as refused:
        site.serving.prepare(asked)
    assert "group" not in str(refused.value)
    site.reserve(asked, site.pod("t"), group)
    assert site.serving.prepare(asked).devices


def test_a_renamed_device_is_found_again(site: Bench) -> None:
    """A name is what the slices say now, not what it meant when the plugin started."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    assert site.serving._view is not None
    at, view = site.serving._view
    swapped = {"gpu-0": "gpu-1", "gpu-1": "gpu-0"}
    devices = tuple(
        device.model_copy(update={"name": swapped.get(device.name, device.name)})
        for device in view.devices
    )
    site.serving._view = at, view.model_copy(update={"devices": devices})
    site.clock.advance(1.5)
    site.serving.prepare(site.bound("b", "gpu-1"))
    assert site.device("gpu-1").state == State.IN_USE


def test_a_device_that_has_just_come_is_known(site: Bench) -> None:
    """A name that the last view does not have is looked for in a new one at once."""
    site.serving.prepare(site.bound("a", "gpu-0"))
    assert site.serving._view is not None
    at, view = site.serving._view
    known = view.model_copy(update={"devices": view.devices[:1]})
    site.serving._view = at, known
    assert site.serving.prepare(site.bound("b", "gpu-1")).devices


# --- quarantine ------------------------------------------------------------------


@pytest.mark.parametrize("by", ["operator", "coordinator", "wipe"])
def test_no_toleration_of_a_tenant_opens_a_quarantined_device(site: Bench, by: str) -> None:
    """B17, B31, D4: taints are for the scheduler; whoever tolerates them is refused by the node,
    and leaves no trace of an exposure."""
    if by == "operator":
        site.node.quarantine_add("gpu-0", detail="x", operator="ada")
    elif by == "coordinator":
        site.node.quarantine_add("gpu-0", detail="x", operator="coordinator", codes=("xid",))
    else:
        site.fault("remap-failed")
        site.scrub("gpu-0")
        site.let_go()
    tolerations = [
        {"key": f"{DRIVER}/{name}", "operator": "Exists", "effect": "NoSchedule"}
        for name in ("quarantined", "not-clean")
    ]
    asked = site.create("a")
    site.allocate(asked, result("gpu-0", tolerations=[*tolerations, {"operator": "Exists"}]))
    site.reserve(asked, site.pod())
    for _ in range(2):
        with pytest.raises(errors.DeviceUnfit):
            site.serving.prepare(asked)
    assert site.device().state == State.QUARANTINED
    assert site.specs == []


# --- isolation -----------------------------------------------------------------


def asked_with(
    site: Bench,
    name: str,
    device: str = "gpu-0",
    *,
    deallocation: str = "ZeroFillMemoryOnRelease",
    tolerations: Sequence[Object] = (),
    **right: Any,
) -> AskedClaim:
    """A bound claim with a tag for what `right` says, good when the claim was made."""
    asked = site.create(name)
    made = seconds_of(site.claim_of(asked)["metadata"]["creationTimestamp"])
    times = {"not_before": made, "not_after": made + 60, "issued_at": made}
    said = parameters(issued(**{"namespaces": (SPACE,), **times, **right}), deallocation)
    config = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": said}}]
    site.allocate(asked, result(device, tolerations=list(tolerations)), config=config)
    return site.reserve(asked, site.pod(f"pod-of-{asked.uid}"))


def isolated(site: Bench, keys: TagKeys = KEYS) -> None:
    """Let the node demand policy and tag of every claim."""
    isolation = Isolation(DRIVER, required=True, keys=lambda: keys)
    site.serving = replace(site.serving, isolation=isolation)


def test_a_claim_that_slipped_past_admission_gets_nothing(site: Bench) -> None:
    """C2, C5, B65: made while no webhook was there, without policy, tag, or for another profile or
    namespace: a permanent error that names what is missing, and no trace on the node."""
    isolated(site)
    before = durable(site)
    partition = asked_with(site, "c", "gpu-1-1g-0", profiles=("whole",))
    for asked, words in (
        (site.bound("a", "gpu-0"), "no isolationTag for request gpu"),
        (asked_with(site, "b", namespaces=("other",)), "is for namespace other, not for tenant"),
        (partition, "given was one of profile 1g"),
        (asked_with(site, "d", minimum="WipeOnDeallocate"), "demands deallocation"),
    ):
        with pytest.raises(errors.ClaimConfigInvalid, match=words) as refused:
            site.serving.prepare(asked)
        assert isinstance(refused.value, errors.Permanent)
        assert "webhook" not in refused.value.told
        assert durable(site) == before
        site.serving.unprepare(asked)
    good = asked_with(site, "e", minimum="WipeOnDeallocate", deallocation="WipeOnDeallocate")
    assert site.serving.prepare(good).devices


def test_f67_an_expired_tag_opens_nothing_to_a_new_pod(site: Bench) -> None:
    """F67: a claim that stands needs a tag that is good when its pod was made; a pod of that time
    has it prepared again whenever it comes back."""
    isolated(site)
    of_that_time = asked_with(site, "a")
    late = asked_with(site, "b", "gpu-1-1g-0")
    site.server_clock.ahead_s = 30 * 24 * 3600.0
    assert site.serving.prepare(of_that_time).devices
    site.reserve(late, site.pod("made-later"))
    with pytest.raises(errors.ClaimConfigInvalid, match="expired"):
        site.serving.prepare(late)


def test_who_has_a_device_keeps_it_when_the_tag_is_revoked(site: Bench) -> None:
    """C5, A4: a revocation lets no claim begin and cuts no running pod: kubelet's repeated prepare
    is answered as before. A list that cannot be read is retryable for those who begin."""
    isolated(site)
    first, second = asked_with(site, "a"), asked_with(site, "b", "gpu-1-1g-0")
    answer = site.serving.prepare(first)
    isolated(site, without_key(KEYS, ISSUER.key_id, reason="stolen", now=NOW))
    assert site.serving.prepare(first) == answer
    with pytest.raises(errors.ClaimConfigInvalid, match="stolen"):
        site.serving.prepare(second)

    def away() -> TagKeys:
        raise TagKeysUnreadable("gone")

    site.serving = replace(site.serving, isolation=Isolation(DRIVER, required=True, keys=away))
    assert site.serving.prepare(first) == answer
    with pytest.raises(TagKeysUnreadable):
        site.serving.prepare(second)


def test_a_tag_opens_no_quarantined_device(site: Bench) -> None:
    """B17, C5: neither the best tag nor a toleration of everything is a way past the node."""
    isolated(site)
    site.node.quarantine_add("gpu-0", detail="x", operator="ada")
    asked = asked_with(site, "a", tolerations=[{"operator": "Exists"}])
    with pytest.raises(errors.DeviceUnfit):
        site.serving.prepare(asked)
    assert site.specs == []
