"""What every feature needs of the host is data: named, shown in the documentation, and enough."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from fleet.core import privileges
from fleet.core.privileges import FEATURES, NUMBERS, WORKER, Lack, Standing, effective, judge

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "privilege.md"


def mask(*names: str) -> str:
    """The line of /proc/<pid>/status for these capabilities."""
    return f"CapInh:\t0\nCapEff:\t{sum(1 << NUMBERS[name] for name in names):016x}\n"


def test_capabilities_are_read_as_the_kernel_writes_them() -> None:
    """DESIGN 7: effective ones count, and what cannot be read is not "none"."""
    assert effective(mask()) == frozenset()
    assert effective(mask(*WORKER)) == frozenset(WORKER)
    assert effective("CapEff:\t000001ffffffffff\n") == NUMBERS.keys()
    assert effective("CapPrm:\t1\n") is None
    assert effective("CapEff:\tnonsense\n") is None


def test_pods_have_what_proof_needs_and_no_administrator() -> None:
    """A5, DESIGN 7: the worker's capabilities are those of every feature that is not for
    administrators of the host; the plugin has none."""
    wanted = {
        name for one in FEATURES if "SYS_ADMIN" not in one.capabilities for name in one.capabilities
    }
    assert set(WORKER) == wanted
    assert "SYS_ADMIN" not in WORKER
    assert privileges.PLUGIN == ()
    assert judge(Standing(frozenset(WORKER))).blocking == ()


@pytest.mark.parametrize("name", WORKER)
def test_each_capability_is_missed(name: str) -> None:
    """DESIGN 7: without one of them the feature is named, with what is so and what to do."""
    found = judge(Standing(frozenset(WORKER) - {name}))
    told = [one for one in (*found.blocking, *found.off) if f"CAP_{name}" in one]
    (feature,) = [one for one in FEATURES if name in one.capabilities]
    assert told == [one for one in told if one.startswith(feature.name)]
    assert feature.without in told[0]
    assert feature.instead in told[0]
    assert bool(found.blocking) is (feature.lack is Lack.BLOCKS)


def test_another_pid_namespace_blocks() -> None:
    """Promise 4: processes that are not seen are not absent."""
    found = judge(Standing(frozenset(NUMBERS), host_pid=False))
    assert [one.split()[0] for one in found.blocking] == ["holders"]
    assert privileges.HOST_PID in found.blocking[0]


def test_unknown_rights_are_no_missing_rights() -> None:
    """DESIGN 7: where the kernel is not asked nothing is claimed."""
    assert judge(Standing(None, host_pid=False)) == privileges.Lacks()


def test_every_feature_says_where_it_is_and_what_is_so_without_it() -> None:
    """DESIGN 7: names are unique, capabilities known, modules there."""
    assert len({one.name for one in FEATURES}) == len(FEATURES)
    for one in FEATURES:
        assert one.what
        assert one.without
        assert one.instead
        assert set(one.capabilities) <= NUMBERS.keys()
        assert one.modules
        for module in one.modules:
            importlib.import_module(module)


def test_the_documentation_shows_the_table() -> None:
    """DESIGN 7: docs/privilege.md has the table as the code has it."""
    assert f"\n{privileges.table()}\n" in DOCUMENT.read_text()
