"""Rules of server-side apply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.kube.base import Object
from tests.lab.apiserver.apply import (
    APPLY,
    UPDATE,
    Holding,
    Owner,
    Owners,
    applied,
    merge,
    settled,
    updated,
)
from tests.lab.apiserver.ownership import flatten
from tests.lab.apiserver.refusal import Refusal
from tests.lab.apiserver.schema import CLAIM, CLAIM_STATUS

ONE, TWO = (Owner(name, APPLY, "status") for name in ("one", "two"))
OTHER = Owner("unknown", UPDATE, "status")
NAMES = st.sets(st.sampled_from(["d0", "d1", "d2"]))


def status(*devices: str, **fields: object) -> Object:
    """A status with entries for these devices."""
    entries = [{"driver": "d", "pool": "p", "device": name, **fields} for name in devices]
    return {"status": {"devices": entries}}


def names(found: Object) -> set[str]:
    """The devices in a status."""
    return {entry["device"] for entry in found["status"].get("devices", [])}


def step(
    live: Object, owners: Owners, config: Object, owner: Owner, *, force: bool = True
) -> tuple[Object, Owners]:
    """One apply, settled as the server does."""
    work = applied(live, owners, config, shape=CLAIM, owner=owner, force=force)
    old, new = flatten(live, CLAIM), flatten(work.object, CLAIM)
    return work.object, settled(work.owners, old, new, "now")


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO]), NAMES), max_size=6))
def test_what_is_there_is_what_somebody_asked_for_last(
    history: list[tuple[Owner, set[str]]],
) -> None:
    """After any applies the entries are the union of every owner's last wish."""
    live: Object = {"status": {}}
    owners: Owners = {}
    last: dict[Owner, set[str]] = {}
    for owner, wanted in history:
        live, owners = step(live, owners, status(*sorted(wanted)), owner)
        last[owner] = wanted
    assert names(live) == set().union(*last.values())
    assert set(owners) == {owner for owner, wanted in last.items() if wanted}


@given(NAMES, NAMES)
def test_repeating_an_apply_changes_nothing(first: set[str], second: set[str]) -> None:
    """Object and ownership are the same after the second time."""
    live, owners = step({"status": {}}, {}, status(*sorted(first)), ONE)
    live, owners = step(live, owners, status(*sorted(second)), TWO)
    assert step(live, owners, status(*sorted(second)), TWO) == (live, owners)


def test_a_conflict_names_the_other_owner_and_the_path() -> None:
    """Without force nothing changes; with force the path changes hands."""
    live, owners = step({"status": {}}, {}, status("d0", data={"a": 1}), ONE)
    with pytest.raises(Refusal) as caught:
        step(live, owners, status("d0", data={"a": 2}), TWO, force=False)
    assert caught.value.code == 409
    (cause,) = caught.value.causes
    assert cause.message == 'conflict with "one" with subresource "status"'
    assert cause.field == '.status.devices[device="d0",driver="d",pool="p"].data'
    live, owners = step(live, owners, status("d0", data={"a": 2}), TWO)
    assert live["status"]["devices"][0]["data"] == {"a": 2}
    live, owners = step(live, owners, status("d0"), ONE)
    assert live["status"]["devices"][0]["data"] == {"a": 2}


def test_an_ordinary_write_owns_what_it_changed() -> None:
    """The writer of a PUT or patch takes the changed paths from everybody else."""
    live, owners = step({"status": {}}, {}, status("d0", data={"a": 1}), ONE)
    new = status("d0", data={"a": 2})
    owners = updated(flatten(live, CLAIM), flatten(new, CLAIM), owners, OTHER)
    path = next(iter(owners[OTHER].paths))
    assert path[-1] == "data"
    assert path not in owners[ONE].paths


def test_an_entry_goes_with_what_others_own_inside() -> None:
    """Who patched one field of an entry does not keep it: its applier takes all of it away."""
    live, owners = step({"status": {}}, {}, status("d0", data={"a": 1}), ONE)
    new = status("d0", data={"a": 2})
    owners = updated(flatten(live, CLAIM), flatten(new, CLAIM), owners, OTHER)
    live, owners = step(new, owners, status(), ONE)
    assert names(live) == set()
    assert owners == {}


def test_owners_of_nothing_are_forgotten() -> None:
    """An apply of nothing leaves no trace in managedFields."""
    live, owners = step({"status": {}}, {}, status("d0"), ONE)
    _, owners = step(live, owners, status(), ONE)
    assert owners == {}


def test_the_date_of_an_owner_is_that_of_its_last_change() -> None:
    """Applying the same set later keeps the time, so that nothing is written."""
    live, owners = step({"status": {}}, {}, status("d0"), ONE)
    work = applied(live, owners, status("d0"), shape=CLAIM, owner=ONE, force=False)
    flat = flatten(live, CLAIM)
    later = settled(work.owners, flat, flat, "later")
    assert later[ONE].time == "now"


def test_what_the_rules_of_the_kind_drop_stays_owned() -> None:
    """A path that was gone before the write is not forgotten by it, one the write removes is."""
    path = ("status", "reservedFor")
    owners = {ONE: Holding(frozenset({path}), "then")}
    assert settled(owners, {}, {}, "now") == owners
    assert settled(owners, {path: []}, {}, "now") == {}


@pytest.mark.parametrize(
    ("live", "config", "expected"),
    [
        ("", "ab", "ab"),
        ("ab", "", "ab"),
        ("ab", "ba", "ba"),
        ("abc", "ca", "bca"),
        ("abc", "cxa", "bcxa"),
        ("ab", "xb", "axb"),
        ("b", "abc", "abc"),
        ("xay", "ba", "xbay"),
    ],
)
def test_merged_lists_have_the_order_of_the_server(live: str, config: str, expected: str) -> None:
    """Entries of both lists come as the config orders them, others keep their place before."""
    shape = CLAIM_STATUS.fields["reservedFor"]
    merged = merge([{"uid": c} for c in live], [{"uid": c} for c in config], shape)
    assert "".join(entry["uid"] for entry in merged) == expected


def test_a_struct_that_is_emptied_goes_too() -> None:
    """No empty object stays behind when its last field is left out."""
    live, owners = step({"status": {}}, {}, status("d0", networkData={"interfaceName": "n"}), ONE)
    live, owners = step(live, owners, status("d0"), ONE)
    assert "networkData" not in live["status"]["devices"][0]
