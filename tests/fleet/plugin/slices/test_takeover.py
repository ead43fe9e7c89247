"""The coordinator's word in the slices of a silent node, and its way back to the node."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any

import pytest

from fleet.core.errors import ApiConflict, ApiUnavailable
from fleet.core.messages import ReasonView
from fleet.kube.base import SLICES, Object
from fleet.plugin.slices.gate import GateRules
from fleet.plugin.slices.merge import TAINTS_MAX
from fleet.plugin.slices.pool import Delete, Update
from fleet.plugin.slices.pool_view import read_pools
from fleet.plugin.slices.publisher import Publisher
from fleet.plugin.slices.takeover import (
    NODE,
    UNTOLD,
    Record,
    annotation,
    carrying,
    codes_of,
    mark,
    take_over,
    taken_over,
    with_records,
)
from tests.fleet.plugin.slices.test_publisher import Bench

DRIVER = "gpu.fleetscrub.dev"
RULES = GateRules(driver=DRIVER, fresh_s=0.0)
NOW = 1_700_000_000.0
SILENT = Record("d0", "GPU-0", ("node-silent",), NOW)


def entry(name: str = "d0", uuid: str = "GPU-0", taints: tuple[Object, ...] = ()) -> Object:
    """A device of a slice."""
    found: Object = {"name": name, "attributes": {"uuid": {"string": uuid}}}
    return {**found, "taints": list(taints)} if taints else found


def part(*devices: Object, name: str = "s0", notes: dict[str, str] | None = None) -> Object:
    """A slice as read from the server."""
    metadata: dict[str, Any] = {"name": name, "uid": f"u-{name}", "resourceVersion": "7"}
    metadata["managedFields"] = [{"manager": "x"}]
    if notes:
        metadata["annotations"] = notes
    pool = {"name": "n", "generation": 3, "resourceSliceCount": 1}
    return {
        "metadata": metadata,
        "spec": {"driver": DRIVER, "pool": pool, "devices": list(devices)},
    }


def took(found: Object, *codes: str, device: str = "d0", now: float = NOW, **more: bool) -> Object:
    """The slice after a take-over that was not superfluous."""
    body = take_over(found, {device: codes}, driver=DRIVER, now=now, **more)
    assert body is not None
    return body


def shown(found: Object, device: str = "d0") -> dict[str, str]:
    """Taints of a device: key to value."""
    (one,) = [d for d in found["spec"]["devices"] if d["name"] == device]
    return {t["key"].removeprefix(f"{DRIVER}/"): t.get("value", "") for t in one.get("taints", ())}


def test_a_device_taken_over_is_blocked_and_says_by_whom_when_and_why() -> None:
    """Promise 6: both taints, and a record of the coordinator's with the time and all codes."""
    body = took(part(entry()), "node-silent", "xid")
    assert shown(body) == {"not-clean": "", "quarantined": "node-silent.xid"}
    assert taken_over(body, driver=DRIVER) == (
        Record("d0", "GPU-0", ("node-silent", "xid"), NOW, "coordinator"),
    )
    assert body["metadata"]["resourceVersion"] == "7"
    assert "managedFields" not in body["metadata"]
    assert body["spec"]["pool"]["generation"] == 3


def test_neither_neighbours_nor_the_slice_given_are_touched() -> None:
    """B31: nothing but the devices named changes."""
    found = part(entry(), entry("d1", "GPU-1"))
    before = copy.deepcopy(found)
    body = took(found, "xid")
    assert found == before
    assert body["spec"]["devices"][1] == entry("d1", "GPU-1")


def test_saying_it_again_is_no_write_and_moves_no_time() -> None:
    """B43: a repeated take-over changes nothing; a new code keeps the time of the first."""
    first = took(part(entry()), "xid")
    assert take_over(first, {"d0": ("xid",)}, driver=DRIVER, now=NOW + 60) is None
    second = took(first, "node-silent", now=NOW + 60)
    assert taken_over(second, driver=DRIVER) == (
        Record("d0", "GPU-0", ("node-silent", "xid"), NOW),
    )


def test_other_parties_taints_and_times_stay() -> None:
    """D4: taints of others, and the time of one of ours that says the same, are not touched."""
    theirs = {"key": "site/power", "value": "x", "effect": "NoExecute", "timeAdded": "t1"}
    clean = {"key": RULES.not_clean, "effect": "NoSchedule", "timeAdded": "t2"}
    body = took(part(entry(taints=(theirs, clean))), "xid")
    taints = body["spec"]["devices"][0]["taints"]
    assert taints[:2] == [theirs, clean]
    assert [t["key"] for t in taints[2:]] == [RULES.quarantined]


def test_what_the_node_said_is_added_to_and_its_effect_kept() -> None:
    """B31: reasons are merged, and a NoExecute is never weakened."""
    own = {"key": RULES.quarantined, "value": "device-lost", "effect": "NoExecute"}
    (taint,) = [
        t
        for t in took(part(entry(taints=(own,))), "node-silent")["spec"]["devices"][0]["taints"]
        if t["key"] == RULES.quarantined
    ]
    assert (taint["value"], taint["effect"]) == ("device-lost.node-silent", "NoExecute")


def test_sixteen_taints_are_never_exceeded() -> None:
    """B09: without room for both the one that counts; without room for that, out of the slice."""
    others = tuple(
        {"key": f"site/t{n}", "value": "", "effect": "NoSchedule"} for n in range(TAINTS_MAX)
    )
    body = took(part(entry(taints=others[:15])), "xid")
    assert len(body["spec"]["devices"][0]["taints"]) == TAINTS_MAX
    assert "quarantined" in shown(body)
    gone = took(part(entry(taints=others), entry("d1")), "xid")
    assert [d["name"] for d in gone["spec"]["devices"]] == ["d1"]
    assert taken_over(gone, driver=DRIVER)[0].device == "d0"


def test_where_taints_are_dropped_the_device_leaves_the_slice() -> None:
    """D4: removed where taints are unavailable, with the record left behind; once."""
    gone = took(part(entry()), "xid", remove=True)
    assert gone["spec"]["devices"] == []
    assert take_over(gone, {"d0": ("xid",)}, driver=DRIVER, now=NOW, remove=True) is None


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[1]", "{}x", '[{"device": "d0"}]',
     '[{"device":"d0","uuid":"u","codes":[],"at":1}]',
     '[{"device":"d0","uuid":"u","codes":["x"],"at":"NaN"}]',
     '[{"device":"d0","uuid":"u","codes":["x"],"at":1e99}]', "[" * 3000],
)  # fmt: skip
def test_an_unreadable_record_counts_as_reasons_unknown(text: str) -> None:
    """B19: what cannot be understood is never passed over."""
    own = {"key": RULES.quarantined, "value": "x", "effect": "NoSchedule"}
    found = part(entry(taints=(own,)), entry("d1"), notes={annotation(DRIVER): text})
    assert taken_over(found, driver=DRIVER) == (Record("d0", "GPU-0", (UNTOLD,), 0.0),)


@pytest.mark.parametrize(
    ("value", "codes"),
    [("xid", ("xid",)), ("a.b", ("a", "b")), ("a.and-2-more", ("a", UNTOLD)),
     ("unknown", (UNTOLD,)), ("17-reasons", (UNTOLD,)), ("", (UNTOLD,))],
)  # fmt: skip
def test_codes_are_read_back_from_a_taint(value: str, codes: tuple[str, ...]) -> None:
    """What a value had no room for becomes a reason that no rule lifts."""
    assert (
        codes_of({"key": RULES.quarantined, "value": value, "effect": "NoSchedule"}, RULES) == codes
    )
    assert (
        codes_of({"key": "other/quarantined", "value": value, "effect": "NoSchedule"}, RULES) == ()
    )


def test_marking_a_marked_device_changes_nothing() -> None:
    """However many codes: marking is idempotent, so that nothing is written for ever."""
    codes = [f"a-long-reason-code-{n}" for n in range(9)]
    once = mark(entry(), codes, RULES)
    assert once is not None
    assert mark(once, codes, RULES) == once


def test_no_write_of_a_plan_loses_a_record() -> None:
    """Devices move between slices: each slice written carries every record, deletions come last."""
    marked = took(part(entry()), "node-silent")
    plan = (Delete("s0", "u-s0", "7"), Update(part(entry("d1"), name="s1")))
    first, last = with_records(plan, [marked], {SILENT}, driver=DRIVER)
    assert isinstance(first, Update)
    assert taken_over(first.body, driver=DRIVER) == (SILENT,)
    assert last == plan[0]
    stays = part(entry("d1"), name="s1")
    saved, gone = with_records(plan[:1], [marked, stays], {SILENT}, driver=DRIVER)
    assert isinstance(saved, Update)
    assert taken_over(saved.body, driver=DRIVER) == (SILENT,)
    assert gone == plan[0]


def test_a_record_no_longer_wanted_leaves_and_no_other_is_written() -> None:
    """A slice is written for the annotation alone only when that has to change."""
    marked = took(part(entry()), "node-silent")
    other = {"site/note": "x"}
    marked["metadata"]["annotations"] |= other
    assert with_records((), [marked], {SILENT}, driver=DRIVER) == ()
    (write,) = with_records((), [marked, part(name="s1")], (), driver=DRIVER)
    assert isinstance(write, Update)
    assert write.body["metadata"]["annotations"] == other
    assert "annotations" not in carrying(part(), (), driver=DRIVER)["metadata"]


def test_a_slice_of_counters_keeps_no_record_and_saves_none() -> None:
    """Promise 6: a record is where its device is read; only a slice of devices can rescue it, and
    a record that somebody put beside counters leaves like any other."""
    marked = took(part(entry()), "node-silent")
    sets = part(name="c0")
    del sets["spec"]["devices"]
    sets["spec"]["sharedCounters"] = [{"name": "d0-memory", "counters": {"m0": {"value": "1"}}}]
    plan = (Update(sets), Delete("s0", "u-s0", "7"))
    stays = part(entry("d1"), name="s1")
    counters, saved, gone = with_records(plan, [marked, sets, stays], {SILENT}, driver=DRIVER)
    assert (counters, gone) == plan
    assert isinstance(saved, Update)
    assert saved.body["metadata"]["name"] == "s1"
    assert taken_over(saved.body, driver=DRIVER) == (SILENT,)
    (kept, _) = with_records(plan[1:], [sets, marked, stays], {SILENT}, driver=DRIVER)
    assert isinstance(kept, Update)
    assert kept.body["metadata"]["name"] == "s1"
    odd = carrying(sets, {SILENT}, driver=DRIVER)
    (cleaned,) = with_records((), [odd], (), driver=DRIVER)
    assert isinstance(cleaned, Update)
    assert taken_over(cleaned.body, driver=DRIVER) == ()
    assert take_over(sets, {"d0": ("x",)}, driver=DRIVER, now=NOW) is None


# --- the publisher ---------------------------------------------------------------


def overtake(bench: Bench, device: str, *codes: str) -> None:
    """What the coordinator does."""
    for found in bench.slices():
        body = take_over(found, {device: codes}, driver=DRIVER, now=bench.clock.now())
        if body is not None:
            bench.cluster.replace(SLICES, body)
    bench.publisher._slices.expire()


def records(bench: Bench) -> list[Record]:
    """What the slices keep."""
    return sorted({r for found in bench.slices() for r in taken_over(found, driver=DRIVER)})


@pytest.fixture
def bench() -> Bench:
    """Two clean devices, published."""
    made = Bench(2)
    assert made.step().settled
    return made


MARKED = {"not-clean": "", "quarantined": "node-silent"}


def test_a_publisher_leaves_marked_what_was_marked_for_its_node(bench: Bench) -> None:
    """Promise 6: the node's view of a CLEAN device does not take the coordinator's word back."""
    overtake(bench, "gpu-0", "node-silent")
    for _ in range(3):
        report = bench.step()
        assert bench.taints("gpu-0") == MARKED
        assert [r.uuid for r in report.taken_over] == ["GPU-0"]
    assert bench.report.settled
    assert bench.taints("gpu-1") == {}


def test_the_mark_is_replaced_once_the_node_has_the_reasons(bench: Bench) -> None:
    """Records go only with a view that was taken after the node had journalled them."""
    overtake(bench, "gpu-0", "node-silent")
    bench.publisher.merged(bench.step().taken_over)
    bench.step(silent=True)
    assert bench.taints("gpu-0") == MARKED
    assert records(bench) != []
    reason = ReasonView(code="node-silent", source="coordinator", liftable=True)
    bench.changes["GPU-0"] = {"state": "QUARANTINED", "reasons": (reason,)}
    report = bench.step()
    assert bench.taints("gpu-0") == MARKED
    assert records(bench) == []
    assert report.taken_over == ()
    assert report.confirmed_quarantine == {"GPU-0": 7.0}
    bench.changes["GPU-0"] = {}
    assert bench.step().settled
    assert bench.taints("gpu-0") == {}


def test_a_new_process_finds_the_records_again(bench: Bench) -> None:
    """Crash-safe: killed between merging and writing, it is all done again, and nothing is lost."""
    overtake(bench, "gpu-0", "node-silent")
    bench.publisher.merged(bench.step().taken_over)
    bench.start()
    report = bench.step()
    assert bench.taints("gpu-0") == MARKED
    assert len(report.taken_over) == 1


def test_records_survive_every_rewrite_of_the_pool(bench: Bench) -> None:
    """A neighbour's quarantine and a second slice change nothing about them."""
    overtake(bench, "gpu-0", "node-silent")
    kept = records(bench)
    bench.quarantine("GPU-1", "xid")
    bench.step()
    bench.changes |= {f"GPU-{n}": {} for n in range(2, 80)}
    bench.step()
    assert len(bench.slices()) == 2
    assert records(bench) == kept
    assert bench.taints("gpu-0") == MARKED
    assert bench.taints("gpu-1")["quarantined"] == "xid"


def test_a_silent_node_keeps_the_mark_and_its_time(bench: Bench) -> None:
    """With the owner away the publisher holds on to the coordinator's word, as it was written."""
    overtake(bench, "gpu-0", "node-silent")

    def times() -> list[str]:
        (device,) = read_pools(bench.slices())[(DRIVER, "node-a")].devices["gpu-0"]
        return [t["timeAdded"] for t in device["taints"] if t["key"] == RULES.quarantined]

    before = times()
    bench.start()
    bench.step(after=500.0, silent=True)
    bench.step(after=500.0)
    assert bench.taints("gpu-0") == MARKED
    assert times() == before


def test_a_partition_is_taken_over_beside_its_counters() -> None:
    """Promise 6: the coordinator marks one partition; counters stay, its neighbours stay free."""
    made = Bench(1, partitioned=1)
    assert made.step().settled
    overtake(made, "gpu-1-p0", "node-silent")
    assert made.step().settled
    assert made.taints("gpu-1-p0") == MARKED
    assert made.taints("gpu-1-p1") == {}
    assert [r.device for r in records(made)] == ["gpu-1-p0"]
    assert made.pool().complete


def test_another_card_in_its_place_is_not_marked(bench: Bench) -> None:
    """A record is of a device, not of a slot; that of a device that never returns is retired."""
    overtake(bench, "gpu-0", "node-silent")
    bench.changes = {"GPU-9": {"name": "gpu-0"}, "GPU-1": {}}
    report = bench.step()
    assert bench.taints("gpu-0") == {}
    assert report.taken_over == ()
    assert len(records(bench)) == 1
    bench.publisher.retire("GPU-0")
    bench.step()
    assert records(bench) == []


def test_a_lost_device_keeps_its_record_until_it_is_back(bench: Bench) -> None:
    """What the node does not see it cannot take: it is asked when the device is there again."""
    overtake(bench, "gpu-0", "node-silent")
    gone = bench.changes.pop("GPU-0")
    assert bench.step().taken_over == ()
    assert bench.taints("gpu-0")["quarantined"] == "device-lost.node-silent"
    bench.changes["GPU-0"] = gone
    assert len(bench.step().taken_over) == 1
    assert bench.taints("gpu-0") == MARKED


def test_own_taints_are_what_is_left_of_a_lost_journal(bench: Bench) -> None:
    """DESIGN 4: devices of unknown holder are still quarantined for what the slices say."""
    bench.quarantine("GPU-0", "remap-failed")
    bench.step()
    bench.changes["GPU-0"] = {"state": "HELD"}
    bench.changes["GPU-1"] = {"state": "HELD"}
    restarted: Publisher = bench.start()
    (record,) = bench.step().taken_over
    assert (record.uuid, record.codes, record.by) == ("GPU-0", ("remap-failed",), NODE)
    assert bench.taints("gpu-0")["quarantined"] == "remap-failed"
    assert "journal was lost" in record.told
    restarted.merged([record])
    bench.changes["GPU-0"] = {"state": "DIRTY"}
    assert bench.step().taken_over == ()
    assert bench.taints("gpu-0") == {"not-clean": ""}


def test_own_taints_of_a_cleared_device_bring_nothing_back(bench: Bench) -> None:
    """An operator's decision made while the plugin was away is not undone by its old taints."""
    bench.quarantine("GPU-0", "xid")
    bench.step()
    bench.changes["GPU-0"] = {"state": "DIRTY"}
    bench.start()
    assert bench.step().taken_over == ()
    assert bench.taints("gpu-0") == {"not-clean": ""}


def test_a_lost_device_that_is_retired_leaves_with_its_record(bench: Bench) -> None:
    """E7: retiring leaves neither device nor record nor taint behind."""
    overtake(bench, "gpu-0", "node-silent")
    del bench.changes["GPU-0"]
    bench.step()
    bench.publisher.retire("GPU-0")
    bench.step()
    bench.step()
    assert records(bench) == []
    assert set(bench.pool().devices) == {"gpu-1"}


@pytest.mark.parametrize("seed", range(25))
def test_no_order_of_events_opens_a_device_before_its_node_knows(seed: int) -> None:
    """Promise 6: whatever silence, crash, conflict, lost answer and rewrite come between: a device
    taken over is out of service in the slices until a view with its reasons was published, and in
    the end no record is left."""
    chance = random.Random(seed)
    bench = Bench(3)
    bench.step()
    journal: set[str] = set()
    taken: set[str] = set()
    known: list[Record] = []

    def merge() -> None:
        for record in known:
            journal.add(record.uuid)
            reason = ReasonView(code="node-silent", source="coordinator", liftable=True)
            bench.changes[record.uuid] = {"state": "QUARANTINED", "reasons": (reason,)}
        if chance.random() < 0.7:
            bench.publisher.merged(known)

    def take() -> None:
        number = chance.randrange(3)
        overtake(bench, f"gpu-{number}", "node-silent")
        taken.add(f"GPU-{number}")

    acts = (
        take,
        merge,
        bench.start,
        lambda: bench.step(silent=True, after=chance.choice((1.0, 400.0))),
        lambda: bench.cluster.faults.lose_answer_next("replace"),
        lambda: bench.cluster.faults.fail_next("replace", ApiConflict("409")),
        lambda: bench.changes.update({f"GPU-{chance.randrange(3, 70)}": {}}),
    )
    for _ in range(30):
        with contextlib.suppress(ApiConflict, ApiUnavailable):
            chance.choice(acts)()
        known = list(bench.step().taken_over)
        for uuid in taken - journal:
            shown_now = bench.pool().devices[uuid.lower()]
            assert all("quarantined" in str(one.get("taints")) for one in shown_now)
    bench.cluster.faults.clear()
    for _ in range(12):
        known = list(bench.step(after=40.0).taken_over)
        merge()
    assert records(bench) == []
    assert taken <= journal
