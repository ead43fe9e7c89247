"""One life of a small fleet in one process: nodes, coordinator, campaign; the program that dies.

Runs in a forked child. What it does is what `fleet scrub` does, with the node services and the
coordinator in this process instead of actors: the ports of the campaign are the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.control.campaign.ports import Requests
from fleet.control.campaign.run import Campaign, Scope
from fleet.control.coordinator import Coordinator
from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.core.messages import Acceptance, NodeView, ScrubOrder
from fleet.core.model import NodeName, RunId
from fleet.core.settings import CampaignPolicy, Settings
from fleet.node.service import NodeService
from fleet.stores.base import RunRecord, RunState
from fleet.wiring import adapters
from fleet.wiring.adapters import FleetPlan
from tests.chaos.story import Life, Point, Story
from tests.chaos.strikes import Striker, StruckLedger

MARKER = "FLEET_CHAOS"
"""Environment variable that everything a life starts inherits."""
PERIOD_S = 0.01
OWNER_WAIT_S = 5.0
OUTBOX_WAIT_S = 5.0
_PR_SET_PDEATHSIG = 1


class LocalNodes:
    """`fleet.control.campaign.ports.Nodes` over services of this process."""

    def __init__(self, services: Mapping[str, NodeService]) -> None:
        self._services = services

    def names(self) -> Sequence[str]:
        """All nodes."""
        return sorted(self._services)

    def views(self, requests: Requests) -> Mapping[str, NodeView | FleetError]:
        """Every node's view."""
        return {n: s.view(requests.get(n, ())) for n, s in self._services.items()}

    def scrub_all(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> Mapping[str, Sequence[Acceptance] | FleetError]:
        """Give orders."""
        return {name: self._services[name].scrub(some) for name, some in orders.items()}

    def cancel(self, requests: Requests) -> Mapping[str, FleetError | None]:
        """Cancel operations."""
        for name, operations in requests.items():
            self._services[name].cancel(operations)
        return dict.fromkeys(requests)


def settings_of(story: Story) -> Settings:
    """Settings under which a story is over in seconds and nothing fails merely by being slow."""
    base = Settings()
    wipe: dict[str, object] = {"deadline_base_s": 30.0, "expected_bytes_per_s": 1e6}
    if story.hangs:
        wipe = {"deadline_base_s": 2.0, "kill_wait_s": 1.0, "expected_bytes_per_s": 1e6}
    return base.model_copy(
        update={
            "wipe": base.wipe.model_copy(update=wipe),
            "node": base.node.model_copy(update={"idle_delay_s": story.idle_delay_s}),
        }
    )


def policy() -> CampaignPolicy:
    """No breaker: a story has few devices and many failures."""
    return CampaignPolicy(breaker_failures=1000)


def live(story: Story, life: Life, plan: FleetPlan, told: int) -> None:
    """Live one life to its end, or die on the way. `told` is the pipe to whoever watches."""
    die_with_parent()
    os.environ[MARKER] = str(plan.coordinator.state)
    striker = Striker(life.strikes, Path(plan.coordinator.state), told)
    striker.arm()
    began = time.monotonic()
    coordinator = adapters.open_coordinator(plan.coordinator)
    services = {node.node: _open(node, striker) for node in plan.nodes}
    for service in services.values():
        service.tick(time.time())  # nothing is asked of a node before it looked at its devices
    campaign = _campaign(life, coordinator, LocalNodes(services))
    while campaign.tick(time.time()):
        for service in services.values():
            service.tick(time.time())
        striker.passed(Point.TIME, time.monotonic() - began)
        striker.passed(Point.PROGRESS, _progress(services.values()))
        striker.collect()
        time.sleep(PERIOD_S)
    coordinator.sign_heads({NodeName(name): s.head() for name, s in services.items()})
    _drain(services.values())
    report = campaign.report()
    for service in services.values():
        service.close()
    _tell(
        told,
        run=report.run,
        reason=report.exit_reason,
        notes=report.notes,
        counts=striker.counts,
        outcomes={d.uuid: [d.outcome, *(f.check for f in d.findings)] for d in report.devices},
    )


def _open(node: adapters.NodePlan, striker: Striker) -> NodeService:
    """Open a node as its supervisor would: again, while the dead one's lock is still there."""
    deadline = time.monotonic() + OWNER_WAIT_S
    while True:
        try:
            service = adapters.open_node(node)
        except errors.NotOwner:
            if time.monotonic() > deadline:
                raise
            time.sleep(PERIOD_S)
            continue
        wiper: Any = service._parts.wiper
        ledger = StruckLedger(service._parts.ledger, striker)
        wiper.certifier = replace(wiper.certifier, ledger=ledger)
        return service


def _campaign(life: Life, coordinator: Coordinator, nodes: LocalNodes) -> Campaign:
    """As `jobs.scrub` begins or resumes a run when it owns the nodes."""
    unfinished = coordinator.unfinished()
    if life.resume and unfinished:
        record = coordinator.resume(RunId(unfinished[-1].id))
        scope = Scope(results=tuple(record.results.values()), resumed=True)
        return Campaign(record.id, nodes, coordinator, policy(), scope)
    for record in unfinished:
        if record.state is RunState.RUNNING:
            coordinator.close(record.id, "the process that drove it died")
    run = f"run-{time.time_ns()}-{secrets.token_hex(2)}"
    opened = coordinator.open(
        RunRecord(
            id=run,
            started_at=time.time(),
            policy=policy().model_dump(mode="json"),
            simulated=True,
        )
    )
    return Campaign(opened.id, nodes, coordinator, policy())


def _progress(services: Sequence[NodeService] | Any) -> float:
    """The furthest share of any wipe in work; below 0 without one."""
    found = [
        device.progress.done / max(1, device.progress.total)
        for service in services
        for device in service.view().devices
        if device.progress is not None and device.progress.phase not in ("", "start")
    ]
    return max(found, default=-1.0)


def _drain(services: Sequence[NodeService] | Any) -> None:
    deadline = time.monotonic() + OUTBOX_WAIT_S
    while any(s.view().outbox for s in services) and time.monotonic() < deadline:
        for service in services:
            service.tick(time.time())
        time.sleep(PERIOD_S)


def _tell(told: int, **what: object) -> None:
    os.write(told, f"ended {json.dumps(what, default=str)}\n".encode())


def die_with_parent() -> None:
    """Have the kernel end this process with the thread that forked it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
