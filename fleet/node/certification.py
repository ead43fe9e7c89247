"""From a verified wipe and a healthy verdict to a durable certificate.

The chain's ends are read from the ledger, not from the journal: a crash between the ledger and
the journal must not fork a chain.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

from fleet.core import errors
from fleet.core.model import ClaimUid, Device, Digest, RunId
from fleet.devices.health.readings import Readings
from fleet.devices.wipe.result import WipeResult
from fleet.evidence.certificate import Attested, issue
from fleet.evidence.dsse import Signer
from fleet.evidence.ledger import Ledger
from fleet.node import partition_mode
from fleet.node.registry import Registry
from fleet.node.tasks import WipeTask
from fleet.node.validation import Verdict


@dataclass(frozen=True, slots=True)
class Certifier:
    """Signs and stores certificates of one node."""

    registry: Registry
    ledger: Ledger
    key: Signer
    profile: str
    whose: Mapping[str, str] = field(default_factory=dict)
    """Operator, site and rack, as the settings name them; empty ones are not told."""
    closed: threading.Event = field(default_factory=threading.Event)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Issue nothing more and let another owner write: a late thread must not take the lock."""
        with self._guard:
            self.closed.set()
            self.ledger.close()

    def certify(self, task: WipeTask, wipe: WipeResult, verdict: Verdict) -> Digest:
        """Issue and append; returns once the certificate is durable.

        Raises `EvidenceRefused`, `LedgerUnavailable`, and `NotOwner` once closed.
        """
        device = task.device
        units = self.registry.units(device)
        heads, sequences = self.ledger.heads(), self.ledger.sequences()
        readings = verdict.readings
        attested = Attested(
            device=device,
            node=self.registry.place.node,
            backend=self.registry.backend.kind,
            simulated=self.registry.backend.simulated,
            wipe=wipe,
            findings=verdict.findings,
            healthy=verdict.healthy,
            previous_holder=", ".join(sorted({u.last_holder for u in units if u.last_holder})),
            token=task.token,
            profile=self.profile,
            reset=verdict.reset,
            boot_id=self.registry.boot_id,
            posture={
                "driver_version": str(readings.driver_version or "unknown"),
                "scrub_on_free": _word(readings.scrub_on_free),
                **{name: value for name, value in self.whose.items() if value},
                **self._partitioning(device, readings),
                **_said(wipe),
            },
            operation=task.work.operation,
            run=RunId(task.run),
            claim=task.claim or ClaimUid(""),
            heads={unit: heads.get(unit) for unit in device.units},
            sequences={unit: sequences.get(unit, 0) for unit in device.units},
            coverage_floor=task.floor(wipe.coverage),
        )
        issued = issue(
            attested,
            key=self.key,
            now=self.registry.clock.now(),
            version=software_version(),
        )
        return self.keep(issued.envelope)

    def _partitioning(self, device: Device, readings: Readings) -> dict[str, str]:
        """How the accelerator is divided, and how it was as a whole before; none: it never was.

        Not told where the hardware has no partitions, or is wiped as the one thing it is.
        """
        if not readings.mig_enabled:
            return {}
        idle = ", no instance" if readings.unpartitioned else ""
        told = partition_mode.told(self.registry, device.accelerator)
        return {"partitioning": f"on{idle}", "baseline": told}

    def keep(self, envelope: bytes) -> Digest:
        """Append a signed certificate. Raises `NotOwner` once closed, the ledger untouched."""
        with self._guard:
            if self.closed.is_set():
                raise errors.NotOwner("this service has handed its evidence over")
            return self.ledger.append(envelope)


@cache
def software_version() -> str:
    """The version that signs: read once, for a running process has no other."""
    return metadata.version("fleetscrub")


def _said(wipe: WipeResult) -> dict[str, str]:
    """How the memory session worked, as far as it said."""
    return {name: str(wipe.extra[name]) for name in ("verify", "cuda") if name in wipe.extra}


def _word(value: bool | None) -> str:  # noqa: FBT001 - a reading, not a switch
    return "unknown" if value is None else ("on" if value else "off")
