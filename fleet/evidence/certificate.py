"""Issuing wipe certificates. `issue` is the only way to make one, and it refuses by construction.

The caller hands over everything that happened (`Attested`); `issue` judges it again from the facts,
so that no caller can forget a check: an unfinished, unverified, unhealthy or incomplete run has no
certificate (promise 8).

Decisions:

1. All refusals are collected and told at once. What is about to be signed is judged once more from
   its own text, by the rules `verify` applies (`rules`).
2. `heads` and `sequences` come from the ledger (`Ledger.heads`, `Ledger.sequences`), not from the
   journal: after a crash between ledger and journal the ledger is the longer one.
3. Verification (it ran to completion as intended) and validation (it is adequate for the data) are
   two fields; the second is never ours to claim (NIST SP 800-88 Rev. 2).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleet.core.errors import EvidenceRefused, InputInvalid
from fleet.core.model import (
    NO_TOKEN,
    BootId,
    ClaimUid,
    Device,
    Digest,
    NodeName,
    OperationId,
    ProcessKind,
    RunId,
    Token,
    UnitId,
)
from fleet.core.settings import WipePolicy
from fleet.devices.health.readings import Readings, risen
from fleet.devices.wipe.result import Kind, WipeResult
from fleet.evidence import dsse, rules, scope

PREDICATE_TYPE = "https://fleetscrub.dev/wipe-certificate/v1"
_LINK = ("pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max", "nvlinks_up")
_NO_OPERATION, _NO_RUN, _NO_CLAIM = OperationId(""), RunId(""), ClaimUid("")
_COVERAGE_FLOOR = WipePolicy().coverage_floor


class CheckFinding(Protocol):
    """One line of a health verdict."""

    @property
    def check(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def detail(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Reset:
    """Whether the engine was reset around the wipe, how, and why or why not."""

    performed: bool
    method: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attested:
    """Everything a certificate says. Times are in `wipe`; sizes are bytes."""

    device: Device
    node: NodeName
    backend: str
    simulated: bool
    wipe: WipeResult
    findings: Sequence[CheckFinding]
    """The final health verdict, passes included."""
    healthy: bool
    boot_id: BootId
    reset: Reset
    heads: Mapping[UnitId, Digest | None]
    """Each covered unit's previous certificate; None for its first."""
    sequences: Mapping[UnitId, int] = field(default_factory=dict)
    """How many certificates each unit has already; must name every unit that has a head."""
    previous_holder: str = ""
    """Who had the device before ("" unknown)."""
    token: Token | None = None
    """None: wiped while nobody held a lease."""
    profile: str = ""
    """Sanitization profile in force."""
    posture: Mapping[str, str] = field(default_factory=dict)
    """Driver posture: scrub-on-free, versions, modes."""
    operation: OperationId = _NO_OPERATION
    run: RunId = _NO_RUN
    claim: ClaimUid = _NO_CLAIM
    coverage_floor: float = _COVERAGE_FLOOR
    """Fraction of total - reserved the policy in force asks for."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate as stored. `digest` is its identity."""

    digest: Digest
    envelope: bytes


def issue(attested: Attested, *, key: dsse.Signer, now: float, version: str) -> Issued:
    """Sign a certificate. Raises `EvidenceRefused` naming everything that speaks against it.

    `now` is the time of issue; `version` the software's. Appending to the ledger is the caller's
    next act.
    """
    against = tuple(_against(attested, now))
    if not version:
        against += ("the software version is unknown",)
    if against:
        raise EvidenceRefused(
            f"no certificate for {attested.device.name} on {attested.node}: {'; '.join(against)}",
            against=against,
        )
    try:
        identity = _identity(attested)
        subject = {
            "name": (rules.SIMULATED_PREFIX if attested.simulated else "") + attested.device.uuid,
            "digest": {"sha256": hashlib.sha256(dsse.canonical(identity)).hexdigest()},
        }
        predicate = _predicate(attested, identity, now=now, version=version)
        predicate["signer"] = {"service": f"fleetscrub node {attested.node}", "key_id": key.key_id}
        _judge_text(subject, predicate, key.key_id)
        envelope = dsse.seal(PREDICATE_TYPE, [subject], predicate, key=key)
    except InputInvalid as error:
        raise EvidenceRefused(
            f"no certificate for {attested.device.name} on {attested.node}: {error.detail}",
            against=(error.detail,),
        ) from error
    return Issued(dsse.digest_of(envelope), envelope)


def _judge_text(subject: dict[str, Any], predicate: dict[str, Any], key_id: str) -> None:
    if against := tuple(rules.against([subject], predicate, key_id=key_id)):
        raise InputInvalid("; ".join(against))


# --- what speaks against a certificate ------------------------------------------------------------


def _against(attested: Attested, now: float) -> Iterator[str]:
    yield from _against_wipe(attested)
    yield from _against_times(attested.wipe, now)
    yield from _against_health(attested)
    yield from _against_chain(attested)
    if not attested.node:
        yield "the node is not named"
    if not attested.boot_id:
        yield "the boot is unknown"
    if attested.simulated != (attested.backend == "simulated"):
        yield f"back end {attested.backend!r} contradicts simulated={attested.simulated}"
    if not attested.reset.reason:
        yield "no reason is given why the engine was or was not reset"
    if attested.reset.performed != bool(attested.reset.method):
        yield "the reset names no method, or a method without a reset"


def _against_wipe(attested: Attested) -> Iterator[str]:
    wipe, device, coverage = attested.wipe, attested.device, attested.wipe.coverage
    if wipe.failure is not None:
        yield f"the wipe failed: {wipe.failure} {wipe.detail}".rstrip()
    elif not wipe.verified:
        yield _unverified(wipe)
    if wipe.kind is Kind.MEMORY and not wipe.pattern:
        yield "the pattern is not named"
    if wipe.accelerator != device.accelerator:
        yield f"the wipe is of {wipe.accelerator}, the device is on {device.accelerator}"
    if not device.units or sorted(wipe.units) != sorted(set(device.units)):
        yield f"units wiped {sorted(wipe.units)} are not the device's {sorted(device.units)}"
    figures = (coverage.total, coverage.reserved, coverage.covered)
    if wipe.kind is Kind.RESET:
        yield from rules.unread_problems(*figures, memory_bytes=device.memory_bytes)
    else:
        yield from rules.memory_problems(*figures, memory_bytes=device.memory_bytes)
        yield from rules.floor_problems(*figures, floor=attested.coverage_floor)
    if any(holder.kind is ProcessKind.FOREIGN for holder in wipe.holders):
        yield "a foreign process had the device open"


def _unverified(wipe: WipeResult) -> str:
    if wipe.kind is Kind.RESET:
        return "the device was not reset with nobody on it, or its reset does not count"
    return "the wipe is not verified: a pass, its bytes, the self-test or the nonce is missing"


def _against_times(wipe: WipeResult, now: float) -> Iterator[str]:
    spans = [found.seconds for found in wipe.passes]
    if not all(math.isfinite(value) for value in (wipe.started_at, wipe.ended_at, now, *spans)):
        yield "a time is not a number"
    elif wipe.started_at <= 0 or wipe.ended_at < wipe.started_at or min(spans, default=0.0) < 0:
        yield "the wipe ended before it started"
    elif now < wipe.started_at:
        yield "the certificate would be older than the wipe"


def _against_health(attested: Attested) -> Iterator[str]:
    if not attested.healthy:
        yield "the device is not healthy"
    if not attested.findings:
        yield "no health check was made"
    yield from (
        f"check {found.check} failed: {found.detail}"
        for found in attested.findings
        if str(found.verdict) == "fail"
    )
    before, after = attested.wipe.before, attested.wipe.after
    if before is None or after is None:
        yield "fault counters before or after the wipe are missing"
    elif after.reset_required and not attested.reset.performed:
        yield "the device asks for a reset and was not reset"


def _against_chain(attested: Attested) -> Iterator[str]:
    if set(attested.heads) != set(attested.device.units):
        yield "previous certificates are not those of the device's units"
    for unit, head in attested.heads.items():
        count = attested.sequences.get(unit, 0)
        if (head is None) != (count == 0) or count < 0:
            yield f"unit {unit} has {count} certificates and head {head}"


# --- what a certificate says ----------------------------------------------------------------------


def _identity(attested: Attested) -> dict[str, Any]:
    device = attested.device
    return {
        "uuid": device.uuid,
        "name": device.name,
        "accelerator": device.accelerator,
        "units": sorted(device.units),
        "memory_bytes": device.memory_bytes,
        "profile": device.profile,
        "attributes": {name: str(value) for name, value in device.attributes.items()},
        "backend": attested.backend,
        "simulated": attested.simulated,
    }


def _predicate(
    attested: Attested, identity: dict[str, Any], *, now: float, version: str
) -> dict[str, Any]:
    regions = scope.regions(attested.device, attested.wipe, reset_method=attested.reset.method)
    token = attested.token if attested.token not in (None, NO_TOKEN) else None
    return {
        "simulated": attested.simulated,
        "summary": scope.summary(regions, simulated=attested.simulated, reset=attested.wipe.scrub),
        "device": identity,
        "node": attested.node,
        "boot_id": attested.boot_id,
        "previous_holder": attested.previous_holder or "unknown",
        "claim": attested.claim,
        "run": attested.run,
        "operation": attested.operation,
        "token": str(token) if token else None,
        "profile": attested.profile,
        "sanitization": _sanitization(attested),
        "bytes": _bytes(attested),
        "verification": _verification(attested.wipe),
        "validation": {
            "status": "not-performed",
            "words": f"Whether {_technique(attested.wipe)} is adequate for the sensitivity of the"
            " data is the organisation's decision; this certificate does not take it.",
        },
        "health": _health(attested),
        "reset": {
            "performed": attested.reset.performed,
            "method": attested.reset.method,
            "reason": attested.reset.reason,
        },
        "posture": _posture(attested),
        "holders": [
            {"pid": holder.pid, "name": holder.name, "kind": str(holder.kind)}
            for holder in attested.wipe.holders
        ],
        "scope": [region.as_json() for region in regions],
        "started_at": dsse.moment(attested.wipe.started_at),
        "ended_at": dsse.moment(attested.wipe.ended_at),
        "issued_at": dsse.moment(now),
        "software": {"name": "fleetscrub", "version": version},
        "chain": {
            unit: {"previous": head, "sequence": attested.sequences.get(unit, 0) + 1}
            for unit, head in attested.heads.items()
        },
    }


def _technique(wipe: WipeResult) -> str:
    return scope.RESET_TECHNIQUE if wipe.kind is Kind.RESET else scope.TECHNIQUE


def _sanitization(attested: Attested) -> dict[str, Any]:
    wipe = attested.wipe
    if wipe.scrub is not None:
        return {
            "standard": "none",
            "technique": scope.RESET_TECHNIQUE,
            "media": "device memory (volatile)",
            "method": scope.RESET_METHOD,
            "pattern": "none",
            "nonce_sha256": "none",
            "passes": [],
            "reset_method": wipe.scrub.method,
            "vendor_scrub": wipe.scrub.vendor_scrub,
            "vendor_switch": wipe.scrub.switch,
        }
    return {
        "standard": "NIST SP 800-88 Rev. 2",
        "technique": scope.TECHNIQUE,
        "media": "device memory (volatile)",
        "method": "overwrite with pattern, verify all, overwrite with zeros, verify all",
        "pattern": wipe.pattern,
        "nonce_sha256": wipe.nonce_sha256,
        "passes": [
            {
                "name": found.name,
                "bytes": found.bytes,
                "duration_us": round(found.seconds * 1_000_000),
            }
            for found in wipe.passes
        ],
    }


def _bytes(attested: Attested) -> dict[str, Any]:
    coverage = attested.wipe.coverage
    return {
        "total": coverage.total,
        "reserved": coverage.reserved,
        "covered": coverage.covered,
        "residual": coverage.residual,
        "floor": "none" if attested.wipe.kind is Kind.RESET else str(attested.coverage_floor),
    }


def _verification(wipe: WipeResult) -> dict[str, Any]:
    if wipe.kind is Kind.RESET:
        return {
            "status": "none",
            "method": scope.NOT_READ_BACK,
            "bytes": 0,
            "mismatched_bytes": 0,
            "self_test": "none",
            "self_test_words": "there was nothing to verify",
        }
    return {
        "status": "passed",
        "method": "full: every covered byte read back from the device after each overwrite",
        "bytes": wipe.coverage.covered,
        "mismatched_bytes": wipe.mismatched_bytes,
        "self_test": "passed" if wipe.self_test_passed else "failed",
        "self_test_words": "one seeded mismatch was found by the verifier and put back",
    }


def _counters(readings: Readings | None) -> dict[str, int]:
    return dict(readings.counters()) if readings else {}


def _health(attested: Attested) -> dict[str, Any]:
    before, after = attested.wipe.before, attested.wipe.after
    load = attested.wipe.under_load
    return {
        "healthy": attested.healthy,
        "findings": [
            {"check": found.check, "verdict": str(found.verdict), "detail": found.detail}
            for found in attested.findings
        ],
        "counters_before": _counters(before),
        "counters_after": _counters(after),
        "counters_risen": sorted(risen(before, after)) if before and after else [],
        "faults_after": list(after.xids) if after and after.xids is not None else None,
        "link_under_load": {name: getattr(load, name) for name in _LINK} if load else None,
    }


def _posture(attested: Attested) -> dict[str, str]:
    after = attested.wipe.after
    found = {name: str(value) for name, value in attested.posture.items()}
    if after is not None:
        scrub = {None: "unknown", True: "on", False: "off"}[after.scrub_on_free]
        found.setdefault("scrub_on_free", scrub)
        found.setdefault("driver_version", after.driver_version or "unknown")
    return found
