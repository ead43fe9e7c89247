"""Which quarantines the API shows for certain."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from fleet.plugin.slices.pool_view import read_pools
from fleet.plugin.slices.publisher import Version, read_back, version

KEY = "d/quarantined"
TAINT = {"key": KEY, "value": "xid", "effect": "NoSchedule"}
OTHER = {"key": "d/not-clean", "effect": "NoSchedule"}
NOBODY: frozenset[Version] = frozenset()


def part(name: str, count: int, **devices: list[dict[str, str]]) -> dict[str, Any]:
    """A slice: device name -> taints."""
    return {
        "metadata": {"name": name, "resourceVersion": "5"},
        "spec": {
            "driver": "d",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": count},
            "devices": [{"name": one, "taints": taints} for one, taints in devices.items()],
        },
    }


def seen(
    *parts: dict[str, Any], uuid: str = "A", doubtful: AbstractSet[Version] = NOBODY
) -> Mapping[str, float]:
    """The confirmation of one quarantined device `a` or `b`."""
    (reading,) = read_pools(parts).values()
    names = {"A": "a", "B": "b"}
    return read_back({uuid: 3.0}, names=names, reading=reading, key=KEY, doubtful=doubtful)


def test_a_tainted_entry_in_a_complete_pool_confirms() -> None:
    """Promise 6: visible to the scheduler, with the since of the quarantine published."""
    assert seen(part("s", 1, a=[OTHER, TAINT])) == {"A": 3.0}


def test_an_absent_device_is_as_good_as_tainted() -> None:
    """Where taints are unavailable the device is withdrawn: it cannot be allocated either."""
    assert seen(part("s", 1, a=[]), uuid="B") == {"B": 3.0}


def test_not_clean_alone_or_no_effect_confirms_nothing() -> None:
    """Quarantine is read back as quarantine; a taint without effect stops nobody."""
    assert seen(part("s", 1, a=[OTHER])) == {}
    assert seen(part("s", 1, a=[])) == {}
    assert seen(part("s", 1, a=[{**TAINT, "effect": "None"}])) == {}


def test_half_a_pool_confirms_nothing() -> None:
    """B73: no decision from an incomplete or contradicting pool."""
    assert seen(part("s", 2, a=[TAINT])) == {}
    assert seen(part("s", 2, a=[TAINT]), part("t", 2, a=[])) == {}


def test_a_doubtful_slice_confirms_neither_presence_nor_absence() -> None:
    """Promise 6: an older write of an earlier process may still replace what was found."""
    one, two = part("s", 2, a=[TAINT]), part("t", 2, c=[])
    assert seen(one, two, doubtful={version(one)}) == {}
    assert seen(one, two, doubtful={version(two)}) == {"A": 3.0}
    assert seen(one, two, uuid="B", doubtful={version(two)}) == {}
    assert seen(one, two, uuid="B") == {"B": 3.0}
