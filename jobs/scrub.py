"""The campaign as a job: gather the fleet, drive the step machine, countersign, report.

Runs the same way inside `fleet scrub`, as ``python -m jobs.scrub`` and as the entrypoint of a
submitted Ray job. SIGINT and SIGTERM stop the campaign in order: what runs is cancelled, results
are kept, and the run can be resumed. A second signal ends the process at once, which the journals
survive as well.
"""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import FrameType

from actors import muster
from actors.muster import Muster
from fleet.control.campaign import select
from fleet.control.campaign.report import CampaignStatus, RunReport
from fleet.control.campaign.run import Campaign, Scope
from fleet.control.campaign.scope import Agreement
from fleet.core import errors
from fleet.core.clock import SteadyClock
from fleet.core.errors import FleetError
from fleet.core.messages import Message, NodeView
from fleet.core.model import NodeName, RunId, State
from fleet.core.settings import CampaignPolicy
from fleet.evidence.ledger import LedgerHead
from fleet.stores.base import RunRecord, RunState
from fleet.wiring.adapters import FleetPlan
from jobs.fanout import RayNodes

PERIOD_S = 0.1
"""Period, s, of the campaign's step."""

Observer = Callable[[CampaignStatus], None]
Confirm = Callable[[Sequence[NodeView]], bool]
"""Asked once, with the nodes and of their devices those that would be scrubbed; False ends the
command without touching anything."""


class ScrubRequest(Message):
    """What one campaign is asked to do."""

    policy: CampaignPolicy = CampaignPolicy()
    select: str = ""
    resume: str = ""
    """Run to go on with; empty for a new one."""
    operator: str = ""
    """Who confirmed; the HELD ones among the devices confirmed are adopted under this name."""
    dashboard: bool = False


def run(
    request: ScrubRequest,
    plan: FleetPlan | None,
    *,
    address: str | None = None,
    observer: Observer,
    confirm: Confirm,
) -> RunReport:
    """Run one campaign to its end. Raises `FleetError` where it could not begin."""
    select.parse(request.select)
    with gathered(plan, address=address, dashboard=request.dashboard) as fleet:
        nodes = RayNodes(fleet.nodes, call_timeout_s=request.policy.call_timeout_s)
        scope = _scope(request, fleet)
        # What is shown, what is adopted and what the campaign may touch are this one list.
        listed = [scope.listing(view) for view in _views(nodes)]
        if not confirm(listed):
            raise errors.InputInvalid(
                "not confirmed: nothing was touched", remedy="run again and answer yes, or --yes"
            )
        real = [view for view in listed if not view.simulated]
        scope = replace(scope, agreed=Agreement.to(real))
        _adopt_held(fleet, listed, operator=request.operator)
        if fleet.local:
            _close_orphaned_runs(fleet, but=request.resume)
        campaign = _campaign(request, fleet, nodes, scope)
        with stoppable() as stopped:
            drive(campaign, observer, stopped)
        report = campaign.report()
        return _countersigned(report, fleet, nodes)


def gathered(
    plan: FleetPlan | None, *, address: str | None, dashboard: bool = False
) -> AbstractContextManager[Muster]:
    """The fleet of `plan` in a Ray of our own, or that of the Ray at `address`."""
    if address is not None:
        return muster.attached(address, plan)
    if plan is None:
        raise errors.InputInvalid(
            "neither a plan nor the address of a Ray is given",
            remedy="name a state directory with --state, or a Ray with --address",
        )
    return muster.local(plan, dashboard=dashboard)


def drive(campaign: Campaign, observer: Observer, stopped: threading.Event) -> None:
    """Step the campaign until it is over; `stopped` cuts the pauses short."""
    stopping = False
    clock = SteadyClock()  # leases are renewed by it: setting the host's clock must not lose them
    while campaign.tick(clock.now()):
        observer(campaign.status())
        if stopped.is_set() and not stopping:
            stopping = True
            campaign.stop(cancel=True)
        # After a stop the event stays set: pause all the same, or the loop would spin.
        if stopping:
            time.sleep(PERIOD_S)
        else:
            stopped.wait(PERIOD_S)
    observer(campaign.status())


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event inside the block; a second one interrupts at once."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  a signal's signature
        if stopped.is_set():
            raise KeyboardInterrupt
        # No more than this: the signal may have come in the middle of the campaign's step.
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, found in earlier.items():
            signal.signal(number, found)


def new_run_id(now: float) -> str:
    """A run id that sorts by time: ``20261129-144900-3f2a``, UTC."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"


def _scope(request: ScrubRequest, fleet: Muster) -> Scope:
    if not request.resume:
        return Scope(select.parse(request.select))
    record = fleet.coordinator.run(RunId(request.resume))
    return Scope.of_run(record.plan, record.results.values(), record.exit_reason)


def _campaign(request: ScrubRequest, fleet: Muster, nodes: RayNodes, scope: Scope) -> Campaign:
    if request.resume:
        record = fleet.coordinator.resume(RunId(request.resume))
        policy = CampaignPolicy.model_validate(record.policy)
        scope = replace(scope, results=tuple(record.results.values()))
        return Campaign(record.id, nodes, fleet.coordinator, policy, scope)
    now = time.time()
    record = RunRecord(
        id=new_run_id(now),
        started_at=now,
        policy=request.policy.model_dump(mode="json"),
        plan={"select": request.select},
        simulated=all(view.simulated for view in _views(nodes)),
    )
    fleet.coordinator.open(record)
    return Campaign(record.id, nodes, fleet.coordinator, request.policy, scope)


def _views(nodes: RayNodes) -> list[NodeView]:
    return [view for view in nodes.views({}).values() if isinstance(view, NodeView)]


def _adopt_held(fleet: Muster, listed: Sequence[NodeView], *, operator: str) -> None:
    """The confirmation of a scrub is the operator's word that the HELD ones listed are free."""
    if not operator:
        return
    held = {
        view.node: [
            device.uuid
            for device in view.devices
            # Adopting one that is retired would put it back into service, which nobody asked for.
            if device.state == State.HELD and device.uuid not in view.retired
        ]
        for view in listed
    }
    for node in fleet.nodes:
        if held.get(node.name):
            node.adopt(devices=held[node.name], operator=operator)


def _close_orphaned_runs(fleet: Muster, *, but: str) -> None:
    """In a Ray of our own we own the nodes, so whoever drove a run that still looks alive is dead.

    Its leases would keep a plain rerun waiting until they expire.
    """
    for record in fleet.coordinator.unfinished():
        if record.state is RunState.RUNNING and record.id != but:
            fleet.coordinator.close(record.id, "the process that drove it died")


def _countersigned(report: RunReport, fleet: Muster, nodes: RayNodes) -> RunReport:
    """Countersign the ledgers' ends; a failure is a note: each certificate stands by itself."""
    found = nodes.heads()
    heads = {NodeName(node): one for node, one in found.items() if isinstance(one, LedgerHead)}
    notes = [
        f"the ledger of {name} was not countersigned: {error}"
        for name, error in found.items()
        if isinstance(error, FleetError)
    ]
    try:
        if heads:
            fleet.coordinator.sign_heads(heads)
    except FleetError as error:
        notes.append(f"the ledgers were not countersigned: {error}")
    return report.model_copy(update={"notes": (*report.notes, *notes)})


if __name__ == "__main__":
    from fleet.cli.main import run as run_verb

    run_verb("scrub")
