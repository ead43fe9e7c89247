"""Rules of server-side apply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.kube.base import Object
from fleet.kube.memory.apply import APPLY, UPDATE, Owner, Owners, applied, settled, updated
from fleet.kube.memory.ownership import flatten
from fleet.kube.memory.refusal import Refusal
from fleet.kube.memory.schema import CLAIM

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
    return work.object, settled(work.owners, flatten(work.object, CLAIM), "now")


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


def test_an_entry_somebody_else_wrote_into_keeps_its_keys() -> None:
    """The only applier leaves an entry out in which a merge patch owns a field: it stays whole."""
    live, owners = step({"status": {}}, {}, status("d0", data={"a": 1}), ONE)
    new = status("d0", data={"a": 2})
    owners = updated(flatten(live, CLAIM), flatten(new, CLAIM), owners, OTHER)
    live, owners = step(new, owners, status(), ONE)
    assert live["status"]["devices"] == new["status"]["devices"]


def test_owners_of_nothing_are_forgotten() -> None:
    """An apply of nothing leaves no trace in managedFields."""
    live, owners = step({"status": {}}, {}, status("d0"), ONE)
    _, owners = step(live, owners, status(), ONE)
    assert owners == {}


def test_the_date_of_an_owner_is_that_of_its_last_change() -> None:
    """Applying the same set later keeps the time, so that nothing is written."""
    live, owners = step({"status": {}}, {}, status("d0"), ONE)
    work = applied(live, owners, status("d0"), shape=CLAIM, owner=ONE, force=False)
    later = settled(work.owners, flatten(work.object, CLAIM), "later")
    assert later[ONE].time == "now"
