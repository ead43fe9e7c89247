"""The pool protocol: whatever happened before, the next plans converge and nobody is misled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import InputInvalid
from fleet.plugin.slices.counters import SETS_MAX, sets
from fleet.plugin.slices.pool import (
    DEVICES_MAX,
    Create,
    Delete,
    PoolIdentity,
    Update,
    Write,
    arrange,
    plan,
    slice_index,
)
from fleet.plugin.slices.pool_view import PoolReading, devices_of, generation, read_pools

IDENTITY = PoolIdentity(driver="gpu.example.com", node="node-a", node_uid="node-uid-1")
REBORN = PoolIdentity(driver="gpu.example.com", node="node-a", node_uid="node-uid-2")


Wanted = tuple[list[int], set[int]]
"""Numbers of devices, and which of them are marked."""


def device(name: str, mark: int = 0) -> dict[str, Any]:
    """A device told apart by its mark."""
    return {"name": name, "attributes": {"mark": {"int": mark}}}


def many(count: int, mark: int = 0) -> list[dict[str, Any]]:
    """Devices d0 .. dn."""
    return [device(f"d{place}", mark) for place in range(count)]


class Server:
    """The least of an API server: names, versions, UIDs, guards."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)

    def perform(self, write: Write) -> None:
        """Carry one write out; a failed guard is an error of the test."""
        number = next(self._numbers)
        if isinstance(write, Delete):
            found = self.slices[write.name]["metadata"]
            assert (found["uid"], found["resourceVersion"]) == (write.uid, write.resource_version)
            del self.slices[write.name]
            return
        body = {**write.body, "metadata": {**write.body["metadata"]}}
        metadata = body["metadata"]
        if isinstance(write, Create):
            metadata["name"] = f"{metadata.pop('generateName')}{number:x}"
            metadata["uid"] = f"uid-{number}"
        else:
            found = self.slices[metadata["name"]]["metadata"]
            assert metadata["resourceVersion"] == found["resourceVersion"]
            assert metadata["uid"] == found["uid"]
        metadata["resourceVersion"] = str(number)
        assert len(devices_of(body)) <= DEVICES_MAX
        assert len(body["spec"].get("sharedCounters") or ()) <= SETS_MAX
        assert not {"devices", "sharedCounters"} <= body["spec"].keys()
        self.slices[metadata["name"]] = body

    def listed(self) -> list[dict[str, Any]]:
        """All slices."""
        return list(self.slices.values())

    def reading(self, identity: PoolIdentity = IDENTITY) -> PoolReading | None:
        """The pool as a reader sees it."""
        return read_pools(self.listed()).get((identity.driver, identity.pool))

    def publish(
        self,
        devices: Sequence[dict[str, Any]],
        *,
        identity: PoolIdentity = IDENTITY,
        writes: int = 1000,
        last: int = 0,
        counter_sets: Sequence[dict[str, Any]] = (),
    ) -> int:
        """Carry out the first `writes` of a plan; how many there were in all."""
        ordered = plan(
            self.listed(), devices, identity=identity, last=last, counter_sets=counter_sets
        )
        for write in ordered[:writes]:
            self.perform(write)
        return len(ordered)

    def says(self) -> dict[str, Any]:
        """Devices by name of a complete pool."""
        reading = self.reading()
        assert reading is not None
        assert reading.complete, reading.trouble
        return {name: entries[0] for name, entries in reading.devices.items()}


def kinds(ordered: Sequence[Write]) -> list[str]:
    """Names of the writes."""
    return [type(write).__name__ for write in ordered]


def test_the_first_publication_is_generation_one() -> None:
    """A new pool: one slice, complete at once, owned by the Node."""
    server = Server()
    server.publish(many(8))
    assert list(server.says()) == [f"d{place}" for place in range(8)]
    (found,) = server.listed()
    assert generation(found) == 1
    assert found["metadata"]["name"].startswith("00000-gpu.example.com-node-a-")
    assert found["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid-1",
         "controller": True}
    ]  # fmt: skip


def test_no_device_is_an_empty_slice() -> None:
    """Reference 2.2: "driver up, no devices" is a slice without devices, not no slice."""
    server = Server()
    server.publish([])
    assert server.says() == {}
    assert server.publish([]) == 0


def test_a_hundred_devices_are_two_slices_before_any_taint() -> None:
    """B09: at most 64 a slice always, so that a taint never makes one invalid."""
    server = Server()
    server.publish(many(100))
    assert sorted(len(devices_of(found)) for found in server.listed()) == [36, 64]
    tainted = many(100)
    tainted[37] = {**tainted[37], "taints": [{"key": "q", "effect": "NoSchedule"}]}
    assert server.publish(tainted) == 1
    assert server.says()["d37"]["taints"]


def test_a_device_added_to_a_full_tainted_slice_opens_a_second() -> None:
    """B09: 64 devices, a taint among them, and one hot-added."""
    server = Server()
    full = many(64)
    full[0] = {**full[0], "taints": [{"key": "q", "effect": "NoSchedule"}]}
    server.publish(full)
    server.publish([*full, device("new")])
    assert sorted(len(devices_of(found)) for found in server.listed()) == [1, 64]
    assert len(server.says()) == 65


def test_one_changed_slice_keeps_the_generation() -> None:
    """Invariant 28: a one-slice change is atomic and needs no new generation."""
    server = Server()
    server.publish(many(8))
    ordered = plan(server.listed(), many(8, mark=1), identity=IDENTITY)
    assert kinds(ordered) == ["Update"]
    server.publish(many(8, mark=1))
    assert server.reading().generation == 1  # type: ignore[union-attr]


def test_one_device_of_a_hundred_changes_one_slice_only() -> None:
    """A device that goes leaves its slice alone; the others keep their places and generation."""
    server = Server()
    server.publish(many(100))
    assert server.publish(many(100)[1:]) == 1
    assert server.reading().generation == 1  # type: ignore[union-attr]
    assert server.publish(many(100)) == 1


def test_a_multi_slice_change_raises_the_generation_of_all() -> None:
    """Invariant 28: every slice is rewritten with the new generation, old ones removed last."""
    server = Server()
    server.publish(many(100))
    ordered = plan(server.listed(), many(200, mark=1), identity=IDENTITY)
    assert kinds(ordered) == ["Update", "Update", "Create", "Create"]
    server.publish(many(200, mark=1))
    assert {generation(found) for found in server.listed()} == {2}
    ordered = plan(server.listed(), many(5), identity=IDENTITY)
    assert kinds(ordered) == ["Update", "Delete", "Delete", "Delete"]
    server.publish(many(5))
    assert len(server.says()) == 5


def test_a_shrinking_pool_is_complete_before_its_leftovers_go() -> None:
    """B73: old slices are removed last, and by then nobody believes them any more."""
    server = Server()
    server.publish(many(100))
    server.publish(many(5), writes=1)
    assert len(server.listed()) == 2
    assert len(server.says()) == 5


def test_a_quiet_pool_is_not_written() -> None:
    """Invariant 28: restart without change writes nothing."""
    server = Server()
    server.publish(many(100))
    assert server.publish(many(100)) == 0


def test_a_reborn_node_owns_its_slices_again() -> None:
    """B34 d, invariant 30: a Node with a new UID gets slices with that owner."""
    server = Server()
    server.publish(many(3))
    server.publish(many(3), identity=REBORN)
    (found,) = server.listed()
    assert found["metadata"]["ownerReferences"][0]["uid"] == "node-uid-2"


def test_a_wiped_pool_comes_back_above_its_generation() -> None:
    """B34: an older slice that survived somewhere must not be taken for the newer one."""
    server = Server()
    server.publish(many(3))
    server.slices.clear()
    server.publish(many(3), last=7)
    assert server.reading().generation == 8  # type: ignore[union-attr]


def test_a_half_updated_pool_is_finished_above_both() -> None:
    """B73: generation 4 beside half of 5; old slices are removed last, the count matches."""
    server = Server()

    def slice_of(name: str, gen: int, *devices: dict[str, Any]) -> None:
        number = len(server.slices) + 100
        server.slices[name] = {
            "metadata": {"name": name, "uid": name, "resourceVersion": str(number)},
            "spec": {
                "driver": "gpu.example.com", "nodeName": "node-a", "devices": list(devices),
                "pool": {"name": "node-a", "generation": gen, "resourceSliceCount": 2},
            },
        }  # fmt: skip

    slice_of("s1", 4, device("gpu-0"))
    slice_of("s2", 5, {**device("gpu-0"), "taints": [{"key": "q", "effect": "NoSchedule"}]})
    ordered = plan(server.listed(), [device("gpu-0", 2)], identity=IDENTITY)
    assert kinds(ordered) == ["Create", "Delete", "Delete"]
    for write in ordered:
        server.perform(write)
        assert server.reading().generation == 6  # type: ignore[union-attr]
    assert server.says() == {"gpu-0": device("gpu-0", 2)}


def test_an_outstanding_write_is_outrun() -> None:
    """Promise 6: while an older write may land, everything moves to a higher generation."""
    server = Server()
    server.publish(many(3))
    ordered = plan(server.listed(), many(3), identity=IDENTITY, outrun=True)
    assert kinds(ordered) == ["Update"]
    assert isinstance(ordered[0], Update)
    assert generation(ordered[0].body) == 2


def test_what_others_put_into_metadata_stays() -> None:
    """B19: a rewrite changes what is ours and keeps labels and annotations of others."""
    server = Server()
    server.publish(many(1))
    (found,) = server.listed()
    found["metadata"]["annotations"] = {"somebody": "else"}
    found["metadata"]["managedFields"] = [{"manager": "x"}]
    server.publish(many(2))
    (found,) = server.listed()
    assert found["metadata"]["annotations"] == {"somebody": "else"}
    assert "managedFields" not in found["metadata"]


def test_slices_of_another_pool_name_are_leftovers() -> None:
    """Invariant 29: pool names are immutable, so an old one is removed."""
    server = Server()
    server.publish(many(1))
    (found,) = server.listed()
    found["spec"]["pool"]["name"] = "elsewhere"
    ordered = plan(server.listed(), many(1), identity=IDENTITY)
    assert kinds(ordered) == ["Create", "Delete"]


def test_two_devices_of_one_name_are_refused() -> None:
    """Reference 2.1: a name twice makes the whole pool invalid; it is never written."""
    with pytest.raises(InputInvalid):
        plan([], [device("a"), device("a")], identity=IDENTITY)


def test_only_names_of_ours_have_an_index() -> None:
    """Reference 6: slices are matched by the index in their name; others are leftovers."""

    def named(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}}

    assert slice_index(named("0000a-gpu.example.com-node-a-x7k2p"), IDENTITY) == 10
    assert slice_index(named("node-a-gpu.example.com-x7k2p"), IDENTITY) is None
    assert slice_index(named("00000-gpu.example.com-node-b-x"), IDENTITY) is None
    long = PoolIdentity(driver="gpu.example.com", node="n" * 63, node_uid="u")
    assert slice_index(named(f"00001-gpu.example.com-{'n' * 36}abcde"), long) == 1


# --- counters -------------------------------------------------------------------


def sharing(name: str, *counters: str) -> dict[str, Any]:
    """A device that consumes these counters of ``<accelerator>-memory``."""
    amounts = {counter: {"value": "1"} for counter in counters}
    consumed = [{"counterSet": f"{name.partition('-')[0]}-memory", "counters": amounts}]
    return {**device(name), "consumesCounters": consumed}


def partitions(accelerators: int, each: int = 3) -> list[dict[str, Any]]:
    """Accelerators a0, a1 ..., each of `each` devices."""
    return [
        sharing(f"a{at}-p{part}", f"m{part}") for at in range(accelerators) for part in range(each)
    ]


def sets_of(devices: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """What they consume."""
    return sets(devices, offered=devices)


def test_counter_sets_are_slices_of_their_own() -> None:
    """Reference 2.1: devices XOR sets, both counted; at most eight sets a slice. Without sets a
    slice is what it always was."""
    server = Server()
    devices = partitions(9)
    server.publish(devices, counter_sets=sets_of(devices))
    assert server.says().keys() == {one["name"] for one in devices}
    listed = sorted(server.listed(), key=lambda found: str(found["metadata"]["name"]))
    assert [found["metadata"]["name"][:6] for found in listed] == ["00000-", "c0000-", "c0001-"]
    assert [len(found["spec"].get("sharedCounters") or ()) for found in listed] == [0, 8, 1]
    assert {found["spec"]["pool"]["resourceSliceCount"] for found in listed} == {3}
    assert server.publish(devices, counter_sets=sets_of(devices)) == 0
    plain = Server()
    plain.publish(many(1))
    assert plain.listed()[0]["spec"].keys() == {"driver", "nodeName", "pool", "devices"}


def test_devices_are_written_before_what_they_consume() -> None:
    """Invariant 31: where the server drops counters its first answer tells; nothing is allocated
    from the pool before the last write either way."""
    devices = partitions(2)
    ordered = plan([], devices, identity=IDENTITY, counter_sets=sets_of(devices))
    assert [
        "devices" in write.body["spec"] for write in ordered if not isinstance(write, Delete)
    ] == [True, False]
    server = Server()
    server.publish(devices, counter_sets=sets_of(devices))
    more = [*partitions(2), *partitions(3)[6:]]
    changed = plan(server.listed(), more, identity=IDENTITY, counter_sets=sets_of(more))
    assert kinds(changed) == ["Update", "Update"]
    assert isinstance(changed[0], Update)
    assert "devices" in changed[0].body["spec"]
    assert {generation(w.body) for w in changed if isinstance(w, Update)} == {2}


def test_devices_of_one_accelerator_share_a_slice() -> None:
    """Reference 2.2: a claim on one partition taints the others: a change of one slice, which keeps
    the generation, and not of the whole pool."""
    server = Server()
    devices = partitions(8, each=25)
    server.publish(devices, counter_sets=sets_of(devices))
    assert len(server.listed()) == 4 + 1
    tainted = [
        {**one, "taints": [{"key": "t", "effect": "NoSchedule"}]} if "a2-" in one["name"] else one
        for one in devices
    ]
    assert server.publish(tainted, counter_sets=sets_of(devices)) == 1


def test_without_counters_the_slices_of_sets_go_last() -> None:
    """B73: counters given up: the devices are written first, what held sets is deleted after."""
    server = Server()
    devices = partitions(2)
    server.publish(devices, counter_sets=sets_of(devices))
    plain = [device(str(one["name"])) for one in devices]
    assert kinds(plan(server.listed(), plain, identity=IDENTITY)) == ["Update", "Delete"]
    server.publish(plain)
    assert server.says().keys() == {one["name"] for one in devices}
    assert len(server.listed()) == 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_any_crash_converges_with_counters(attempts: list[tuple[int, int]], final: int) -> None:
    """Invariant 29: crashes between any two writes: a complete pool always has what its devices
    consume and says what one publisher wanted; in the end nothing is left over."""
    server, top = Server(), 0
    told: list[set[str]] = []
    for accelerators, writes in [*attempts, (final, 1000)]:
        devices = partitions(accelerators, each=4)
        told.append({str(one["name"]) for one in devices})
        ordered = plan(server.listed(), devices, identity=IDENTITY, counter_sets=sets_of(devices))
        for write in ordered[:writes]:
            server.perform(write)
            reading = server.reading()
            assert reading is not None
            assert reading.generation >= top
            top = reading.generation
            assert "counters" not in reading.trouble
            if reading.complete:
                assert set(reading.devices) in told
    devices = partitions(final, each=4)
    assert server.publish(devices, counter_sets=sets_of(devices)) == 0
    assert server.says().keys() == told[-1]
    assert len(server.listed()) == max(1, -(-final * 4 // DEVICES_MAX)) + -(-final // SETS_MAX)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 17), st.data())
def test_any_foreign_edit_of_sets_is_reverted(accelerators: int, data: st.DataObject) -> None:
    """Invariant 30: sets deleted, doubled, emptied, changed, or turned into devices: all come
    back."""
    server = Server()
    devices = partitions(accelerators)
    server.publish(devices, counter_sets=sets_of(devices))
    name = data.draw(st.sampled_from(sorted(n for n in server.slices if n.startswith("c"))))
    found = server.slices[name]
    kind = data.draw(st.sampled_from(["delete", "double", "empty", "value", "devices"]))
    if kind == "delete":
        del server.slices[name]
    elif kind == "double":
        copy = {**found, "metadata": {**found["metadata"], "name": f"{name}2", "uid": "copy"}}
        server.slices[f"{name}2"] = copy
    elif kind == "value":
        found["spec"]["sharedCounters"][0]["counters"]["m0"] = {"value": "9"}
    else:
        del found["spec"]["sharedCounters"]
        if kind == "devices":
            found["spec"]["devices"] = many(1)
    server.publish(devices, last=1, counter_sets=sets_of(devices))
    assert server.says().keys() == {one["name"] for one in devices}
    assert server.publish(devices, last=1, counter_sets=sets_of(devices)) == 0


counts = st.sampled_from([0, 1, 3, 63, 64, 65, 66, 100, 128, 129, 140])
names_of_devices = st.builds(
    lambda first, count, gone: [n for n in range(first, first + count) if n not in gone],
    st.sampled_from([0, 5, 40]),
    counts,
    st.sets(st.integers(0, 150), max_size=3),
)
wanted = st.tuples(names_of_devices, st.sets(st.integers(0, 150), max_size=3))


def devices_from(drawn: Wanted) -> list[dict[str, Any]]:
    """Devices of a drawn list; those of the drawn set carry a mark."""
    return [device(f"d{place}", int(place in drawn[1])) for place in drawn[0]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(wanted, st.integers(0, 6)), min_size=1, max_size=6), wanted)
def test_any_crash_converges(attempts: list[tuple[Wanted, int]], final: Wanted) -> None:
    """Invariant 29: crashes between any two writes of any plans end in the pool wanted last.

    On the way the generation never falls, and a complete pool only ever says what one of the
    publishers wanted: nothing mixed, nothing twice, never more than 64 in a slice.
    """
    server, top = Server(), 0
    told: list[dict[str, Any]] = []
    for drawn, writes in [*attempts, (final, 1000)]:
        devices = devices_from(drawn)
        told.append({str(found["name"]): found for found in devices})
        ordered = plan(server.listed(), devices, identity=IDENTITY)
        for write in ordered[:writes]:
            server.perform(write)
            reading = server.reading()
            assert reading is not None
            assert reading.generation >= top
            top = reading.generation
            if reading.complete:
                seen = {name: entries[0] for name, entries in reading.devices.items()}
                assert seen in told
    assert server.publish(devices_from(final)) == 0
    assert server.says() == told[-1]
    assert len(server.listed()) == max(1, -(-len(final[0]) // DEVICES_MAX))


@settings(max_examples=200, deadline=None)
@given(wanted, st.data())
def test_any_foreign_edit_is_reverted(drawn: Wanted, data: st.DataObject) -> None:
    """Invariant 30: slices deleted, doubled, emptied, re-owned or re-numbered: all come back."""
    server = Server()
    devices = devices_from(drawn)
    server.publish(devices)
    name = data.draw(st.sampled_from(sorted(server.slices)))
    found = server.slices[name]
    kind = data.draw(st.sampled_from(["delete", "double", "empty", "owner", "generation"]))
    if kind == "delete":
        del server.slices[name]
    elif kind == "double":
        copy = {**found, "metadata": {**found["metadata"], "name": f"{name}2", "uid": "copy"}}
        server.slices[f"{name}2"] = copy
    elif kind == "empty":
        found["spec"]["devices"] = []
    elif kind == "owner":
        found["metadata"]["ownerReferences"] = []
    else:
        number = data.draw(st.integers(0, 9))
        found["spec"]["pool"] = {**found["spec"]["pool"], "generation": number}
    server.publish(devices, last=1)
    assert server.says() == {str(one["name"]): one for one in devices}
    assert server.publish(devices, last=1) == 0


@given(st.dictionaries(st.integers(0, 3), names_of_devices), names_of_devices)
def test_arranging_keeps_homes_and_limits(homes: dict[int, list[int]], names: list[int]) -> None:
    """Every device has one slice, none has more than 64, and whoever can stays where it was."""
    devices = [device(f"d{place}") for place in names]
    chunks = arrange(
        devices, {at: [device(f"d{place}") for place in found] for at, found in homes.items()}
    )
    flat = sorted(str(found["name"]) for chunk in chunks for found in chunk)
    assert flat == sorted(str(found["name"]) for found in devices)
    assert all(len(chunk) <= DEVICES_MAX for chunk in chunks)
    assert len(chunks) == max(1, -(-len(devices) // DEVICES_MAX))
