"""Who uses a PCI function: every process with one of its device nodes open."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.core.errors import BackendFailed
from fleet.core.model import Process
from fleet.devices import infrastructure
from fleet.devices.openers import Opener, Wanted, openers
from fleet.devices.pcie.catalogue import Part
from fleet.devices.pcie.nodes import KFD, nodes_of, reaching, render_nodes
from fleet.devices.sysfs import Function, discover, read_text

HIVE = "xgmi_hive_info/xgmi_hive_id"


def processes(function: Function, part: Part) -> tuple[Process, ...]:
    """Processes that have the function open, classified, by pid.

    Raises `BackendFailed` where not all processes can be looked into, and for a driver whose nodes
    nobody knows.
    """
    known = [node for node in nodes_of(function, part) if not node.shared]
    if not known and function.driver is not None:
        raise BackendFailed(
            f"{function.address} is bound to {function.driver}, and no device node of it is known:"
            " who uses it is unknown",
            remedy="bind the device to vfio-pci, or to the driver of its vendor",
        )
    nodes = reaching(function, part)
    own = {node.path: node.numbers for node in nodes if not node.shared}
    wanted: dict[str, tuple[int, int] | None] = dict(own)
    renders: Wanted = {}
    shared = [node for node in nodes if node.path == KFD]
    if shared:
        renders = render_nodes(function.root)
        wanted = {**renders, **own, KFD: shared[0].numbers}
    proc = function.root / "proc"
    return tuple(
        infrastructure.process(found.pid, found.name, proc=proc)
        for found in openers(function.root, wanted)
        if found.paths.intersection(own) or _anywhere(found, renders)
    )


def _anywhere(found: Opener, renders: Iterable[str]) -> bool:
    """Has the compute node of all GPUs open and none known to be of one: it may be on any."""
    return KFD in found.paths and not found.paths.intersection(renders)


def hive(function: Function) -> tuple[Function, ...]:
    """GPUs linked to this one so closely that a reset of it may disturb them, itself excluded."""
    own = read_text(function.path / HIVE)
    if not own or own == "0" or function.ids is None:
        return ()
    return tuple(
        other
        for other in discover(function.root, vendors={function.ids.vendor})
        if other != function and read_text(other.path / HIVE) == own
    )
