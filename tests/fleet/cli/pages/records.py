"""Records of runs as campaigns leave them, of any size, with what can go wrong in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleet.core.messages import ByteFigures, DeviceResult, Finding, Outcome
from fleet.stores.base import RunRecord, RunState

BEGIN = 1_700_000_000.0
GIB = 1 << 30
RUN = "20231114-221320-0000"


def certified(number: int, *, per_node: int = 8, **changes: Any) -> DeviceResult:
    """A device that came out well: wave after wave, some slower than others."""
    node, slot = divmod(number, per_node)
    began = BEGIN + (number // 64) * 40.0 + slot * 0.2
    seconds = 30.0 + (number * 37 % 100) / 10
    facts: dict[str, object] = {
        "operation": f"{RUN}/SIM-{number:05d}/1",
        "node": f"node-{node:04d}",
        "device": f"gpu-{slot}",
        "uuid": f"SIM-{number:05d}-0000-4000-8000-000000000000",
        "outcome": Outcome.CERTIFIED,
        "state": "CLEAN",
        "bytes": ByteFigures(total=80 * GIB, reserved=GIB, covered=79 * GIB),
        "seconds": seconds,
        "rate": 79 * GIB * 4 / seconds,
        "certificate": f"sha256:{number:064x}",
        "before": "DIRTY",
        "started_at": began,
        "ended_at": began + seconds,
    }
    return DeviceResult.model_validate(facts | changes)


def failed(number: int, outcome: Outcome, *checks: str, **changes: object) -> DeviceResult:
    """A device that was not covered, with a finding for each check."""
    findings = tuple(
        Finding(check=check, verdict="fail", detail=f"{check} of {number}", remedy=f"mend {check}")
        for check in checks
    )
    facts: dict[str, Any] = {
        "outcome": outcome,
        "state": "QUARANTINED",
        "certificate": "",
        "rate": 0.0,
        "findings": findings,
        "bytes": ByteFigures(total=80 * GIB, residual=80 * GIB),
    }
    return certified(number, **(facts | changes))


def lost(node: str, **changes: object) -> DeviceResult:
    """The row of a node that showed nothing."""
    found = Finding(check="node", verdict="fail", detail=f"{node} is silent", remedy="start it")
    facts: dict[str, object] = {
        "node": node,
        "device": "*",
        "uuid": f"{node}/*",
        "outcome": Outcome.UNREACHABLE,
        "state": "unknown",
        "findings": (found,),
        "ended_at": BEGIN + 100.0,
    }
    return DeviceResult.model_validate(facts | changes)


def record(results: Iterable[DeviceResult], **changes: object) -> RunRecord:
    """A finished run of these results."""
    kept = {result.uuid: result for result in results}
    facts: dict[str, object] = {
        "id": RUN,
        "state": RunState.FINISHED,
        "started_at": BEGIN,
        "finished_at": max([one.ended_at for one in kept.values()], default=BEGIN) + 1.0,
        "results": kept,
        "exit_reason": "complete",
        "simulated": True,
        "policy": {"max_parallel": 64},
        "plan": {"select": ""},
    }
    return RunRecord.model_validate(facts | changes)


def mixed(count: int, *, per_node: int = 8) -> RunRecord:
    """A fleet of `count` devices in which one in a hundred was busy, failed, missing or unknown."""
    results = []
    for number in range(count):
        kind = number % 100
        if kind == 7:
            results.append(failed(number, Outcome.IN_USE, state="IN_USE", started_at=0.0))
        elif kind == 31:
            results.append(failed(number, Outcome.QUARANTINED, "ecc"))
        elif kind == 53:
            results.append(failed(number, Outcome.QUARANTINED, "device-lost"))
        elif kind == 71:
            results.append(certified(number, before="QUARANTINED"))
        else:
            results.append(certified(number, per_node=per_node))
    return record([*results, lost("node-9999")])
