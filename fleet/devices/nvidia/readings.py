"""Health readings of one GPU, from NVML, the kernel log and the PCI bus.

Every reading is a value, unknown (None) or not applicable, as `fleet.devices.health.checks` judges
them; the parts say when "not supported" means which (`memory_errors`, `links`, `posture`). What
cannot be told here because a GPU is lost is no reading at all: `DeviceLost`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.core.clock import Clock
from fleet.core.errors import DeviceLost
from fleet.core.model import Uuid
from fleet.devices import kmsg
from fleet.devices.health import kernel_log, tables
from fleet.devices.health.readings import LogState, Readings
from fleet.devices.kmsg import KernelLog
from fleet.devices.nvidia import attributes, events, fabric, links, memory_errors, nvml
from fleet.devices.nvidia.events import EventStream
from fleet.devices.nvidia.identity import Identities
from fleet.devices.nvidia.inventory import Card
from fleet.devices.nvidia.probe import Answers, Probe, flag
from fleet.devices.sysfs import Function, Life, read_text

# How the driver is set up: what it does to memory by itself, modes, who may see what.
#
# The registry keys are read where the kernel module shows them, below
# ``<root>/proc/driver/nvidia``.

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


RECOVERY_ACTION, RESET_STATUS, DRAIN_AND_RESET_STATUS = 230, 226, 227
MEMORY_TEMPERATURE = 82
SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
RESETS = frozenset({"GPU_RESET", "DRAIN_AND_RESET", "BUS_RESET"})
WORDS: Mapping[int, str] = {
    row["number"]: row["word"] for row in tables.rows("recovery", "recovery")
}


@dataclass(frozen=True, slots=True)
class Reader:
    """Takes readings through `library`; `root` is where the host's files are seen."""

    library: nvml.Library
    root: Path
    log: KernelLog
    stream: EventStream
    clock: Clock
    identities: Identities
    waiting: dict[Uuid, float] = field(default_factory=dict)
    """Since when the fabric of a GPU is seen on its way, by the monotonic clock."""

    def read(
        self, card: Card, *, under_load: bool = False, unpartitioned: bool | None = None
    ) -> Readings:
        """All readings now. Raises `DeviceLost`.

        `unpartitioned`: whether MIG is on and there is no instance; None: unknown.
        """
        probe = Probe(self.library, card.handle)
        function = Function(self.root, card.address) if card.address else None
        found = Answers({"unpartitioned": unpartitioned})
        logged_action = self._faults(card, found)
        xids = found.values["xids"]
        found.add(modes(probe))
        found.add(memory_errors.read(probe, card.architecture))
        found.add(links.pcie(probe, function))
        found.add(self._fabric(card, probe, found))
        found.add(
            links.nvlink(
                probe,
                switched=found.values["fabric_state"] is not None,
                seen=lambda up: self.identities.links(card.uuid, up),
            )
        )
        found.values["fabric_waited_s"] = self._waited(card, found.values["fabric_state"])
        found.add(_state(probe))
        own = _verdict(probe)
        found.values["recovery_action"] = own or logged_action
        found.values["recovery_logged"] = own is None and logged_action is not None
        self._logged(card, probe, found)
        coherent = bool(attributes.host_memory(probe, self.root, function))
        found.add(
            driver(self.root, card.address, architecture=card.architecture, coherent=coherent)
        )
        if found.values.get("mig_enabled"):
            verdict = found.values["recovery_action"]
            memory_errors.under_mig(found, verdict=verdict, xids=xids)
        self._presence(found, probe, function)
        return self._made(found, under_load=under_load)

    def reset_needed(self, *, under_load: bool = False) -> Readings:
        """Readings of a GPU that the driver does not open before it is reset: little is known."""
        found = Answers({"present": True, "reset_required": True})
        return self._made(found, under_load=under_load)

    def strays(self, slots: Sequence[str]) -> tuple[str, ...]:
        """Open faults of slots that are none of `slots`, in words; none where no log is read."""
        records = self.log.records()
        return () if records is None else kernel_log.told(kernel_log.strays(records, slots))

    def log_state(self) -> LogState | None:
        """How far the kernel log was read, now; None: it cannot be read."""
        return kmsg.state(self.log, self.clock)

    def _fabric(self, card: Card, probe: Probe, found: Answers) -> Answers:
        """The fabric, as far as this GPU has to be part of one: a card without links has not."""
        switches = fabric.switched(self.root)
        linked = (switches or fabric.known_product(probe)) and links.has_nvlinks(probe)
        served = not (switches and linked) or fabric.served(self.root)
        if not served:
            why = {**found.values.get("why", {}), "fabric_state": fabric.NOT_SERVED}
            found.values["why"] = why
        return links.fabric(probe, card.architecture, expected=linked, served=served)

    def _faults(self, card: Card, found: Answers) -> str | None:
        """Fault codes since the driver was loaded; returns the recovery action last logged.

        Without the kernel log history is missing, and with it what the codes are: unknown.
        """
        found.values["xids"] = None
        self.stream.listen(card.uuid, card.handle)
        heard = self.stream.heard_at(card.uuid)
        records = self.log.records()
        if records is None:
            why = f"the kernel log is not read: {self.log.why}"
            found.values["why"] = {"xids": why, "logged": why}
            if heard:  # what the driver said by itself counts; what came before it stays unknown
                found.values["xids"] = tuple(one[0] for one in heard)
                found.values["xid_heard"] = tuple(one[2] for one in heard)
                found.values["xid_sequences"] = (None,) * len(heard)
        if records is None or not card.address:
            return None
        logged = kernel_log.faults(records, card.address)
        codes = kernel_log.codes(records, card.address)
        more = events.unlogged(codes, heard)
        found.values["xids"] = (*codes, *(one[0] for one in more))
        nothing = (None,) * len(more)
        found.values["xid_severities"] = (*(f.severity for f in logged), *("" for _ in more))
        found.values["xid_instances"] = (*(f.instance for f in logged), *(one[1] for one in more))
        found.values["xid_times"] = (*(f.at_s for f in logged), *nothing)
        found.values["xid_sequences"] = (*(f.sequence for f in logged), *nothing)
        found.values["xid_heard"] = (*(None for _ in logged), *(one[2] for one in more))
        found.values["xid_actions"] = (*(f.recovery for f in logged), *("" for _ in more))
        found.values["log"] = self.log.state(self.clock.monotonic())
        return kernel_log.recovery(records, card.address)

    def _logged(self, card: Card, probe: Probe, found: Answers) -> None:
        """What else the log has: of the bus, of what the driver needs, of switches before the GPU.

        Which switches a GPU hangs on is not asked, since a broken one may not answer: every GPU
        with links is taken for one behind all of them, as it is where there are any.
        """
        records = self.log.records()
        if records is None or not card.address:
            return
        facts = kernel_log.others(records, card.address)
        switches = any(fact.kind is kernel_log.Kind.SWITCH for fact in facts)
        if switches and "nvlinks_up" in found.not_applicable and not links.has_any(probe):
            facts = tuple(fact for fact in facts if fact.kind is not kernel_log.Kind.SWITCH)
        found.values["logged"] = kmsg.logged(facts)

    def _waited(self, card: Card, state: str | None) -> float | None:
        """For how long this process has seen the fabric on its way, s."""
        if state not in links.FABRIC_STATES.values():
            self.waiting.pop(card.uuid, None)
            return None
        now = self.clock.monotonic()
        return now - self.waiting.setdefault(card.uuid, now)

    def _presence(self, found: Answers, probe: Probe, function: Function | None) -> None:
        life = function.life() if function else Life.UNKNOWN
        if (
            life in (Life.DEAD, Life.GONE)
            and function is not None
            and function.path.parent.is_dir()
        ):
            raise DeviceLost(
                f"the device at {function.address} is {life}, whatever its driver says"
            )
        found.values["present"] = True
        # What only the log asks for is an event: it may be closed since, and is judged as such.
        asked = found.values["recovery_action"] in RESETS and not found.values["recovery_logged"]
        found.values["reset_required"] = probe.reset_required or asked or _old_verdict(probe)
        found.values["driver_version"] = self.library.ask("nvmlSystemGetDriverVersion")
        found.values["reset_methods"] = function.reset_methods() if function else None

    def _made(self, found: Answers, *, under_load: bool) -> Readings:
        known: dict[str, Any] = found.values
        absent = frozenset(name for name in found.not_applicable if known.get(name) is None)
        return Readings(at=self.clock.now(), under_load=under_load, not_applicable=absent, **known)


def _state(probe: Probe) -> Answers:
    """Heat, and what slows the clocks down."""
    found = Answers()
    reasons = probe.ask("GetCurrentClocksEventReasons")
    if probe.refused("GetCurrentClocksEventReasons") == nvml.FUNCTION_NOT_FOUND:
        reasons = probe.ask("GetCurrentClocksThrottleReasons")
    for name, bits in (
        ("hw_slowdown", SLOWDOWN),
        ("thermal_slowdown", SOFTWARE_THERMAL | HARDWARE_THERMAL),
        ("power_brake", POWER_BRAKE),
    ):
        found.values[name] = None if reasons is None else bool(reasons & bits)
    found.values["temperature_c"] = probe.ask("GetTemperature", 0)
    if probe.refused("GetTemperature") == nvml.FUNCTION_NOT_FOUND:
        found.values["temperature_c"] = probe.ask("GetTemperatureV", 0)
    found.values["memory_temperature_c"] = probe.fields([MEMORY_TEMPERATURE]).get(
        MEMORY_TEMPERATURE
    )
    return found


def _verdict(probe: Probe) -> str | None:
    """The driver's own verdict; a number without a word fails as a word nobody knows."""
    number = probe.fields([RECOVERY_ACTION]).get(RECOVERY_ACTION)
    return None if number is None else WORDS.get(number, f"CODE_{number}")


def _old_verdict(probe: Probe) -> bool:
    """What drivers before the recovery action said about a reset."""
    return any(probe.fields([RESET_STATUS, DRAIN_AND_RESET_STATUS]).values())
