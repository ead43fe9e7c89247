"""How the driver is set up: what it does to memory by itself, modes, who may see what.

The registry keys are read where the kernel module shows them, below ``<root>/proc/driver/nvidia``.
"""

from __future__ import annotations

import re
from pathlib import Path

from fleet.devices.nvidia.probe import Answers, Probe, flag
from fleet.devices.sysfs import read_text

PROC = "proc/driver/nvidia"
SCRUB_SWITCH = "RMDisableScrubOnFree"
TURING = 6
UNKNOWN_STATE = 32


def modes(probe: Probe) -> Answers:
    """Persistence, accounting, performance state and MIG mode."""
    found = Answers()
    found.values["persistence"] = flag(probe.ask("GetPersistenceMode"))
    found.values["accounting"] = flag(probe.ask("GetAccountingMode"))
    if probe.lacks("GetAccountingMode"):
        found.absent("accounting")
    state = probe.ask("GetPerformanceState")
    found.values["pstate"] = None if state == UNKNOWN_STATE else state
    mig = probe.ask("GetMigMode")
    found.values["mig_enabled"] = flag(mig[0]) if mig else None
    found.values["mig_change_pending"] = mig[0] != mig[1] if mig else None
    if probe.lacks("GetMigMode"):
        found.absent("mig_enabled", "mig_change_pending", "unpartitioned")
    return found


def driver(root: Path, address: str, *, architecture: int | None, coherent: bool) -> Answers:
    """What the driver does to freed and to saved memory.

    `coherent`: the memory belongs to the host's kernel, to which freed pages go back as they are.
    Scrubbing is the default since Turing; whether earlier parts do it is not known.
    """
    found = Answers({"scrub_on_free": None, "preserves_memory": None})
    parameters = read_text(root / PROC / "params")
    if parameters is None:
        return found
    own = read_text(root / PROC / "gpus" / address / "registry") if address else None
    switch = _key(f"{own or ''}\n{parameters}", SCRUB_SWITCH)
    if coherent or switch:
        found.values["scrub_on_free"] = False
    elif architecture is not None and architecture >= TURING:
        found.values["scrub_on_free"] = True
    saved = re.search(r"^PreserveVideoMemoryAllocations:\s*(\d+)", parameters, re.MULTILINE)
    found.values["preserves_memory"] = flag(int(saved[1])) if saved else None
    return found


def _key(text: str, name: str) -> int:
    """A registry key's value, 0 where it is not set; the first one counts."""
    found = re.search(rf"\b{name}\s*[=:]\s*(0x[0-9a-f]+|\d+)", text, re.IGNORECASE)
    return int(found[1], 0) if found else 0
