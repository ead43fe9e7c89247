"""One wipe on a real node: every way out is the outcome DESIGN says, neighbours untouched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fleet.core.messages import Outcome
from fleet.core.model import ClaimUid, Digest, Holder, HolderKind, State, Token, UnitId, Uuid
from fleet.core.settings import ResetPolicy
from fleet.core.unit_states import INTERRUPTIONS_MAX, close_floor
from fleet.devices.simulated import memory
from fleet.devices.wipe.plan import WipeOrder
from fleet.devices.wipe.workers import Spawner, Worker
from tests.fleet.node.conftest import Lab, quick_settings, wait_for
from tests.fleet.node.parting import parting


def test_a_wiped_device_is_clean_certified_and_zero(lab: Lab) -> None:
    """Promise 8: CLEAN comes with a certificate in the ledger, and the memory is zero."""
    secret = b"the tenant's secret" * 100
    held = lab.memory()
    memory.write(held, 12345, secret)
    result = lab.scrub()
    assert (result.outcome, result.state) == (Outcome.CERTIFIED, State.CLEAN)
    assert lab.device().certificate == result.certificate
    assert result.certificate in lab.ledger
    assert result.bytes.covered == result.bytes.total == held.size_bytes
    assert not any(held.read_bytes())


FAULTS = [
    ("hang", Outcome.QUARANTINED, State.QUARANTINED, "timed-out"),
    ("wedge", Outcome.QUARANTINED, State.QUARANTINED, "wedged"),
    ("allocation-shortfall", Outcome.QUARANTINED, State.QUARANTINED, "coverage-below-floor"),
    ("dirty-word", Outcome.QUARANTINED, State.QUARANTINED, "memory-mismatch"),
    ("dirty-zero", Outcome.QUARANTINED, State.QUARANTINED, "memory-mismatch"),
    ("stale-verifier", Outcome.QUARANTINED, State.QUARANTINED, "verifier-unsound"),
    ("ecc-uncorrectable", Outcome.QUARANTINED, State.QUARANTINED, "ecc-uncorrectable"),
    ("device-lost", Outcome.QUARANTINED, State.QUARANTINED, "device-lost"),
    ("foreign-holder", Outcome.FAILED, State.DIRTY, "foreign-holder"),
    ("infrastructure-holder", Outcome.CERTIFIED, State.CLEAN, ""),
    ("remap-pending", Outcome.CERTIFIED, State.CLEAN, ""),
    ("remap-failed", Outcome.QUARANTINED, State.QUARANTINED, "remap-failed"),
    ("link-degraded", Outcome.QUARANTINED, State.QUARANTINED, "link-degraded"),
    ("thermal-slowdown", Outcome.QUARANTINED, State.QUARANTINED, "thermal-slowdown"),
    ("xid", Outcome.QUARANTINED, State.QUARANTINED, "xid"),
    ("reset-required", Outcome.CERTIFIED, State.CLEAN, ""),
    ("worker-crash", Outcome.INTERRUPTED, State.DIRTY, "worker"),
]


@pytest.mark.parametrize(("fault", "outcome", "state", "finding"), FAULTS, ids=str)
def test_each_fault_leads_where_design_says(
    lab: Lab, fault: str, outcome: Outcome, state: State, finding: str
) -> None:
    """Promise 5, B6, D4: doubt is DIRTY, failure is QUARANTINED with its reason; never CLEAN."""
    lab.fault(fault)
    neighbour = lab.order("gpu-1")
    lab.node.scrub([neighbour])
    result = lab.scrub()
    assert (result.outcome, result.state) == (outcome, state)
    assert (result.certificate == "") == (outcome is not Outcome.CERTIFIED)
    if finding:
        assert finding in {found.check for found in result.findings}
        assert all(found.remedy for found in result.findings)
    assert lab.result(neighbour.operation).outcome is Outcome.CERTIFIED


def test_memory_ten_times_too_slow_is_a_fault(lab: Lab) -> None:
    """A pass far slower than healthy memory is the device's fault, found before its deadline."""
    lab.node.close()
    lab.open(settings=quick_settings(deadline_base_s=60.0))
    lab.fault("slow-memory", bytes_per_s="300000")
    result = lab.scrub()
    assert result.outcome is Outcome.QUARANTINED
    assert {found.check for found in result.findings} == {"slow-memory"}


def test_f54_a_simulated_wipe_that_goes_on_is_no_hang(lab: Lab) -> None:
    """F54: a simulated device is as slow as a busy machine makes it: while its wipe goes on it is
    not quarantined for taking longer than real memory would; one that stands still is, and nobody
    is told to reset it."""
    lab.node.close()
    lab.open(settings=quick_settings(deadline_base_s=4.0))
    lab.fault("slow-memory", bytes_per_s="1400000")  # 1.5 s each of four passes
    result = lab.scrub()
    assert result.outcome is Outcome.CERTIFIED
    assert result.seconds > 4.0
    lab.node.close()
    lab.open(settings=quick_settings(deadline_base_s=1.0))
    lab.fault("hang")
    result = lab.scrub()
    (found,) = (one for one in result.findings if one.check == "timed-out")
    assert found.remedy.startswith("it is simulated, nothing is to be reset")


def test_a_reset_that_was_needed_is_on_the_certificate(lab: Lab) -> None:
    """B3: a device that reports "reset required" is reset, and the certificate says so."""
    lab.fault("reset-required")
    result = lab.scrub()
    certificate = lab.ledger.certificate(Digest(result.certificate))
    assert certificate.envelope.predicate["reset"]["performed"] is True
    assert lab.backend.readings(Uuid(lab.device().accelerator)).reset_required is False


def test_without_a_reset_a_pending_remap_is_never_exposed(lab: Lab) -> None:
    """B3: policy never means quarantine, not exposure un-reset."""
    lab.node.close()
    lab.open(settings=quick_settings(reset=ResetPolicy.NEVER))
    lab.fault("reset-required")
    result = lab.scrub()
    assert result.outcome is Outcome.QUARANTINED
    assert "reset-required" in {found.check for found in result.findings}


def test_a_device_whose_driver_does_not_answer_is_not_clean(lab: Lab) -> None:
    """Promise 5: CLEAN and then silent is doubt; the scrub that meets it says so."""
    lab.node.close()
    health = lab.settings.health.model_copy(update={"reading_timeout_s": 1.0})
    lab.open(settings=quick_settings().model_copy(update={"health": health}))
    assert lab.scrub().outcome is Outcome.CERTIFIED
    lab.fault("reading-hang", seconds="4")
    lab.node.sweep()
    result = lab.scrub()
    assert (result.outcome, result.state) == (Outcome.QUARANTINED, State.QUARANTINED)
    assert {found.check for found in result.findings} == {"unresponsive"}


def test_a_reset_ends_a_fault_that_is_older_than_the_wipe(lab: Lab) -> None:
    """B3: the first retest resets and passes; only what happened during a wipe fails it."""
    lab.fault("ecc-uncorrectable")
    assert lab.scrub().outcome is Outcome.QUARANTINED
    again = lab.scrub()
    assert (again.outcome, again.state) == (Outcome.CERTIFIED, State.CLEAN)
    certificate = lab.ledger.certificate(Digest(again.certificate))
    assert certificate.envelope.predicate["reset"]["performed"] is True


def test_what_was_not_verified_is_not_covered(lab: Lab) -> None:
    """B06: the figures of a failed wipe count nothing as covered."""
    lab.fault("dirty-word")
    figures = lab.scrub().bytes
    assert (figures.covered, figures.residual) == (0, figures.total)


def test_an_order_never_demands_less_than_the_node(lab: Lab) -> None:
    """Promise 8: whoever orders a wipe cannot bring a floor of its own to be certified by."""
    lab.fault("allocation-shortfall", fraction="0.5")
    lax = lab.settings.wipe.model_copy(update={"coverage_floor": 0.01})
    order = lab.order().model_copy(update={"wipe": lax})
    lab.node.scrub([order])
    assert lab.result(order.operation).outcome is Outcome.QUARANTINED


def test_a_process_that_comes_after_the_worker_is_seen(lab: Lab) -> None:
    """Promise 1: who opens the device between the last pass and the certificate soils it."""
    lab.fault(
        "foreign-holder", times=None, **{"pass": "verify-zero", "at": "0.99", "seconds": "30"}
    )
    result = lab.scrub()
    assert (result.outcome, result.state) == (Outcome.FAILED, State.DIRTY)


def test_the_third_interruption_in_a_row_quarantines(lab: Lab) -> None:
    """DESIGN 4: bad luck twice is bad luck, three times is a fault."""
    lab.fault("worker-crash", times=INTERRUPTIONS_MAX)
    outcomes = [lab.scrub().outcome for _ in range(INTERRUPTIONS_MAX)]
    assert outcomes == [Outcome.INTERRUPTED, Outcome.INTERRUPTED, Outcome.QUARANTINED]
    assert {reason.code for reason in lab.device().reasons} == {"interrupted"}


def test_a_cancelled_wipe_leaves_the_device_dirty(lab: Lab) -> None:
    """Promise 5: interrupted by us is DIRTY, once the worker is proven gone."""
    lab.fault("hang")
    order = lab.order()
    lab.node.scrub([order])
    wait_for(lambda: lab.device().state == State.WIPING)
    lab.node.cancel([order.operation])
    result = lab.result(order.operation)
    assert (result.outcome, result.state) == (Outcome.INTERRUPTED, State.DIRTY)


def test_a_foreign_process_keeps_the_wipe_away(lab: Lab) -> None:
    """Promise 4: nothing is wiped under a process that is not ours; nobody is killed."""
    lab.fault("foreign-holder", seconds="30")
    first = lab.scrub()
    assert first.outcome is Outcome.FAILED
    second = lab.scrub()
    assert (second.outcome, second.state) == (Outcome.BUSY, State.DIRTY)
    assert "foreign-holder" in {found.check for found in second.findings}


def test_a_partition_is_wiped_without_its_neighbours(lab: Lab) -> None:
    """C6, promise 9: wiping one slice leaves the others' memory and state alone."""
    held = lab.memory("gpu-1")
    held.write_bytes(b"\xaa" * held.size_bytes)
    result = lab.scrub("gpu-1-1g-0")
    assert result.outcome is Outcome.CERTIFIED
    assert lab.device("gpu-1-1g-0").state == State.CLEAN
    assert lab.device("gpu-1-1g-1").state == State.DIRTY
    assert lab.device("gpu-1").state == State.DIRTY
    written = held.read_bytes()
    assert written.count(b"\xaa") == len(written) - result.bytes.covered


class Interloper:
    """Starts workers, and lets something happen while one is being started."""

    def __init__(self, spawner: Spawner, happening: Callable[[], object]) -> None:
        self._spawner = spawner
        self._happening = happening

    def spawn(self, order: WipeOrder) -> Worker:
        """A real worker, late."""
        worker = self._spawner.spawn(order)
        self._happening()
        return worker

    def next_id(self, device: str) -> str:
        """The spawner's word."""
        return self._spawner.next_id(device)

    def close(self) -> None:
        self._spawner.close()


def meanwhile(lab: Lab, happening: Callable[[], object]) -> None:
    wiper = lab.node._parts.wiper
    wiper._workers = Interloper(wiper._workers, happening)  # type: ignore[assignment] # same methods


def test_a_token_closed_while_the_worker_starts_starts_no_wipe(lab: Lab) -> None:
    """V4: abandoned is abandoned; the token is judged again in the commit that starts the wipe."""
    order = lab.order(lease=lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a")))
    units, token = lab.device().units, Token.parse(order.token)

    def close_it() -> None:
        with lab.node._registry.commit() as commit:
            for unit in units:
                commit.put_unit(close_floor(commit.unit(UnitId(unit)), token))

    meanwhile(lab, close_it)
    lab.node.scrub([order])
    result = lab.result(order.operation)
    assert (result.outcome, result.state) == (Outcome.REFUSED, State.DIRTY)
    assert lab.node._registry.journal.workers() == []


def test_a_device_exposed_while_a_worker_starts_is_not_wiped(lab: Lab) -> None:
    """Promise 4: between the look and the commit a claim may have come; its memory is its own."""
    lease = lab.lease("gpu-0", holder=Holder(HolderKind.CLAIM, "claim-a"))
    lab.scrub(lease=lease)
    claim = lab.claim("claim-a", "gpu-0", lease=lease)
    registry, device = lab.node._registry, lab.node._registry.device("gpu-0")

    def take_it() -> None:
        with registry.commit() as commit:
            commit.put_unit(replace(commit.unit(device.units[0]), claim=ClaimUid("claim-a")))

    meanwhile(lab, take_it)
    certificate = lab.device().certificate
    result = lab.scrub(lease=lease)
    assert (result.outcome, result.state) == (Outcome.IN_USE, State.CLEAN)
    assert lab.device().certificate == certificate
    assert lab.node.prepare(claim).certificates == (certificate,)


def test_a_worker_gone_before_it_could_begin_leaves_dirty(lab: Lab) -> None:
    """No state is a trap: a worker that dies between journal and go leaves no WIPING behind."""

    class Dead:
        def __init__(self, worker: Worker) -> None:
            self._worker = worker
            self.identity, self.kill = worker.identity, worker.kill

        def go(self) -> None:
            self._worker.kill(5.0)
            self._worker.go()

    class Morgue(Interloper):
        def spawn(self, order: WipeOrder) -> Worker:
            return Dead(super().spawn(order))  # type: ignore[return-value] # as far as it gets

    wiper = lab.node._parts.wiper
    spawner = wiper._workers
    wiper._workers = Morgue(spawner, lambda: None)  # type: ignore[assignment] # same methods
    result = lab.scrub()
    assert (result.outcome, result.state) == (Outcome.FAILED, State.DIRTY)
    assert lab.node._registry.journal.workers() == []
    wiper._workers = spawner
    assert lab.scrub().outcome is Outcome.CERTIFIED


def test_a_partition_is_wiped_through_an_instance_made_for_it(lab: Lab) -> None:
    """gpus-8.31, gpus-8.33: the worker is shown the instance alone, and it is gone afterwards."""
    backend = parting(lab)
    wiper, seen = lab.node._parts.wiper, []
    spawn = wiper._workers.spawn

    class Watching(Interloper):
        def spawn(self, order: WipeOrder) -> Worker:
            seen.append((order.visible, [instance.uuid for instance in backend.there]))
            return spawn(order)

    wiper._workers = Watching(wiper._workers, lambda: None)  # type: ignore[assignment] # same methods
    assert lab.scrub("gpu-1-1g-0").outcome is Outcome.CERTIFIED
    assert lab.scrub("gpu-0").outcome is Outcome.CERTIFIED
    assert seen == [("MIG-1", ["MIG-1"]), ("", [])]
    assert backend.log == ["made gpu-1-1g-0", "removed gpu-1-1g-0"]


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [("dirty-word", Outcome.QUARANTINED), ("worker-crash", Outcome.INTERRUPTED)],
)
def test_a_wipe_that_fails_leaves_no_instance(lab: Lab, fault: str, outcome: Outcome) -> None:
    """Promise 7: a partition that is out of service, or dirty again, has no instance either."""
    backend = parting(lab)
    lab.fault(fault, device="gpu-1-1g-0")
    assert lab.scrub("gpu-1-1g-0").outcome is outcome
    assert (backend.there, len(backend.log)) == ([], 2)


def test_an_instance_of_somebody_else_is_neither_wiped_nor_trusted(lab: Lab) -> None:
    """Promise 4: its memory may be in use; what was CLEAN there is not any more."""
    backend = parting(lab)
    assert lab.scrub("gpu-1-1g-0").outcome is Outcome.CERTIFIED
    part = lab.node._registry.device("gpu-1-1g-0")
    stranger = backend.foreign(part.accelerator, part.units)
    result = lab.scrub("gpu-1-1g-0")
    assert (result.outcome, result.state) == (Outcome.BUSY, State.DIRTY)
    assert "not ours" in result.findings[0].detail
    assert lab.scrub("gpu-1-1g-1").outcome is Outcome.CERTIFIED, "its neighbour is not concerned"
    assert backend.there == [stranger]


def test_a_partition_that_cannot_be_made_is_said_to_be_and_not_wiped(lab: Lab) -> None:
    """gpus-8.33: "cannot run" is the result, with what to do; never "0 bytes, ok"."""
    parting(lab).refuses = "no room for it"
    result = lab.scrub("gpu-1-1g-0")
    assert (result.outcome, result.state, result.certificate) == (
        Outcome.FAILED,
        State.DIRTY,
        "",
    )
    assert "no room for it" in result.findings[0].detail
    assert result.findings[0].remedy
