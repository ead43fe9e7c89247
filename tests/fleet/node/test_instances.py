"""Whose an instance is, and what is said of those that nobody recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core.model import BootId, UnitId, Uuid
from fleet.devices.base import Instance
from fleet.node import instances
from fleet.node.instances import Record

GPU, PART = Uuid("GPU-1"), Uuid("PART-1")
UNITS = (UnitId("GPU-1/m0"),)
THERE = Instance(GPU, "MIG-1", PART, UNITS, {"gi": 7, "ci": 0})
RECORD = Record(PART, GPU, UNITS, BootId("boot-1"), uuid="MIG-1", ids={"gi": 7, "ci": 0})


def test_a_record_reads_as_it_was_kept() -> None:
    """Promise 7: what a crash leaves behind is recognised by what was written before it."""
    lost = replace(RECORD, lost=True, outlived=True)
    assert instances.read(f"{instances.KEY}{PART}", lost.kept()) == lost
    assert instances.read(f"{instances.KEY}{PART}", "") is None


@pytest.mark.parametrize(
    ("found", "is_there"),
    [
        (THERE, True),
        (replace(THERE, uuid=""), True),
        (replace(THERE, uuid="", ids={"gi": 7}), False),
        (replace(THERE, uuid="MIG-2"), False),
        (replace(THERE, ids={"gi": 8, "ci": 0}), False),
        (replace(THERE, device=Uuid("PART-2")), False),
    ],
)
def test_8_33_only_the_very_instance_counts_as_there(found: Instance, is_there: bool) -> None:
    """gpus-8.33: another UUID, number or place is another one; a UUID not told says nothing."""
    assert RECORD.is_there([found]) is is_there


def test_how_to_remove_an_instance_names_that_one_only() -> None:
    """Promise 9: without GPU and number the vendor's tool removes every idle instance there is."""
    half = replace(THERE, uuid="", ids={"gi": 3})
    told = instances.unwanted(", ".join(map(instances.described, (THERE, half))))
    assert "`nvidia-smi mig -i GPU-1 -gi 7 -ci 0 -dci`, then `nvidia-smi mig -i GPU-1 -gi 7" in told
    assert "`nvidia-smi mig -i GPU-1 -gi 3 -dci`, then `nvidia-smi mig -i GPU-1 -gi 3 -dgi`" in told
    commands = told.split("`")[1::2]
    assert all(" -i GPU-1 -gi " in command for command in commands)
