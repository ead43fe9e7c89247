"""A `PcieBackend` on a fake tree, with the kernel that serves its writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fleet.core.model import Accelerator
from fleet.devices.pcie.backend import PcieBackend
from fleet.devices.sysfs import Function
from tests.drivers.pci_tree import SWITCH, Card, Kernel, PciTree

PORT = "0000:20:00.0"


def address(index: int) -> str:
    """Where the card of that index is plugged in."""
    return f"0000:{0x3B + index:02x}:00.0"


@dataclass(frozen=True, slots=True)
class Bench:
    """A machine and its back end."""

    tree: PciTree
    kernel: Kernel
    backend: PcieBackend

    def accelerator(self, index: int = 0) -> Accelerator:
        """The accelerator at a place in the inventory, which is sorted by address."""
        return self.backend.inventory()[index]

    def function(self, index: int = 0) -> Function:
        """The function of the card of that index."""
        return self.tree.function(address(index))


def bench(tmp_path: Path, *cards: Card, **settings: object) -> Bench:
    """A machine with these cards behind one port, their nodes made and vendors' switches on."""
    tree = PciTree(tmp_path / "host")
    tree.add(PORT, SWITCH)
    for index, card in enumerate(cards):
        tree.add(address(index), card, below=PORT)
    for index in range(len(cards)):
        tree.nodes_of(address(index))
        tree.write(address(index), "enforce_isolation", "1")
    tree.module("habanalabs", "1.22.0-stand-in", {"memory_scrub": "1"})
    given = {"root": str(tree.root), "identities": str(tmp_path / "identities.json"), **settings}
    backend = PcieBackend(**given)
    kernel = Kernel(tree)
    backend.write = kernel
    backend.settle_s = 0.0
    return Bench(tree, kernel, backend)
