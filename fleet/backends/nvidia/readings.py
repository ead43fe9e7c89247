"""Health readings of one GPU, from NVML, the kernel log and the PCI bus.

Every reading is a value, unknown (None) or not applicable, as `fleet.health.checks` judges them;
the parts say when "not supported" means which (`memory_errors`, `links`, `posture`). What cannot be
told here because a GPU is lost is no reading at all: `DeviceLost`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.backends.kmsg import KernelLog
from fleet.backends.nvidia import attributes, events, links, memory_errors, nvml, posture
from fleet.backends.nvidia.events import EventStream
from fleet.backends.nvidia.identity import Identities
from fleet.backends.nvidia.inventory import Card
from fleet.backends.nvidia.probe import Answers, Probe
from fleet.backends.sysfs import Function, Life
from fleet.clock import Clock
from fleet.errors import DeviceLost
from fleet.health import kernel_log, tables
from fleet.health.readings import Readings
from fleet.model import Uuid

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
        found.add(posture.modes(probe))
        found.add(memory_errors.read(probe, card.architecture))
        found.add(links.pcie(probe, function))
        found.add(links.fabric(probe, card.architecture))
        found.add(
            links.nvlink(
                probe,
                switched=found.values["fabric_state"] is not None,
                seen=lambda up: self.identities.links(card.uuid, up),
            )
        )
        found.values["fabric_waited_s"] = self._waited(card, found.values["fabric_state"])
        found.add(_state(probe))
        found.values["recovery_action"] = _verdict(probe) or logged_action
        coherent = bool(attributes.host_memory(probe, self.root, function))
        found.add(
            posture.driver(
                self.root, card.address, architecture=card.architecture, coherent=coherent
            )
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

    def _faults(self, card: Card, found: Answers) -> str | None:
        """Fault codes since the driver was loaded; returns the recovery action last logged.

        Without the kernel log history is missing, and with it what the codes are: unknown.
        """
        found.values["xids"] = None
        self.stream.listen(card.uuid, card.handle)
        heard = self.stream.heard(card.uuid)
        records = self.log.records()
        if records is None:
            found.values["why"] = {"xids": f"the kernel log is not read: {self.log.why}"}
        if records is None or not card.address:
            return None
        logged = kernel_log.faults(records, card.address)
        codes = kernel_log.codes(records, card.address)
        more = events.unlogged(codes, heard)
        found.values["xids"] = (*codes, *(code for code, _ in more))
        found.values["xid_severities"] = (*(f.severity for f in logged), *("" for _ in more))
        found.values["xid_instances"] = (*(f.instance for f in logged), *(gi for _, gi in more))
        found.values["xid_times"] = (*(f.at_s for f in logged), *(None for _ in more))
        return kernel_log.recovery(records, card.address)

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
        asked = found.values["recovery_action"] in RESETS
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
