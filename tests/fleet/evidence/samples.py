"""Builds evidence for tests: devices, verified wipes, a state directory with nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.core.model import (
    BootId,
    Device,
    Digest,
    NodeName,
    Process,
    ProcessKind,
    Token,
    UnitId,
    Uuid,
)
from fleet.devices.base import Coverage, ResetScrub
from fleet.devices.health.readings import Readings
from fleet.devices.wipe.result import PASSES, Kind, Pass, WipeResult
from fleet.evidence import kept_list, layout
from fleet.evidence.certificate import Attested, Issued, Reset, issue
from fleet.evidence.heads import HeadsLog
from fleet.evidence.keys import SigningKey
from fleet.evidence.ledger import Ledger
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify

START = 1_700_000_000.25
MIB = 1024 * 1024


@dataclass(frozen=True)
class Verdict:
    """One line of a health verdict."""

    check: str
    verdict: str
    detail: str = ""


def device_named(name: str, units: Sequence[str] = ("0",), *, accelerator: str = "") -> Device:
    """A device of some units; a partition when `accelerator` is another one."""
    parent = Uuid(f"SIM-{accelerator or name}")
    return Device(
        uuid=Uuid(f"SIM-{name}"),
        name=name,
        accelerator=parent,
        units=tuple(UnitId(f"{parent}/{unit}") for unit in units),
        memory_bytes=64 * MIB,
        profile="" if parent == f"SIM-{name}" else "1g.10gb",
        attributes={"product": "Simulated accelerator", "serial": "0001"},
    )


def readings(at: float, **changes: Any) -> Readings:
    """A quiet device's readings."""
    quiet = Readings(at=at, present=True, ecc_uncorrected_volatile=0, aer_fatal=0, pcie_replays=3)
    return replace(quiet, xids=(), scrub_on_free=True, driver_version="1.0", **changes)


def wipe_of(device: Device, at: float = START, **changes: Any) -> WipeResult:
    """A verified wipe of all of `device`, started at `at`, two seconds long."""
    covered = 60 * MIB
    whole = WipeResult(
        accelerator=device.accelerator,
        units=device.units,
        started_at=at,
        ended_at=at + 2,
        coverage=Coverage(64 * MIB, 3 * MIB, covered),
        passes=tuple(Pass(name, covered, 0.5) for name in PASSES),
        self_test_passed=True,
        pattern="nonce-and-address/64",
        nonce_sha256="ab" * 32,
        before=readings(at),
        under_load=readings(at + 1, under_load=True, pcie_gen=5, pcie_width=16),
        after=readings(at + 2),
        holders=(Process(41, "monitor", ProcessKind.INFRASTRUCTURE),),
    )
    return replace(whole, **changes)


def attested(device: Device, at: float = START, **changes: Any) -> Attested:
    """Everything a first certificate of `device` needs."""
    whole = Attested(
        device=device,
        node=NodeName("node-1"),
        backend="simulated",
        simulated=True,
        wipe=wipe_of(device, at),
        findings=(Verdict("ecc", "pass"), Verdict("nvlink", "not-applicable", "no links")),
        healthy=True,
        boot_id=BootId("boot-1"),
        reset=Reset(performed=False, method="", reason="no fault; policy on-fault"),
        heads=dict.fromkeys(device.units),
        previous_holder="claim:tenant-a",
        token=Token(1, 1),
        profile="strict",
        posture={"mps": "off"},
    )
    return replace(whole, **changes)


class Site:
    """A state directory with nodes, their ledgers and keys, and a coordinator."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.at = START
        self.counter = 0
        self.keys: dict[str, SigningKey] = {}

    @property
    def coordinator(self) -> SigningKey:
        """The coordinator's signing key, made when first needed: some sites have none."""
        return SigningKey.load_or_create(layout.coordinator_key(self.state))

    def key(self, node: str) -> SigningKey:
        """The node's signing key."""
        if node not in self.keys:
            self.keys[node] = SigningKey.load_or_create(layout.node_key(self.state, node))
        return self.keys[node]

    def ledger(self, node: str = "node-1", **options: int) -> Ledger:
        """The node's ledger."""
        return Ledger(layout.ledger_directory(self.state, node), **options)

    def issue(
        self, ledger: Ledger, device: Device, *, node: str = "node-1", **changes: Any
    ) -> Issued:
        """The next certificate of `device` for `ledger`, not appended."""
        self.at += 10
        self.counter += 1
        heads, sequences = ledger.heads(), ledger.sequences()
        facts: Mapping[str, Any] = {
            "node": NodeName(node),
            "token": Token(1, self.counter),
            "heads": {unit: heads.get(unit) for unit in device.units},
            "sequences": {unit: sequences.get(unit, 0) for unit in device.units},
            **changes,
        }
        return issue(
            attested(device, self.at, **facts), key=self.key(node), now=self.at + 3, version="0.1"
        )

    def certify(
        self,
        node: str = "node-1",
        devices: Sequence[str] = ("a", "b"),
        *,
        rounds: int = 2,
        **options: int,
    ) -> list[Digest]:
        """Some certificates for each device, in turn."""
        digests = []
        with self.ledger(node, **options) as ledger:
            for _ in range(rounds):
                for name in devices:
                    device = device_named(f"{node}-{name}")
                    digests.append(ledger.append(self.issue(ledger, device, node=node).envelope))
        return digests

    def countersign(self) -> None:
        """The coordinator signs all ledgers' ends."""
        self.at += 1
        ends = {node: self.ledger(node).head() for node in layout.nodes(self.state)}
        with HeadsLog(layout.heads_directory(self.state)) as log:
            listed = kept_list.named(self.state)
            log.record(ends, key=self.coordinator, now=self.at, listed=listed)

    def segment(self, node: str = "node-1") -> Path:
        """The first file of the node's ledger."""
        return layout.ledger_directory(self.state, node) / "000000000001.jsonl"


def codes(directory: Path) -> set[str]:
    """Kinds of defects found in `directory`."""
    return {damage.code for damage in verify(collect(directory)).defects}


def rewrite(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change a file line by line."""
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def speed(state: Path, count: int) -> tuple[float, float]:
    """Certificates per second: issued and durably stored, and verified."""
    site, device = Site(state), device_named("a")
    begin = time.perf_counter()
    with site.ledger() as ledger:
        for _ in range(count):
            ledger.append(site.issue(ledger, device).envelope)
    middle = time.perf_counter()
    report = verify(collect(state))
    end = time.perf_counter()
    if report.defects or report.certificates != count:
        raise AssertionError(report.as_json())
    return count / (middle - begin), count / (end - middle)


def reset_of(device: Device, at: float = START, **changes: Any) -> Attested:
    """Facts for a certificate of a device that was only reset."""
    wipe = wipe_of(
        device,
        at,
        kind=Kind.RESET,
        scrub=ResetScrub(performed=True, method="flr", vendor_scrub="none"),
        coverage=Coverage(device.memory_bytes, 0, 0),
        passes=(),
        self_test_passed=False,
        pattern="",
        under_load=None,
    )
    reset = Reset(performed=True, method="flr", reason="there is no other way")
    facts = {"wipe": wipe, "reset": reset, "backend": "pcie", "simulated": False, **changes}
    return attested(device, at, **facts)
