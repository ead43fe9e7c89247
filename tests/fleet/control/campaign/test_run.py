"""A campaign's steps against scripted nodes: what happens when nodes, answers and leases fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.control.campaign import select
from fleet.control.campaign.breaker import Stance
from fleet.control.campaign.report import ExitReason, Phase, RunReport
from fleet.control.campaign.run import Campaign, Scope
from fleet.control.campaign.scope import Agreement
from fleet.core import errors, leases
from fleet.core.errors import FleetError
from fleet.core.leases import AcquireRequest
from fleet.core.messages import (
    Acceptance,
    ByteFigures,
    DeviceResult,
    DeviceView,
    NodeView,
    Outcome,
    ReasonView,
    ScrubOrder,
    WipeProgress,
)
from fleet.core.model import Holder, HolderKind, Lease, State, Token, UnitId
from fleet.core.settings import CampaignPolicy
from fleet.stores.base import Release, Renewal

GIB = 1 << 30


def never(now: float) -> bool:
    """The trouble never comes, whatever the time."""
    return now < 0


@dataclass
class Gpu:
    """A scripted device: wipes take `takes_s`; `script` tells how each one ends, then certified."""

    uuid: str
    state: str = "DIRTY"
    takes_s: float = 3.0
    script: list[Outcome] = field(default_factory=list)
    claim: str = ""
    reasons: tuple[ReasonView, ...] = ()
    accelerator: str = ""
    units: tuple[str, ...] = ()
    operation: str = ""
    begun_at: float = 0.0
    wipes: int = 0
    certificate: str = ""

    def __post_init__(self) -> None:
        self.accelerator = self.accelerator or self.uuid
        self.units = self.units or (f"{self.uuid}/0",)


class Node:
    """A scripted node: accepts orders by operation id, finishes them in time, may fall silent."""

    def __init__(self, name: str, gpus: Sequence[Gpu], **labels: str) -> None:
        self.name, self.labels = name, labels
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self.incarnation = 1
        self.simulated = True
        self.deaf = False
        self.results: dict[str, DeviceResult] = {}
        self.silent: Callable[[float], bool] = never
        self.error: FleetError = errors.RayUnavailable(f"{name} does not answer")
        self.answer_lost: Callable[[float], bool] = never
        self.order_lost: Callable[[float], bool] = never
        self.refuses: dict[str, tuple[str, dict[str, Any]]] = {}

    def advance(self, now: float) -> None:
        for gpu in self.gpus.values():
            if gpu.operation and now - gpu.begun_at >= gpu.takes_s:
                self._finish(gpu)

    def _finish(self, gpu: Gpu) -> None:
        outcome = gpu.script.pop(0) if gpu.script else Outcome.CERTIFIED
        failed = outcome in (Outcome.FAILED, Outcome.QUARANTINED)
        gpu.state = "QUARANTINED" if failed else "DIRTY"
        gpu.certificate = ""
        if outcome is Outcome.CERTIFIED:
            gpu.state, gpu.certificate = "CLEAN", f"sha256:{gpu.uuid}-{gpu.wipes}"
        self.results[gpu.operation] = DeviceResult(
            operation=gpu.operation,
            node=self.name,
            device=gpu.uuid,
            uuid=gpu.uuid,
            outcome=outcome,
            state=gpu.state,
            certificate=gpu.certificate,
            seconds=gpu.takes_s,
            bytes=ByteFigures(total=GIB, covered=GIB),
        )
        gpu.operation = ""

    def restart(self) -> None:
        """The node service dies and comes back: wipes in work are gone."""
        self.incarnation += 1
        for gpu in self.gpus.values():
            if gpu.operation:
                gpu.operation, gpu.state = "", "DIRTY"

    def view(self, operations: Sequence[str], now: float) -> NodeView:
        return NodeView(
            node=self.name,
            incarnation=str(self.incarnation),
            boot_id="b",
            at=now,
            simulated=self.simulated,
            backend="scripted",
            labels=self.labels,
            devices=tuple(self._view(gpu) for gpu in self.gpus.values()),
            results=tuple(self.results[op] for op in operations if op in self.results),
        )

    def _view(self, gpu: Gpu) -> DeviceView:
        return DeviceView(
            uuid=gpu.uuid,
            name=gpu.uuid,
            accelerator=gpu.accelerator,
            units=gpu.units,
            memory_bytes=GIB,
            state=gpu.state,
            certificate=gpu.certificate,
            claim=gpu.claim,
            reasons=gpu.reasons,
            operation=gpu.operation,
            progress=WipeProgress(phase="fill", done=1, total=4 * GIB) if gpu.operation else None,
        )

    def accept(self, order: ScrubOrder, now: float) -> Acceptance:
        gpu = self.gpus[order.device]
        if order.operation in self.results or gpu.operation == order.operation:
            return Acceptance(operation=order.operation, accepted=True)
        if order.device in self.refuses:
            kind, fields = self.refuses[order.device]
            return Acceptance(
                operation=order.operation, accepted=False, error="no", kind=kind, fields=fields
            )
        assert not gpu.claim, "a device in use was ordered"
        gpu.operation, gpu.begun_at, gpu.state = order.operation, now, "WIPING"
        gpu.wipes += 1
        return Acceptance(operation=order.operation, accepted=True)


class Fleet:
    """Both ports over scripted nodes and a lease table with real rules."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.now = 0.0
        self.held: dict[UnitId, Lease] = {}
        self.newest = Token(1, 0)
        self.kept: dict[str, DeviceResult] = {}
        self.closed: list[str] = []
        self.cancelled: list[str] = []
        self.runs: set[str] = set()
        self.store_away: Callable[[float], bool] = never

    def names(self) -> Sequence[str]:
        return list(self.nodes)

    def views(self, requests: Mapping[str, Sequence[str]]) -> dict[str, NodeView | FleetError]:
        return {
            name: node.error if node.silent(self.now) else node.view(operations, self.now)
            for name, operations in requests.items()
            for node in (self.nodes[name],)
        }

    def scrub_all(
        self, orders: Mapping[str, Sequence[ScrubOrder]]
    ) -> dict[str, Sequence[Acceptance] | FleetError]:
        answers: dict[str, Sequence[Acceptance] | FleetError] = {}
        for name, given_orders in orders.items():
            node = self.nodes[name]
            if node.silent(self.now) or node.order_lost(self.now):
                answers[name] = node.error
                continue
            accepted = [node.accept(order, self.now) for order in given_orders]
            answers[name] = node.error if node.answer_lost(self.now) else accepted
        return answers

    def cancel(self, requests: Mapping[str, Sequence[str]]) -> dict[str, FleetError | None]:
        for name, operations in requests.items():
            self.cancelled += operations
            for gpu in self.nodes[name].gpus.values():
                if gpu.operation in operations and not self.nodes[name].deaf:
                    gpu.script.insert(0, Outcome.INTERRUPTED)
                    gpu.begun_at = -gpu.takes_s
        return dict.fromkeys(requests)

    def acquire(self, requests: Sequence[AcquireRequest]) -> list[Lease | FleetError]:
        self._reach()
        return [self._acquire(request) for request in requests]

    def _acquire(self, request: AcquireRequest) -> Lease | FleetError:
        request.validate()
        decided = leases.decide_acquire(request, self.held, self.newest, self.now)
        if isinstance(decided, leases.Refused):
            return errors.LeaseHeld("held", unit=decided.unit, holder=str(decided.holder))
        self.newest = max(self.newest, decided.token)
        assert request.ttl_s is not None
        lease = Lease(request.units, request.holder, decided.token, self.now + request.ttl_s)
        self.held.update(dict.fromkeys(request.units, lease))
        return lease

    def renew_all(self, renewals: Sequence[Renewal]) -> list[Lease | FleetError]:
        self._reach()
        return [self._renew(one) for one in renewals]

    def _renew(self, one: Renewal) -> Lease | FleetError:
        mine = (one.holder, one.token)
        found = {u: x for u, x in self.held.items() if (x.holder, x.token) == mine}
        if not found or any(leases.is_expired(x, self.now) for x in found.values()):
            return errors.LeaseLost(f"{one.token} is not held")
        for unit, lease in found.items():
            self.held[unit] = Lease(lease.units, one.holder, one.token, self.now + one.ttl_s)
        return next(iter(found.values()))

    def release_all(self, releases: Sequence[Release]) -> list[bool | FleetError]:
        self._reach()
        gone = {(one.holder, one.token) for one in releases}
        self.held = {u: x for u, x in self.held.items() if (x.holder, x.token) not in gone}
        return [True] * len(releases)

    def append(self, run: str, results: Sequence[DeviceResult]) -> None:
        self._reach()
        for result in results:
            earlier = self.kept.get(result.uuid)
            node = self.nodes.get(result.node)
            gpu = node.gpus.get(result.uuid) if node else None
            if earlier is not None and earlier.outcome is Outcome.CERTIFIED:
                assert gpu is not None
                assert gpu.certificate != earlier.certificate, "wiped again for nothing"
            self.kept[result.uuid] = result
            self.runs.add(run)

    def close(self, run: str, exit_reason: str) -> None:
        self._reach()
        self.closed.append(exit_reason)
        self.runs.add(run)

    def _reach(self) -> None:
        if self.store_away(self.now):
            raise errors.StoreUnavailable("the store is away")

    @property
    def working(self) -> list[Gpu]:
        return [g for node in self.nodes.values() for g in node.gpus.values() if g.operation]


def campaign(fleet: Fleet, scope: Scope | None = None, **policy: Any) -> Campaign:
    return Campaign("r1", fleet, fleet, CampaignPolicy(**policy), scope)


def drive(
    run: Campaign, fleet: Fleet, each: Callable[[], None] = lambda: None, ticks: int = 5000
) -> RunReport:
    """Tick once a second of scripted time until the campaign says it is over."""
    for _ in range(ticks):
        for node in fleet.nodes.values():
            node.advance(fleet.now)
        going = run.tick(fleet.now)
        each()
        if not going:
            return run.report()
        fleet.now += 1.0
    raise AssertionError(f"not over after {ticks} ticks: {run.status()}")


def outcomes(report: RunReport) -> dict[str, Outcome]:
    assert len({row.uuid for row in report.devices}) == len(report.devices)
    return {row.uuid: row.outcome for row in report.devices}


def small(nodes: int = 2, gpus: int = 4, **fields: Any) -> Fleet:
    return Fleet(
        *(
            Node(f"n{n}", [Gpu(f"g{n}-{g}", **fields) for g in range(gpus)], pool="p")
            for n in range(nodes)
        )
    )


def test_every_device_is_certified_and_nothing_is_left_held() -> None:
    """A healthy fleet ends certified, exit 0, no lease left, the run closed as complete."""
    fleet = small()
    report = drive(campaign(fleet), fleet)
    assert set(outcomes(report).values()) == {Outcome.CERTIFIED}
    assert (report.exit_reason, report.exit_code) == (ExitReason.COMPLETE, 0)
    assert (fleet.held, fleet.closed, fleet.runs) == ({}, ["complete"], {"r1"})
    assert report.simulated
    assert report.totals.bytes.covered == 8 * GIB
    assert set(fleet.kept) == set(outcomes(report))


def test_in_use_devices_are_never_touched() -> None:
    """E2: a device in use gets no lease and no order; alone it does not spoil the exit code."""
    fleet = small(1, 3)
    fleet.nodes["n0"].gpus["g0-1"].state = "IN_USE"
    fleet.nodes["n0"].gpus["g0-2"].claim = "uid-1"
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {
        "g0-0": Outcome.CERTIFIED,
        "g0-1": Outcome.IN_USE,
        "g0-2": Outcome.IN_USE,
    }
    assert [gpu.wipes for gpu in fleet.nodes["n0"].gpus.values()] == [1, 0, 0]
    assert report.exit_code == 0


def agreed(fleet: Fleet, scope: Scope, *nodes: str) -> Scope:
    """The scope, with a yes to what it selects on these nodes, as `fleet scrub` asks for it."""
    listed = [scope.listing(fleet.nodes[name].view((), 0.0)) for name in nodes]
    return replace(scope, agreed=Agreement.to(listed))


def test_f40_what_was_not_listed_is_not_touched() -> None:
    """F40: an operator's word covers exactly the devices that were listed: of real ones, those of
    a node that was silent then, and a card that came since, are left alone and said to be."""
    fleet = small(2, 2)
    for node in fleet.nodes.values():
        node.simulated = False
    scope = agreed(fleet, Scope(), "n0")
    fleet.nodes["n0"].gpus["new"] = Gpu("new")
    report = drive(campaign(fleet, scope), fleet)
    assert outcomes(report) == {
        "g0-0": Outcome.CERTIFIED,
        "g0-1": Outcome.CERTIFIED,
        "new": Outcome.REFUSED,
        "g1-0": Outcome.REFUSED,
        "g1-1": Outcome.REFUSED,
    }
    assert sum(gpu.wipes for node in fleet.nodes.values() for gpu in node.gpus.values()) == 2
    assert report.exit_code == 1
    (why,) = next(row for row in report.devices if row.uuid == "new").findings
    assert (why.check, "was confirmed" in why.detail) == ("confirmation", True)


def test_f40_what_was_listed_stays_selected() -> None:
    """F40: what was listed is scrubbed although its state is another by then: the HELD devices
    that were selected by that state are DIRTY once they are adopted."""
    fleet = small(1, 3, state="HELD")
    node = fleet.nodes["n0"]
    node.simulated = False
    node.gpus["g0-2"].state = "CLEAN"
    scope = agreed(fleet, Scope(select.parse("state=HELD")), "n0")
    for name in ("g0-0", "g0-1"):
        node.gpus[name].state = "DIRTY"
    report = drive(campaign(fleet, scope), fleet)
    assert set(outcomes(report)) == {"g0-0", "g0-1"}
    assert report.exit_code == 0


def test_f40_a_resumed_run_lists_what_it_would_take() -> None:
    """F40: the list that is confirmed is the run's own selection, without what it has certified."""
    fleet = small(1, 3)
    done = DeviceResult(
        node="n0",
        device="g0-0",
        uuid="g0-0",
        outcome=Outcome.CERTIFIED,
        state="CLEAN",
        certificate="sha256:one",
    )
    node = fleet.nodes["n0"]
    node.gpus["g0-0"].certificate = "sha256:one"
    scope = Scope.of_run({"select": "device!=g0-2"}, [done], "stopped")
    assert [one.uuid for one in scope.listing(node.view((), 0.0)).devices] == ["g0-1"]
    node.gpus["g0-0"].certificate = ""
    assert [one.uuid for one in scope.listing(node.view((), 0.0)).devices] == ["g0-0", "g0-1"]


def test_a_device_claimed_while_it_waits_is_left_alone() -> None:
    """E2: what a tenant took between plan and start is IN_USE, not wiped."""
    fleet = small(1, 2)
    run = campaign(fleet, max_parallel=1)

    def claim() -> None:
        gpu = fleet.nodes["n0"].gpus["g0-1"]
        if not gpu.operation and gpu.wipes == 0:
            gpu.state, gpu.claim = "IN_USE", "uid"

    report = drive(run, fleet, claim)
    assert outcomes(report)["g0-1"] is Outcome.IN_USE


def test_a_lease_of_a_claim_means_in_use() -> None:
    """B4: a device that pre-bind has leased for a claim is not waited for."""
    fleet = small(1, 1)
    unit = UnitId("g0-0/0")
    claim = Holder(HolderKind.CLAIM, "uid")
    fleet.held[unit] = Lease(frozenset({unit}), claim, Token(1, 1))
    assert outcomes(drive(campaign(fleet), fleet)) == {"g0-0": Outcome.IN_USE}


def test_the_lease_of_a_dead_campaign_is_waited_out() -> None:
    """E2: what a crashed campaign left leased is taken over once the lease has run out."""
    fleet = small(1, 1)
    unit = UnitId("g0-0/0")
    dead = Holder(HolderKind.CAMPAIGN, "r0")
    fleet.held[unit] = Lease(frozenset({unit}), dead, Token(1, 0), expires_at=50.0)
    assert outcomes(drive(campaign(fleet), fleet)) == {"g0-0": Outcome.CERTIFIED}
    assert fleet.now >= 50


def test_a_device_held_by_somebody_for_long_ends_busy() -> None:
    """B51: busy devices are not waited for without end; the holder is named."""
    fleet = small(1, 2)
    unit = UnitId("g0-0/0")
    operator = Holder(HolderKind.OPERATOR, "op")
    fleet.held[unit] = Lease(frozenset({unit}), operator, Token(1, 0), expires_at=1e9)
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"g0-0": Outcome.BUSY, "g0-1": Outcome.CERTIFIED}
    assert report.exit_code == 1


def test_held_and_decided_devices_are_reported_not_wiped() -> None:
    """DESIGN 4: HELD waits for proof, a reason no rule lifts waits for a person; each says how."""
    fleet = small(1, 3)
    gpus = fleet.nodes["n0"].gpus
    gpus["g0-0"].state = "HELD"
    gpus["g0-1"].state = "QUARANTINED"
    gpus["g0-1"].reasons = (
        ReasonView(code="remap-failed", source="health", liftable=False, remedy="replace"),
    )
    gpus["g0-2"].state = "QUARANTINED"
    gpus["g0-2"].reasons = (ReasonView(code="slow-memory", source="wipe", liftable=True),)
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {
        "g0-0": Outcome.HELD,
        "g0-1": Outcome.QUARANTINED,
        "g0-2": Outcome.CERTIFIED,
    }
    assert all(row.findings[0].remedy for row in report.devices[:2])
    assert report.exit_code == 1


def test_a_slow_device_holds_nobody_back() -> None:
    """Freed slots are used at once: one device 30 times slower costs no other device time."""
    fleet = small(2, 8)
    fleet.nodes["n0"].gpus["g0-0"].takes_s = 90.0
    ended: dict[str, float] = {}

    def watch() -> None:
        ended.update({u: fleet.now for u in fleet.kept if u not in ended})

    drive(campaign(fleet, max_parallel=4), fleet, watch)
    others = max(at for uuid, at in ended.items() if uuid != "g0-0")
    assert others <= 6 * 4
    assert ended["g0-0"] >= 90


def test_a_lost_node_harms_only_itself() -> None:
    """B29: a silent node's devices end UNREACHABLE in time; its neighbour is done long before."""
    fleet = small(2, 4)
    fleet.nodes["n1"].silent = lambda now: now >= 2
    run = campaign(fleet, device_timeout_s=100)
    at: dict[str, float] = {}

    def watch() -> None:
        at.update({u: fleet.now for u in fleet.kept if u not in at})

    report = drive(run, fleet, watch)
    assert {u: o for u, o in outcomes(report).items() if u.startswith("g1")} == dict.fromkeys(
        [f"g1-{n}" for n in range(4)], Outcome.UNREACHABLE
    )
    assert max(at[f"g0-{n}"] for n in range(4)) < 10
    assert run.breaker.stance is Stance.CLOSED
    assert report.exit_code == 1
    assert len(fleet.held) == 4, "the wipes there may go on: their leases run out by themselves"


def test_a_node_never_seen_is_unknown_not_empty() -> None:
    """B51: without a driver a node is one UNREACHABLE row with the error, and alone exit 2."""
    fleet = small(1, 1)
    fleet.nodes["n0"].silent = lambda now: now >= 0
    fleet.nodes["n0"].error = errors.DriverAbsent("no driver answers")
    report = drive(campaign(fleet), fleet)
    assert [(r.uuid, r.outcome) for r in report.devices] == [("n0/*", Outcome.UNREACHABLE)]
    assert (report.exit_reason, report.exit_code) == (ExitReason.UNREACHABLE, 2)
    assert "simulate" in report.devices[0].findings[0].remedy


def test_a_node_without_devices_is_reported() -> None:
    """B51: a node that answers with no device is unknown, never "done, 0 devices"."""
    fleet = Fleet(Node("n0", []), Node("n1", [Gpu("a")]))
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"a": Outcome.CERTIFIED, "n0/*": Outcome.UNREACHABLE}
    assert report.exit_code == 1


def test_an_answer_of_another_node_is_not_believed() -> None:
    """B54: a view that names another node makes the node asked for unreachable."""
    fleet = small(2, 1)
    fleet.nodes["n1"].name = "elsewhere"
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"g0-0": Outcome.CERTIFIED, "n1/*": Outcome.UNREACHABLE}


@pytest.mark.parametrize("lost", ["answer_lost", "order_lost"])
def test_lost_answers_are_read_back(lost: str) -> None:
    """B60: an order whose answer is lost is read back by its id: one wipe, never none or two."""
    fleet = small(2, 2)
    setattr(fleet.nodes["n0"], lost, lambda now: now < 4)
    report = drive(campaign(fleet), fleet)
    assert set(outcomes(report).values()) == {Outcome.CERTIFIED}
    assert [g.wipes for n in fleet.nodes.values() for g in n.gpus.values()] == [1, 1, 1, 1]


def test_a_node_restart_mid_wipe_costs_one_more_attempt() -> None:
    """B02: after a restart the operation in work counts as interrupted and is ordered anew."""
    fleet = small(1, 1)
    node = fleet.nodes["n0"]

    def crash() -> None:
        if fleet.now == 1:
            node.restart()

    report = drive(campaign(fleet), fleet, crash)
    assert report.devices[0].outcome is Outcome.CERTIFIED
    assert report.devices[0].operation == "r1/g0-0/2"
    assert node.gpus["g0-0"].wipes == 2


def test_interruptions_end_when_the_attempts_are_used_up() -> None:
    """DESIGN 4, gpus-8.11: a wipe whose worker is lost is tried again, but not without end."""
    fleet = small(1, 1)
    fleet.nodes["n0"].gpus["g0-0"].script = [Outcome.INTERRUPTED] * 9
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"g0-0": Outcome.INTERRUPTED}
    assert fleet.nodes["n0"].gpus["g0-0"].wipes == 2


def test_a_failed_wipe_is_never_retried() -> None:
    """gpus-8.11: a dirty read-back that passes the second time is not a pass."""
    fleet = small(1, 1)
    fleet.nodes["n0"].gpus["g0-0"].script = [Outcome.QUARANTINED]
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"g0-0": Outcome.QUARANTINED}
    assert fleet.nodes["n0"].gpus["g0-0"].wipes == 1


def test_leases_are_renewed_during_a_long_wipe() -> None:
    """A wipe ten times as long as the lease ends under the same lease."""
    fleet = small(1, 1, takes_s=600.0)
    report = drive(campaign(fleet), fleet)
    assert report.devices[0].findings == ()
    assert fleet.newest == Token(1, 1)


def test_a_lease_lost_mid_wipe_counts_for_hygiene_and_says_so() -> None:
    """DESIGN 5: the wipe goes on, its result is kept, and the report says what it is worth."""
    fleet = small(1, 1, takes_s=200.0)
    fleet.store_away = lambda now: 10 < now < 150
    report = drive(campaign(fleet), fleet)
    assert report.devices[0].outcome is Outcome.CERTIFIED
    (finding,) = report.devices[0].findings
    assert (finding.check, finding.verdict) == ("lease", "warn")


def test_a_store_away_for_a_while_loses_no_result() -> None:
    """E5: results wait for the store and are kept once it is back."""
    fleet = small(1, 2)
    fleet.store_away = lambda now: 1 <= now < 30
    report = drive(campaign(fleet), fleet)
    assert set(fleet.kept) == {"g0-0", "g0-1"}
    assert report.exit_code == 0


def test_a_store_away_for_ever_still_ends_the_campaign() -> None:
    """The report is given although the run record could not be closed, and says so."""
    fleet = small(1, 1)
    fleet.store_away = lambda now: now >= 1
    report = drive(campaign(fleet), fleet)
    assert report.devices[0].outcome is Outcome.CERTIFIED
    assert any("run record" in note for note in report.notes)


def test_a_stale_token_leads_to_a_new_lease_not_to_a_loop() -> None:
    """B4: a node that refuses every token ends as REFUSED after a bounded time."""
    fleet = small(1, 1)
    fleet.nodes["n0"].refuses["g0-0"] = ("TokenStale", {"floor": "1.9"})
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"g0-0": Outcome.REFUSED}


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("WrongNode", Outcome.REFUSED),
        ("EpochForeign", Outcome.REFUSED),
        ("NoSuchError", Outcome.REFUSED),
        ("DeviceUnfit", Outcome.QUARANTINED),
        ("DeviceBusy", Outcome.BUSY),
    ],
)
def test_refusals_become_outcomes(kind: str, outcome: Outcome) -> None:
    """A node's refusal ends the device with the outcome its class means; neighbours go on."""
    fleet = small(1, 2)
    fleet.nodes["n0"].refuses["g0-0"] = (kind, {})
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"g0-0": outcome, "g0-1": Outcome.CERTIFIED}
    assert fleet.held == {}


def test_a_device_that_never_ends_is_cancelled() -> None:
    """B6: past its time a device FAILED, its operation cancelled; the others are done."""
    fleet = small(1, 2)
    fleet.nodes["n0"].gpus["g0-0"].takes_s = 1e9
    report = drive(campaign(fleet, device_timeout_s=50), fleet)
    assert outcomes(report) == {"g0-0": Outcome.FAILED, "g0-1": Outcome.CERTIFIED}
    assert fleet.cancelled == ["r1/g0-0/1"]


def test_a_device_that_cannot_be_cancelled_is_given_up() -> None:
    """B29: one lease lifetime after the cancel the campaign goes on without the device."""
    fleet = small(1, 2)
    fleet.nodes["n0"].gpus["g0-0"].takes_s = 1e9
    fleet.nodes["n0"].deaf = True
    report = drive(campaign(fleet, device_timeout_s=50, max_parallel=1), fleet)
    assert outcomes(report) == {"g0-0": Outcome.FAILED, "g0-1": Outcome.CERTIFIED}
    assert report.devices[0].findings[0].check == "device-timeout"
    assert 110 <= fleet.now < 130


def test_stop_then_resume_does_each_device_once() -> None:
    """E2: Ctrl-C leaves a resumable run; what was certified stays, the rest is done."""
    fleet = small(2, 4)
    run = campaign(fleet, max_parallel=2)

    def ctrl_c() -> None:
        if fleet.now == 4:
            run.stop()

    first = drive(run, fleet, ctrl_c)
    assert (first.exit_reason, first.exit_code) == (ExitReason.STOPPED, 1)
    assert {Outcome.CERTIFIED, Outcome.INTERRUPTED} == set(outcomes(first).values())
    scope = Scope(results=tuple(fleet.kept.values()), resumed=True, exit_reason="stopped")
    second = drive(campaign(fleet, scope), fleet)
    assert set(outcomes(second).values()) == {Outcome.CERTIFIED}
    assert all(g.wipes == 1 for n in fleet.nodes.values() for g in n.gpus.values())


def test_a_certificate_no_longer_in_force_does_not_count_for_a_resumed_run() -> None:
    """Promise 5: a device that a reboot made DIRTY meanwhile is wiped again, not reported CLEAN."""
    fleet = small(1, 2)
    drive(campaign(fleet), fleet)
    rebooted, untouched = fleet.nodes["n0"].gpus.values()
    rebooted.state, rebooted.certificate = "DIRTY", ""
    scope = Scope(results=tuple(fleet.kept.values()), resumed=True, exit_reason="stopped")
    report = drive(campaign(fleet, scope), fleet)
    assert set(outcomes(report).values()) == {Outcome.CERTIFIED}
    assert (rebooted.wipes, untouched.wipes) == (2, 1)


def test_stop_with_cancel_ends_at_once() -> None:
    """A second Ctrl-C cancels what runs; nothing is certified by it."""
    fleet = small(1, 2, takes_s=500.0)
    run = campaign(fleet)

    def ctrl_c() -> None:
        if fleet.now == 2:
            run.stop(cancel=True)

    report = drive(run, fleet, ctrl_c)
    assert fleet.now < 6
    assert set(outcomes(report).values()) == {Outcome.INTERRUPTED}
    assert set(fleet.kept) == {"g0-0", "g0-1"}, "what the nodes said of the cancel is kept"


def test_a_crashed_job_is_resumed_without_a_second_wipe() -> None:
    """B02: the job dies with wipes in work; resume reads them back by operation id."""
    fleet = small(2, 2)
    first = campaign(fleet)
    assert first.tick(0.0)
    fleet.now = 1.0
    report = drive(campaign(fleet, Scope(resumed=True)), fleet)
    assert set(outcomes(report).values()) == {Outcome.CERTIFIED}
    assert all(g.wipes == 1 for n in fleet.nodes.values() for g in n.gpus.values())


def test_attempts_that_ended_with_crashed_jobs_are_not_counted_against_a_resumed_run() -> None:
    """B02: however many jobs and nodes died with their wipes, the resumed run still tries."""
    fleet = small(1, 1)
    node = fleet.nodes["n0"]
    for attempt in (1, 2, 3):  # as a node answers, once restarted, for what it had in work
        operation = f"r1/g0-0/{attempt}"
        node.results[operation] = DeviceResult(
            operation=operation,
            node="n0",
            device="g0-0",
            uuid="g0-0",
            outcome=Outcome.INTERRUPTED,
            state="DIRTY",
        )
    report = drive(campaign(fleet, Scope(resumed=True)), fleet)
    assert outcomes(report) == {"g0-0": Outcome.CERTIFIED}
    assert report.devices[0].operation == "r1/g0-0/4"
    assert node.gpus["g0-0"].wipes == 1


def test_what_a_crashed_job_left_running_counts_for_the_limits() -> None:
    """B02, E2: a resumed run starts nothing beside wipes it has not read back yet."""
    fleet = small(1, 3)
    fleet.nodes["n0"].gpus["g0-2"].takes_s = 60.0
    assert campaign(fleet, Scope(selector=select.parse("device=g0-2"))).tick(0.0)
    fleet.now = 1.0
    most: list[int] = []
    resumed = campaign(fleet, Scope(resumed=True), max_parallel=1)
    report = drive(resumed, fleet, lambda: most.append(len(fleet.working)))
    assert set(outcomes(report).values()) == {Outcome.CERTIFIED}
    assert max(most) == 1


def test_the_breaker_stops_starts_and_lets_the_rest_finish() -> None:
    """B50: at count and fraction nothing new starts; what runs ends and leases go."""
    fleet = small(1, 8)
    for gpu in fleet.nodes["n0"].gpus.values():
        gpu.script = [Outcome.QUARANTINED]
    report = drive(campaign(fleet, max_parallel=3), fleet)
    assert (report.exit_reason, report.exit_code) == (ExitReason.BREAKER, 1)
    assert list(outcomes(report).values()).count(Outcome.QUARANTINED) == 3
    assert list(outcomes(report).values()).count(Outcome.REFUSED) == 5
    assert fleet.held == {}
    assert "3 of the last 3" in report.detail


def test_after_the_breaker_one_device_goes_first() -> None:
    """B50: a resumed run probes with one device and opens again on its failure."""
    fleet = small(1, 8)
    for gpu in fleet.nodes["n0"].gpus.values():
        gpu.script = [Outcome.QUARANTINED] * 2
    drive(campaign(fleet, max_parallel=3), fleet)
    scope = Scope(results=tuple(fleet.kept.values()), resumed=True, exit_reason="breaker")
    most: list[int] = []
    report = drive(campaign(fleet, scope), fleet, lambda: most.append(len(fleet.working)))
    assert max(most) == 1
    assert report.exit_reason is ExitReason.BREAKER


def test_partitions_beside_a_tenant_are_wiped_alone() -> None:
    """DESIGN 4: a parent with one used part is not wiped whole; its free parts are, one by one."""
    parts = [
        Gpu("whole", units=("u0", "u1", "u2")),
        Gpu("part0", units=("u0",), accelerator="whole", state="IN_USE", claim="uid"),
        Gpu("part1", units=("u1",), accelerator="whole"),
    ]
    fleet = Fleet(Node("n0", parts))
    report = drive(campaign(fleet), fleet)
    assert outcomes(report) == {"part0": Outcome.IN_USE, "part1": Outcome.CERTIFIED}
    assert parts[0].wipes == parts[1].wipes == 0


def test_an_unused_parent_is_wiped_as_one() -> None:
    """Nothing is wiped twice: without tenants the whole stands for its parts."""
    parts = [
        Gpu("whole", units=("u0", "u1")),
        Gpu("part0", units=("u0",), accelerator="whole"),
    ]
    fleet = Fleet(Node("n0", parts))
    assert outcomes(drive(campaign(fleet), fleet)) == {"whole": Outcome.CERTIFIED}


def test_a_selection_limits_the_run() -> None:
    """--select: only matching devices get an outcome; a selection of nothing is exit 2."""
    fleet = small(2, 2)
    scope = Scope(selector=select.parse("node=n0,device=g0-1"))
    assert set(outcomes(drive(campaign(fleet, scope), fleet))) == {"g0-1"}
    nothing = drive(campaign(small(1, 1), Scope(selector=select.parse("pool=x"))), small(1, 1))
    assert (nothing.exit_reason, nothing.exit_code) == (ExitReason.NO_DEVICES, 2)


def test_live_status_counts_bytes_and_phases() -> None:
    """The status names phase and pass of every device, bytes of all passes, and time left."""
    fleet = small(1, 3)
    run = campaign(fleet, max_parallel=2)
    for fleet.now in (0.0, 1.0):
        assert run.tick(fleet.now)
    status = run.status()
    assert status.phases == {Phase.RUNNING: 2, Phase.WAITING: 1}
    assert status.total == 3 * 4 * GIB
    assert status.eta_s is not None
    assert status.devices[0].step == "fill"


# --- B50, the whole story -----------------------------------------------------------------------


def test_b50_the_budget_holds_through_burst_brake_and_reset() -> None:
    """B50: 288 nodes, 1 % or 3 devices, 40 false faults: never more than 3 out because of us.

    Nodes without accelerators change nothing, releases go on while the brake is on, and after
    three days only what is still true is acted on, within the same budget.
    """
    fleet = Fleet(*(Node(f"n{n:03}", [Gpu(f"g{n:03}", state="CLEAN")]) for n in range(288)))
    for n in range(40):
        fleet.nodes[f"n{n:03}"].gpus[f"g{n:03}"].script = [Outcome.QUARANTINED]
    policy: dict[str, Any] = {"out_of_service_max": 0.01, "out_of_service_min": 3}
    out: list[int] = []

    def measure() -> None:
        gpus = [g for node in fleet.nodes.values() for g in node.gpus.values()]
        out.append(sum(g.state == "QUARANTINED" or bool(g.operation) for g in gpus))

    first = drive(campaign(fleet, **policy), fleet, measure)
    assert max(out) == 3
    assert first.exit_reason is ExitReason.BREAKER
    assert list(outcomes(first).values()).count(Outcome.REFUSED) == 285
    assert fleet.held == {}, "releases go on while the brake is on"
    for node in list(fleet.nodes.values())[:2]:  # two recover while the brake is on
        next(iter(node.gpus.values())).state = "CLEAN"
    for node in fleet.nodes.values():  # days later the false fault is gone: nothing is replayed
        next(iter(node.gpus.values())).script = []
    fleet.now += 259200
    scope = Scope(results=tuple(fleet.kept.values()), resumed=True, exit_reason="breaker")
    fleet.kept.clear()
    second = drive(campaign(fleet, scope, **policy), fleet, measure)
    assert max(out) == 3
    assert set(outcomes(second).values()) == {Outcome.CERTIFIED}


def test_b50_a_fleet_of_two_nodes_moves() -> None:
    """B50: one per cent of two nodes is none; the stated minimum lets them be scrubbed in turn."""
    fleet = small(2, 1, state="CLEAN")
    most: list[int] = []
    run = campaign(fleet, out_of_service_max=0.01)
    report = drive(run, fleet, lambda: most.append(len(fleet.working)))
    assert (max(most), report.exit_code) == (1, 0)


def test_a_budget_used_up_by_quarantine_ends_the_run_with_the_figures() -> None:
    """B50: when quarantine alone uses the budget nothing starts; the report has figures."""
    fleet = small(1, 4, state="CLEAN")
    fleet.nodes["n0"].gpus["g0-0"].script = [Outcome.QUARANTINED]
    report = drive(campaign(fleet, out_of_service_max=0.25), fleet)
    assert report.exit_reason is ExitReason.LIMITS
    assert "1 of 4" in report.detail


def test_limits_that_the_nodes_are_about_to_lift_are_waited_for() -> None:
    """A pool at its floor because nodes clean by themselves is waited for, not reported."""
    fleet = small(1, 4, state="CLEAN")
    gpus = fleet.nodes["n0"].gpus
    gpus["g0-2"].state = gpus["g0-3"].state = "WIPING"

    def cleaned() -> None:
        if fleet.now == 10:
            gpus["g0-2"].state = gpus["g0-3"].state = "CLEAN"

    scope = Scope(selector=select.parse("device=g0-0"))
    report = drive(campaign(fleet, scope, pool_floor=0.5), fleet, cleaned)
    assert outcomes(report) == {"g0-0": Outcome.CERTIFIED}
    assert fleet.now > 10


def test_a_silent_node_is_judged_before_the_limits_are() -> None:
    """A device whose node is silent ends UNREACHABLE, not as refused by a limit of others."""
    fleet = small(2, 2, state="CLEAN")
    fleet.nodes["n0"].gpus["g0-0"].script = [Outcome.QUARANTINED]
    fleet.nodes["n1"].silent = lambda now: now >= 1
    report = drive(campaign(fleet, out_of_service_max=0.01, device_timeout_s=60), fleet)
    assert outcomes(report) == {
        "g0-0": Outcome.QUARANTINED,
        "g0-1": Outcome.REFUSED,
        "g1-0": Outcome.UNREACHABLE,
        "g1-1": Outcome.UNREACHABLE,
    }
    assert report.exit_reason is ExitReason.LIMITS


# --- whatever the fleet --------------------------------------------------------------------------

ENDS = st.sampled_from([Outcome.CERTIFIED, Outcome.QUARANTINED, Outcome.INTERRUPTED])
GPUS = st.builds(
    lambda state, takes_s, script: {"state": state, "takes_s": takes_s, "script": script},
    st.sampled_from(["CLEAN", "DIRTY", "IN_USE", "HELD", "QUARANTINED"]),
    st.sampled_from([1.0, 5.0, 90.0]),
    st.lists(ENDS, max_size=3),
)
FLEETS = st.lists(
    st.tuples(
        st.lists(GPUS, max_size=4),
        st.sampled_from(["a", "b", ""]),
        st.sampled_from(["never", "lost", "flaky", "mute"]),
    ),
    min_size=1,
    max_size=4,
)
POLICIES = st.fixed_dictionaries(
    {
        "max_parallel": st.integers(1, 6),
        "max_parallel_per_node": st.integers(1, 3),
        "max_parallel_per_rack": st.integers(1, 4),
        "pool_floor": st.sampled_from([0.0, 0.3, 0.5]),
        "out_of_service_max": st.sampled_from([0.2, 0.5, 1.0]),
        "out_of_service_min": st.integers(0, 2),
        "device_timeout_s": st.sampled_from([60.0, 300.0]),
    }
)


def build(described: Sequence[tuple[list[dict[str, Any]], str, str]]) -> Fleet:
    nodes = []
    for n, (gpus, rack, trouble) in enumerate(described):
        made = [Gpu(f"g{n}-{i}", **{**g, "script": list(g["script"])}) for i, g in enumerate(gpus)]
        node = Node(f"n{n}", made, rack=rack, pool=rack or "p")
        if trouble == "lost":
            node.silent = lambda now: now > 3
        elif trouble == "flaky":
            node.answer_lost = lambda now: now % 3 == 0
        elif trouble == "mute":
            node.silent = lambda now: now % 4 == 1
        nodes.append(node)
    return Fleet(*nodes)


def test_a_lost_nodes_last_words_keep_no_campaign_waiting() -> None:
    """Promise 7: a node lost while it wiped never keeps a blocked campaign from its end."""
    gone, rest = (
        Node("n0", [Gpu("g0-0", takes_s=500.0)]),
        Node("n1", [Gpu("g1-0", takes_s=90.0), Gpu("g1-1")]),
    )
    gone.silent = lambda now: now > 3
    fleet = Fleet(gone, rest)
    report = drive(
        campaign(
            fleet,
            max_parallel=1,
            out_of_service_max=0.2,
            out_of_service_min=1,
            device_timeout_s=60.0,
        ),
        fleet,
    )
    assert report.exit_reason in set(ExitReason)
    assert fleet.now < 1000


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(FLEETS, POLICIES, st.integers(0, 8))
def test_limits_hold_at_every_tick_and_each_device_ends_once(
    described: Sequence[tuple[list[dict[str, Any]], str, str]],
    policy: dict[str, Any],
    stop_at: int,
) -> None:
    """Whatever the fleet: no limit is exceeded at any tick, each device ends with one outcome."""
    fleet = build(described)
    run = campaign(fleet, **policy)
    limits = CampaignPolicy(**policy)
    total = sum(len(gpus) for gpus, _, _ in described)
    first_out = sum(g["state"] == "QUARANTINED" for gpus, _, _ in described for g in gpus)
    allowed = max(floor(limits.out_of_service_max * total), limits.out_of_service_min, first_out)
    lost = {f"n{n}" for n, (_, _, trouble) in enumerate(described) if trouble == "lost"}
    told: dict[str, Outcome] = {}

    def watch() -> None:
        # A lost node is given up with whatever still runs there; the others keep to the limits.
        known = [n for name, n in fleet.nodes.items() if name not in lost or fleet.now <= 3]
        per_node = {n.name: [g for g in n.gpus.values() if g.operation] for n in known}
        per_rack: dict[str, int] = {}
        for node in known:
            rack = node.labels["rack"] or node.name
            per_rack[rack] = per_rack.get(rack, 0) + len(per_node[node.name])
        out = sum(
            bool(g.operation) or g.state == "QUARANTINED" for n in known for g in n.gpus.values()
        )
        assert sum(per_rack.values()) <= limits.max_parallel
        assert all(len(gpus) <= limits.max_parallel_per_node for gpus in per_node.values())
        assert all(count <= limits.max_parallel_per_rack for count in per_rack.values())
        assert out <= allowed
        now_told = {u: r.outcome for u, r in fleet.kept.items()}
        assert told.items() <= now_told.items(), "an outcome changed"
        told.update(now_told)
        if stop_at and fleet.now == stop_at:
            run.stop()

    found = outcomes(drive(run, fleet, watch))
    for name, node in fleet.nodes.items():
        for gpu in node.gpus.values():
            assert gpu.uuid in found or f"{name}/*" in found or stop_at
            assert gpu.wipes == 0 or gpu.uuid in found
    assert all(
        g.wipes == 0
        for n in fleet.nodes.values()
        for g in n.gpus.values()
        if g.state in (State.IN_USE, State.HELD)
    )


def _claim(fleet: Fleet, *numbers: int) -> None:
    for number in numbers:
        gpu = fleet.nodes[f"n{number}"].gpus[f"g{number}"]
        gpu.state, gpu.claim = "IN_USE", "claim"


def test_devices_claimed_meanwhile_are_no_limit_to_the_others() -> None:
    """E2: several in a row that became unfit end no campaign; the rest is looked at next."""
    fleet = Fleet(*(Node(f"n{i}", [Gpu(f"g{i}", takes_s=0.1)]) for i in range(6)))
    run = campaign(fleet, max_parallel=1)
    for step in range(200):
        for node in fleet.nodes.values():
            node.advance(fleet.now)
        if step == 1:
            _claim(fleet, 1, 2, 3)
        if not run.tick(fleet.now):
            break
        fleet.now += 0.1
    report = run.report()
    assert (report.exit_reason, report.exit_code) == (ExitReason.COMPLETE, 0)
    assert [outcomes(report)[f"g{i}"] for i in (0, 4, 5)] == [Outcome.CERTIFIED] * 3


def test_what_a_node_shows_when_it_is_asked_counts_for_the_limits_at_once() -> None:
    """E2, B50: nothing starts beyond the budget by a view of before."""
    gpus = {i: [Gpu(f"g{i}", takes_s=0.3)] for i in range(6)}
    gpus[3].append(Gpu("h3", state="IN_USE", claim="other"))
    fleet = Fleet(*(Node(f"n{i}", found) for i, found in gpus.items()))
    run = campaign(fleet, max_parallel=1, out_of_service_max=0.01, out_of_service_min=1)
    for step in range(200):
        for node in fleet.nodes.values():
            node.advance(fleet.now)
        if step == 2:
            _claim(fleet, 1, 2)
            broken = fleet.nodes["n3"].gpus["h3"]
            broken.state, broken.claim = "QUARANTINED", ""
        if not run.tick(fleet.now):
            break
        assert step <= 2 or not fleet.working or fleet.working[0].uuid == "g0"
        fleet.now += 0.1
