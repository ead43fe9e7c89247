"""A memory session on which faults are set: each strikes in its pass, at its share of the bytes."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence

from fleet.core.errors import DeviceLost
from fleet.core.model import UnitSpec
from fleet.devices.base import Mismatch, Progress
from fleet.devices.health.readings import Readings
from fleet.devices.simulated import clients
from fleet.devices.simulated.memory import Allocator, Memory
from fleet.devices.simulated.readings import count
from fleet.devices.simulated.registers import Fault, Registers
from fleet.devices.simulated.session import SimulatedSession
from fleet.devices.wipe.plan import WORD_BYTES

DISTURBING = frozenset(
    {
        "hang",
        "wedge",
        "worker-crash",
        "allocation-shortfall",
        "dirty-word",
        "dirty-zero",
        "stale-verifier",
        "ecc-uncorrectable",
        "device-lost",
        "foreign-holder",
        "infrastructure-holder",
        "xid",
        "slow-memory",
    }
)
"""Faults that act on a session; the others only change readings."""


class StruckSession(SimulatedSession):
    """A session whose memory, driver or worker misbehaves as the faults say."""

    def __init__(
        self,
        memory: Memory,
        units: Sequence[UnitSpec],
        *,
        read: Callable[[], Readings],
        closed: Callable[[], None],
        registers: Registers,
        faults: Sequence[Fault],
    ) -> None:
        super().__init__(memory, units, read=read, closed=closed)
        self._registers = registers
        self._faults = {fault.name: fault for fault in faults}
        self._due = [fault for fault in faults if "pass" in fault.parameters]

    def allocator(self) -> Allocator:
        """An allocator that keeps back what `allocation-shortfall` says."""
        fault = self._faults.get("allocation-shortfall")
        if fault is None:
            return super().allocator()
        total = sum(unit.size_bytes for unit in self.units.values())
        kept_back = int(total * float(fault.parameters["fraction"]))
        return Allocator(tuple(self.units.values()), kept_back=kept_back)

    def fill(self, nonce: bytes, progress: Progress) -> None:
        """Fill; afterwards one word may change by itself."""
        super().fill(nonce, self._watched("fill", progress))
        self._flip("dirty-word")

    def verify(
        self, nonce: bytes, progress: Progress, *, within: tuple[int, int] | None = None
    ) -> Sequence[Mismatch]:
        """Verify; a stale cache answers with what was written, whatever memory holds."""
        watched = progress if within else self._watched("verify", progress)
        if "stale-verifier" in self._faults:
            watched(within[1] if within else self.covered)
            return ()
        return super().verify(nonce, watched, within=within)

    def zero(self, progress: Progress) -> None:
        """Zero; afterwards one word may change by itself."""
        super().zero(self._watched("zero", progress))
        self._flip("dirty-zero")

    def verify_zero(self, progress: Progress) -> Sequence[Mismatch]:
        """Verify zeros."""
        return super().verify_zero(self._watched("verify-zero", progress))

    def _flip(self, name: str) -> None:
        fault = self._faults.get(name)
        if fault is not None:
            place = random.Random(f"{fault.seed}/{name}").randrange(self.covered // WORD_BYTES)  # noqa: S311 - a reproducible fault, not a secret
            self.disturb(place * WORD_BYTES)
            self._struck(fault)

    def _watched(self, name: str, progress: Progress) -> Progress:
        slow = self._faults.get("slow-memory")
        rate = float(slow.parameters["bytes_per_s"]) if slow else 0.0
        started = time.monotonic()

        def step(done: int) -> None:
            for fault in [due for due in self._due if due.parameters["pass"] == name]:
                if done >= fault.parameters["at"] * self.covered:
                    self._due.remove(fault)
                    self._struck(fault)
                    STRIKES[fault.name](self, fault)
            if rate:
                time.sleep(max(0.0, started + done / rate - time.monotonic()))
            progress(done)

        return step

    def _struck(self, fault: Fault) -> None:
        """Count the strike; a fault that has struck often enough is over."""
        with self._registers.change() as register:
            kept = register.faults.get(fault.name)
            if kept is not None and kept.remaining is not None:
                kept.remaining -= 1
                if kept.remaining <= 0:
                    del register.faults[fault.name]

    def hang(self, _fault: Fault) -> None:
        """Never return, as a call into a hung driver."""
        threading.Event().wait()

    def open_by(self, fault: Fault) -> None:
        """Let a real process open the device."""
        clients.start(
            self._registers,
            self._memory,
            name=str(fault.parameters.get("name", "fleet-wipe")),
            units=[str(unit) for unit in self.units],
            seconds=float(fault.parameters["seconds"]),
            fault=fault.name,
        )

    def wedge(self, fault: Fault) -> None:
        """Leave something behind that outlives the worker, then hang."""
        self.open_by(fault)
        self.hang(fault)

    def crash(self, _fault: Fault) -> None:
        """Die without a word."""
        os.kill(os.getpid(), signal.SIGKILL)

    def ecc(self, fault: Fault) -> None:
        """Let the uncorrectable error counters rise."""
        with self._registers.change() as register:
            for name in ("ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"):
                count(register, name, int(fault.parameters["errors"]))

    def xid(self, fault: Fault) -> None:
        """Log a driver fault code."""
        with self._registers.change() as register:
            logged = register.values.get("xids", [])
            register.values["xids"] = [*logged, int(fault.parameters["code"])]

    def lose(self, _fault: Fault) -> None:
        """Fall off the bus."""
        with self._registers.change() as register:
            register.lost = True
        raise DeviceLost("the device fell off the bus in the middle of a pass")


STRIKES: dict[str, Callable[[StruckSession, Fault], None]] = {
    "hang": StruckSession.hang,
    "wedge": StruckSession.wedge,
    "worker-crash": StruckSession.crash,
    "ecc-uncorrectable": StruckSession.ecc,
    "device-lost": StruckSession.lose,
    "foreign-holder": StruckSession.open_by,
    "infrastructure-holder": StruckSession.open_by,
    "xid": StruckSession.xid,
}
