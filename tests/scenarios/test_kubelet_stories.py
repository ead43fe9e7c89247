"""What kubelet, the API server and a reboot do to claims, told as they happened elsewhere.

The cases' own objects are used where they have some, with our driver and node in place of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fleet.core import errors
from fleet.core.messages import ClaimOrder
from fleet.core.model import ClaimUid, State
from fleet.core.profiles import Profile
from fleet.plugin.requests import AskedClaim
from tests.fleet.node.conftest import wait_for
from tests.fleet.plugin.benches import Bench, bench, result


@pytest.fixture
def site() -> Iterator[Bench]:
    """One node and its API, profile `fast`."""
    with bench() as made:
        yield made


def ids(site: Bench, asked: AskedClaim) -> set[str]:
    """CDI ids in the claim's spec."""
    found = json.loads(site.spec(asked).read_text())
    return {f"{found['kind']}={device['name']}" for device in found["devices"]}


def vanish(site: Bench, name: str) -> None:
    """Take an accelerator out of the (closed) node, as if its card was pulled."""
    path = site.directory / "sim" / "topology.json"
    found = json.loads(path.read_text())
    kept = [one for one in found["accelerators"] if one["devices"][0]["name"] != name]
    assert len(kept) == len(found["accelerators"]) - 1
    path.write_text(json.dumps({**found, "accelerators": kept}))


# --- B01: force delete ---------------------------------------------------------


def test_b01_the_next_claim_waits_for_the_last_ones_wipe(site: Bench) -> None:
    """B01: allocation freed at once, container alive: B gets nothing until A is wiped, also after
    a restart of the node service in between."""
    old = site.pod("old")
    first = site.bound("a", "gpu-0", pods=[old])
    site.serving.prepare(first)
    site.memory().write_bytes(b"\xa5" * site.device().memory_bytes)
    old.run()
    old.delete()
    site.deallocate(first)
    before = site.spec(first).read_text()
    site.node.close()
    site.open()
    second = site.bound("b", "gpu-1", "gpu-0")
    with pytest.raises(errors.DeviceBusy, match=first.uid):
        site.serving.prepare(second)
    assert site.spec(first).read_text() == before
    assert not site.spec(second).exists()
    assert site.device("gpu-1").claim == ""

    def kubelet_comes(now: float) -> None:
        if now > started + 2.0 and site.record(first) == "PREPARED":
            old.leave()
            site.serving.unprepare(first)
        site.node.tick(0.0)

    started = site.clock.monotonic()
    site.meanwhile = kubelet_comes
    assert {d.device for d in site.serving.prepare(second).devices} == {"gpu-0", "gpu-1"}
    assert not any(site.memory().read_bytes())
    assert not site.spec(first).exists()


# --- B10: reboot ---------------------------------------------------------------


def test_b10_after_a_reboot_a_claim_is_wiped_and_exposed_anew(site: Bench) -> None:
    """B10: a record of an earlier boot is no proof: wiped again, spec written, then answered."""
    asked = site.bound("a", "gpu-0")
    first = site.serving.prepare(asked)
    site.node.close()
    site.backend.reboot()
    site.spec(asked).unlink()
    site.open()
    assert site.record(asked) == "PREPARING"
    assert not site.spec(asked).exists()
    site.memory().write_bytes(b"\xa5" * site.device().memory_bytes)
    assert site.serving.prepare(asked) == first
    assert ids(site, asked) == {cdi for device in first.devices for cdi in device.cdi_ids}
    assert site.ledger.count == 2
    assert not any(site.memory().read_bytes())
    site.serving.unprepare(asked)
    assert (site.specs, site.record(asked)) == ([], "ABSENT")


def test_b10_a_device_that_is_gone_after_the_reboot(site: Bench) -> None:
    """B10: an error for the claim, its record is kept, the neighbours are served; and kubelet can
    delete the pod once the loss is visible (promise 7: no state is a trap)."""
    asked = site.bound("a", "gpu-0")
    site.serving.prepare(asked)
    site.node.close()
    site.backend.reboot()
    vanish(site, "gpu-0")
    site.open()
    with pytest.raises(errors.DeviceUnknown, match="no device 'gpu-0' any more"):
        site.serving.prepare(asked)
    assert site.record(asked) == "PREPARING"
    assert site.serving.prepare(site.bound("b", "gpu-1")).devices
    with site.kept():
        site.serving.unprepare(asked)
    assert site.record(asked) == "ABSENT"


def test_b10_a_device_that_is_gone_in_the_same_boot() -> None:
    """B10, B24: nothing answers with ids that name what is not there; its teardown ends."""
    with bench(api_timeout_s=0.2) as site:
        asked = site.bound("a", "gpu-0")
        site.serving.prepare(asked)
        with site.kept():
            wait_for(lambda: site.taints("gpu-0") == [])
        site.node.close()
        vanish(site, "gpu-0")
        site.open()
        with pytest.raises(errors.DeviceUnknown):
            site.serving.prepare(asked)
        with site.kept():
            site.serving.unprepare(asked)
        assert "quarantined" in site.taints("gpu-0")
        assert (site.specs, site.record(asked)) == ([], "ABSENT")


# --- B12: late prepare ---------------------------------------------------------


def torn_down(site: Bench) -> AskedClaim:
    """A claim that was prepared and unprepared."""
    asked = site.bound("a", "gpu-0", pods=[site.pod("p")])
    site.serving.prepare(asked)
    site.serving.unprepare(asked)
    site.node.tick(0.0)
    return asked


@pytest.mark.parametrize("now", ["gone", "unallocated", "pod gone", "replaced"])
def test_b12_a_late_prepare_revives_nothing(site: Bench, now: str) -> None:
    """B12: finished is not unknown: no spec, no device, no certificate, before and after a
    restart."""
    asked = torn_down(site)
    if now == "pod gone":
        site.reserve(asked)
    else:
        site.deallocate(asked)
    if now in ("gone", "replaced"):
        site.delete(asked)
    if now == "replaced":
        site.bound("a", "gpu-0")
    count = site.ledger.count
    for _ in range(2):
        with pytest.raises((errors.ApiNotFound, errors.ClaimUnready, errors.ClaimReplaced)):
            site.serving.prepare(asked)
        assert (site.specs, site.record(asked), site.device().claim) == ([], "ABSENT", "")
        assert site.ledger.count == count
        site.node.close()
        site.open()


def test_b12_a_prepare_that_read_the_claim_too_early(site: Bench) -> None:
    """B12: the claim is read, then the teardown runs, then the prepare goes on: the pod decides."""
    pod = site.pod("p")
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)

    def teardown() -> None:
        site.cluster.faults.clear()
        site.serving.unprepare(asked)
        pod.delete()

    site.cluster.faults.before_next("get", lambda: None)
    site.cluster.faults.before_next("get", teardown)
    with pytest.raises(errors.ClaimUnready, match="no live pod"):
        site.serving.prepare(asked)
    assert (site.specs, site.record(asked)) == ([], "ABSENT")


def test_b12_the_tombstone_is_durable_and_a_live_pod_passes_it(site: Bench) -> None:
    """B12: without a live consumer nothing passes, also after a restart; with one a legitimate
    prepare works. (That they are bounded: tests/fleet/node/journal/test_journal.py.)"""
    asked = torn_down(site)
    site.node.close()
    site.open()
    order = ClaimOrder(uid=asked.uid, node="n1", devices=(site.device().uuid,))
    with pytest.raises(errors.IllegalTransition, match="live pod consumer"):
        site.node.prepare(order)
    assert site.serving.prepare(asked).devices
    site.serving.unprepare(asked)
    assert site.node._registry.journal.tombstone(ClaimUid(asked.uid)) is not None


# --- B37: a claim of several drivers -------------------------------------------


def test_b37_only_our_devices_of_this_node_are_ours(site: Bench) -> None:
    """B37: prepare, crash half way, restart, unprepare: a foreign driver's `gpu-1` and another
    node's are in no path."""
    asked = site.create("mixed", "gpu", "nic", "gpu2")
    site.allocate(
        asked,
        result("gpu-0", request="gpu"),
        result("gpu-1", request="nic", driver="nic.other.example.com"),
        result("gpu-1", request="gpu2", pool="node-b"),
        config=[
            {
                "source": "FromClaim",
                "requests": ["nic"],
                "opaque": {"driver": "nic.other.example.com", "parameters": {"mtu": 9000}},
            }
        ],
    )
    site.reserve(asked, site.pod("mixed-pod"))
    untouched = site.units("gpu-1")
    with site.failing_disk(4, for_good=True):
        with pytest.raises(errors.FleetError):
            site.serving.prepare(asked)
        site.node.close()
    site.open()
    with site.kept():
        site.serving.unprepare(asked)
    site.node.tick(0.0)
    (device,) = site.serving.prepare(asked).devices
    assert (device.device, device.requests) == ("gpu-0", ("gpu",))
    assert len(ids(site, asked)) == 1
    (record,) = site.node.claims()
    assert record.devices == (site.device("gpu-0").uuid,)
    site.serving.unprepare(asked)
    assert site.units("gpu-1") == untouched


# --- a lost journal ------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_lost_journal_frees_nothing(site: Bench, how: str) -> None:
    """Invariant 24, B07: what was prepared is held from the store's word; only its teardown with
    all proofs frees it, and the node says what happened."""
    pod = site.pod()
    asked = site.bound("a", "gpu-0", pods=[pod])
    site.serving.prepare(asked)
    pod.run()
    site.remember({asked.uid: [pod.uid]})
    site.node.close()
    journal = site.directory / "journal.db"
    for path in site.directory.glob("journal.db-*"):
        path.unlink()
    if how == "missing":
        journal.unlink()
    else:
        journal.write_bytes(b"\x00" * 8192)
    site.open()
    assert site.node.view().degraded
    assert (site.device().state, site.device().claim) == (State.HELD, asked.uid)
    assert site.specs == []
    with pytest.raises(errors.Retryable, match=asked.uid):
        site.serving.prepare(site.bound("b", "gpu-0"))
    site.deallocate(asked)
    with pytest.raises(errors.DeviceBusy, match="still runs"):
        site.serving.unprepare(asked)
    pod.leave()
    site.serving.unprepare(asked)
    assert site.device().state == State.CLEAN


# --- strict --------------------------------------------------------------------


def test_a_strict_claim_is_wiped_under_its_own_token() -> None:
    """Promise 1, B3: also when nobody wiped before the pod was bound, and when the device is clean
    of somebody else's wipe."""
    with bench(Profile.STRICT) as site:
        site.scrub()
        site.let_go()
        asked = site.bound("a", "gpu-0")
        site.serving.prepare(asked)
        assert site.ledger.count == 2
        assert site.device().state == State.IN_USE
        site.serving.unprepare(asked)
        assert site.ledger.count == 3
