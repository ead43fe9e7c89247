"""What a container gets of each kind of card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import DeviceLost
from fleet.devices.base import DeviceNode, Grant
from tests.drivers.pci_tree import GAUDI2, MI300X, TPU_V4, TPU_V5E, Card
from tests.fleet.devices.pcie.benches import Bench, address, bench


def given(found: Bench, index: int = 0) -> Grant:
    """The grant of one card."""
    return found.backend.grant(found.accelerator(index).device)


@pytest.mark.parametrize(
    ("card", "nodes"),
    [
        (TPU_V5E, {"/dev/vfio/7": (510, 7), "/dev/vfio/vfio": (10, 196)}),
        (TPU_V4, {"/dev/accel1": (120, 1)}),
        (GAUDI2, {"/dev/accel/accel1": (261, 2), "/dev/accel/accel_controlD1": (261, 3)}),
        (MI300X, {"/dev/dri/renderD129": (226, 129), "/dev/kfd": (235, 0)}),
        (replace(MI300X, driver="vfio-pci", group="9"), {"/dev/vfio/9": (510, 9)}),
    ],
)
def test_nodes_and_numbers_are_those_of_the_driver(
    tmp_path: Path, card: Card, nodes: dict[str, tuple[int, int]]
) -> None:
    """gpus-5.5: the flat name of older TPUs, groups of VFIO, Gaudi's pair, AMD's two."""
    found = given(bench(tmp_path, card))
    numbers = {node.path: (node.major, node.minor) for node in found.nodes}
    assert nodes.items() <= numbers.items()
    assert set(numbers) - set(nodes) <= {"/dev/vfio/vfio"}
    assert all(node.kind == "c" and node.permissions == "rw" for node in found.nodes)


def test_cards_get_nodes_of_their_own(tmp_path: Path) -> None:
    """Promise 9: no node of one card is among another's, but for those that reach no device."""
    found = bench(tmp_path, MI300X, replace(MI300X, serial=5))
    first, second = (set(given(found, index).nodes) for index in (0, 1))
    assert first & second == {DeviceNode("/dev/kfd", "c", 235, 0)}


@pytest.mark.parametrize("lost", ["dev/dri/renderD129", "dev/kfd"])
def test_b79_a_node_missing_on_the_host_is_named(tmp_path: Path, lost: str) -> None:
    """B79, gpus-8.26: a node that is not there is an error with its path, never left out."""
    found = bench(tmp_path, MI300X)
    (found.tree.root / lost).unlink()
    with pytest.raises(DeviceLost, match=f"/{lost} of amd-gpu"):
        given(found)


def test_b79_a_card_without_its_driver_has_nothing_to_give(tmp_path: Path) -> None:
    """B79: without a driver there is no node, and the error says whose driver is missing."""
    found = bench(tmp_path, GAUDI2)
    for node in (found.function().path / "accel").iterdir():
        (node / "dev").unlink()
    found.tree.unbind(address(0))
    with pytest.raises(DeviceLost, match=r"no device node.*driver is not bound"):
        given(found)


def test_numbers_follow_the_driver(tmp_path: Path) -> None:
    """gpus-8.26: a minor number that changed is read anew."""
    found = bench(tmp_path, TPU_V4)
    found.tree.write(address(0), "gasket/accel1/dev", "120:9")
    assert given(found).nodes[0].minor == 9
