"""Which functions are accelerators."""

from __future__ import annotations

import pytest

from fleet.devices.pcie.catalogue import part_of, parts, vendor_of
from fleet.devices.pcie.vendor_scrub import SWITCHES
from fleet.devices.sysfs import Ids


@pytest.mark.parametrize(
    ("vendor", "device", "class_code", "product"),
    [
        (0x1AE0, 0x0027, 0x120000, "Google TPU v2/v3"),
        (0x1AE0, 0x005E, 0x120000, "Google TPU v4"),
        (0x1AE0, 0x0062, 0x120000, "Google TPU v5p"),
        (0x1AE0, 0x0063, 0x120000, "Google TPU v5e"),
        (0x1AE0, 0x006F, 0x120000, "Google TPU v6e"),
        (0x1AE0, 0x0076, 0x120000, "Google TPU 7x"),
        (0x1DA3, 0x1000, 0x120000, "Intel Gaudi"),
        (0x1DA3, 0x1010, 0x120000, "Intel Gaudi"),
        (0x1DA3, 0x1020, 0x120000, "Intel Gaudi 2"),
        (0x1DA3, 0x1060, 0x120000, "Intel Gaudi 3"),
        (0x1002, 0x74A1, 0x120000, "AMD GPU 1002:74a1"),
        (0x1002, 0x744C, 0x030000, "AMD GPU 1002:744c"),
        (0x1234, 0x0001, 0x1200FF, "PCI processing accelerator 1234:0001"),
        (0x1234, 0x0002, 0x030200, "PCI GPU 1234:0002"),
    ],
)
def test_known_parts_are_named(vendor: int, device: int, class_code: int, product: str) -> None:
    """gpus-5.5: TPUs, Gaudi and AMD by their ids, anybody's accelerators by their class."""
    ids = Ids(vendor, device, class_code)
    part = part_of(ids)
    assert part is not None
    assert part.product(ids) == product


@pytest.mark.parametrize(
    ("vendor", "class_code"),
    [(0x1A03, 0x030000), (0x1AE0, 0x020000), (0x1002, 0x040300), (0x1000, 0x060400)],
)
def test_other_functions_are_none(vendor: int, class_code: int) -> None:
    """gpus-5.5: a board's console, a network card, a GPU's sound function and a port are none."""
    assert part_of(Ids(vendor, 0x9999, class_code)) is None


def test_every_row_can_be_read() -> None:
    """gpus-5.5: each row names its nodes, where it comes from, what it fits, and has a switch."""
    for part in parts():
        assert part.nodes
        assert part.vendor is None or vendor_of(Ids(part.vendor, 0, 0)).scrub in SWITCHES
        assert part.source
        assert part.devices or part.classes
