"""Modes an operator set, over a reset."""

from __future__ import annotations

from typing import Any

from fleet.devices.nvidia import modes, nvml
from fleet.devices.nvidia.modes import Modes
from tests.fleet.devices.nvidia.scripted import Scripted, refuse

HANDLE = "handle"
BEFORE = Modes(persistence=1, compute=3, power_limit_mw=300000, clocks_mhz=(1593, 1410))


def gpu(**changes: Any) -> Scripted:
    """A GPU with the modes of `BEFORE`, but for what `changes` say."""
    told = {
        "nvmlDeviceGetPersistenceMode": 1,
        "nvmlDeviceGetComputeMode": 3,
        "nvmlDeviceGetPowerManagementLimit": 300000,
        "nvmlDeviceGetApplicationsClock": lambda _, kind: 1593 if kind == 2 else 1410,
        "nvmlDeviceSetPersistenceMode": None,
        "nvmlDeviceSetComputeMode": None,
        "nvmlDeviceSetPowerManagementLimit": None,
        "nvmlDeviceSetApplicationsClocks": None,
    }
    return Scripted(**{**told, **changes})


def test_modes_are_read_and_what_a_part_lacks_is_unknown() -> None:
    """gpus-8.35: what is not told is left alone afterwards."""
    assert modes.read(gpu(), HANDLE) == BEFORE
    assert modes.read(Scripted(), HANDLE) == Modes()
    assert modes.restore(Scripted(), HANDLE, Modes()) == ()


def test_only_what_differs_is_set_back() -> None:
    """gpus-8.35: compute mode, persistence, power limit and clocks come back as they were."""
    same = gpu()
    assert modes.restore(same, HANDLE, BEFORE) == ()
    assert not [name for name, *_ in same.calls if "Set" in name]
    fresh = gpu(
        nvmlDeviceGetPersistenceMode=0,
        nvmlDeviceGetComputeMode=0,
        nvmlDeviceGetPowerManagementLimit=400000,
        nvmlDeviceGetApplicationsClock=1980,
    )
    assert modes.restore(fresh, HANDLE, BEFORE) == ()
    assert [call for call in fresh.calls if "Set" in call[0]] == [
        ("nvmlDeviceSetPersistenceMode", HANDLE, 1),
        ("nvmlDeviceSetComputeMode", HANDLE, 3),
        ("nvmlDeviceSetPowerManagementLimit", HANDLE, 300000),
        ("nvmlDeviceSetApplicationsClocks", HANDLE, 1593, 1410),
    ]


def test_one_mode_that_is_refused_keeps_no_other_from_coming_back() -> None:
    """gpus-8.35: each refusal is told, and the rest is restored."""
    library = gpu(
        nvmlDeviceGetPersistenceMode=0,
        nvmlDeviceSetPersistenceMode=refuse(nvml.NO_PERMISSION),
        nvmlDeviceGetComputeMode=0,
    )
    assert modes.restore(library, HANDLE, BEFORE) == ("nvmlDeviceSetPersistenceMode: refused (4)",)
    assert library.called("nvmlDeviceSetComputeMode") == [(HANDLE, 3)]


def test_persistence_is_switched_off_only_where_it_is_on() -> None:
    """gpus-8.36: it holds the device as a process does."""
    on, off = gpu(), gpu()
    modes.let_go(on, HANDLE, BEFORE)
    modes.let_go(off, HANDLE, Modes(persistence=0))
    assert on.called("nvmlDeviceSetPersistenceMode") == [(HANDLE, 0)]
    assert off.calls == []
