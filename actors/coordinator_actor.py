"""The coordinator's actor: a plain synchronous one, forwarding batches to
`fleet.control.coordinator`.

Sync on purpose: it is twice as fast as an async actor for work of microseconds, and every decision
is one transaction of the stores anyway. One call at a time is what makes check-then-act safe here
(B08); those about leases that wait for their turn share it, and its commit (`fleet.core.batches`).
Only a ping waits for none. Nothing lives in this object: a restart opens the stores again (B42).

Messages cross as JSON and are validated on arrival; a refusal stands in an answer as an error.

Where it reconciles the claims of a cluster, a thread does that (`fleet.control.binding.loop`):
calls wait for no step of it, only for the store. A store that does not answer at the start is
waited for, since Ray starts no actor again whose constructor failed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from actors import methods
from actors.identity import COORDINATOR_LABEL, HOST_LABEL, PRIVATE_UMASK, coordinator_digest
from actors.metrics import Reporter
from actors.translate import StartRefused, unforeseen
from fleet.control.coordinator_api import CoordinatorApi
from fleet.core import errors, logs
from fleet.core.batches import Batches
from fleet.core.leases import AcquireRequest
from fleet.core.model import Lease
from fleet.core.settings import StoreKind
from fleet.metrics import of_coordinator
from fleet.metrics.metric import Sample
from fleet.rpc.calls import Verb, answer
from fleet.stores.base import Release, Renewal
from fleet.wiring.plans import CoordinatorPlan

if TYPE_CHECKING:
    from fleet.control.binding.liveness import Heartbeat
    from fleet.control.binding.loop import Loop, Reconciling
    from fleet.control.coordinator import Coordinator

LOG = logging.getLogger(__name__)
REOPEN_S = 1.0
"""Pause, s, before a store that did not answer is asked again."""

RUNS_TOLD = 5
"""Newest campaign runs behind the metrics."""

LEASE_THREADS = 32
"""Calls about leases that may wait for a commit together."""
Method = TypeVar("Method", bound=Callable[..., Any])


def waiting_together(method: Method) -> Method:
    """Mark a method that Ray may run several times at once: it takes turns by itself."""
    marked: Method = ray.method(concurrency_group="leases")(method)
    return marked


def waiting_for_none(method: Method) -> Method:
    """Mark a method that is answered whatever else goes on (B59)."""
    marked: Method = ray.method(concurrency_group="status")(method)
    return marked


def open_coordinator(plan: str) -> Coordinator:
    """Open the coordinator that `plan`, a `CoordinatorPlan` as JSON, describes."""
    from fleet.wiring import adapters

    return adapters.open_coordinator(CoordinatorPlan.model_validate_json(plan))


def open_binding(plan: str, coordinator: Coordinator) -> Reconciling:
    """What the loop of `plan` steps, over the nodes behind Ray."""
    from actors.nodes import RayNodes
    from fleet.wiring import coordinator as wiring_coordinator

    read = CoordinatorPlan.model_validate_json(plan)
    nodes = RayNodes()
    return wiring_coordinator.behind_actors(read, coordinator, nodes, ends=nodes.heads)


def _begun(opener: Callable[[], Reconciling], plan: CoordinatorPlan) -> tuple[Loop, Heartbeat]:
    from fleet.control.binding.loop import Loop
    from fleet.wiring import coordinator as wiring_coordinator

    loop = Loop(opener, selecting=plan.nodes)
    heartbeat = wiring_coordinator.heartbeat(plan, loop)
    loop.start()
    heartbeat.start()
    return loop, heartbeat


class CoordinatorActor:
    """Serves leases, runs and chain heads to the fleet. Works without Ray as well, for tests."""

    def __init__(
        self,
        plan: str,
        opener: Callable[[str], Coordinator] = open_coordinator,
        binder: Callable[[str, Coordinator], Reconciling] = open_binding,
    ) -> None:
        """Reads the stores before it answers anything. Raises `StartRefused` around our errors."""
        os.umask(PRIVATE_UMASK)
        if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
            logs.begin("coordinator", level=logging.INFO)
        self._plan = plan
        self._opener = opener
        self._opened: Coordinator | None = None
        self._opening = threading.Lock()
        self._refused: errors.FleetError | None = None
        self._refused_at = float("-inf")
        self._loop: Loop | None = None
        self._heartbeat: Heartbeat | None = None
        self._turn = threading.Lock()
        self._leasing = _Leasing(self._turn, self._open)
        try:
            with suppress(errors.Retryable):  # it is in the log, and asked for again
                self._open()
            read = CoordinatorPlan.model_validate_json(plan)
            if read.kubernetes:
                opened = _begun(lambda: binder(plan, self._current()), read)
                self._loop, self._heartbeat = opened
        except errors.FleetError as error:
            raise StartRefused.of(error) from error
        except Exception as error:
            raise StartRefused.of(unforeseen("coordinator", "start", error)) from error
        self._reporter = Reporter(self.samples)
        if ray.is_initialized():  # elsewhere nobody would hear it
            self._reporter.start()

    def __repr__(self) -> str:
        # Ray asks also an actor whose start was refused: an error here would hide the reason. It
        # asks once, after the start, and its dashboard shows the answer for good.
        try:
            view = self._coordinator.view()
        except (AttributeError, errors.FleetError):
            return "CoordinatorActor(at its start: not serving)"
        shown = f"leases={view.leases}, open_runs={len(view.open_runs)}"
        return f"CoordinatorActor(at its start: {shown})"

    @waiting_for_none
    def ping(self) -> int:
        """Proof of life: the process id. Waits for no other call."""
        return os.getpid()

    @waiting_for_none
    def alive(self) -> str:
        """How it stands with the claims of the cluster (`Alive`), by itself; "" where it reconciles
        none. Waits for no other call, and for no store."""
        return self._heartbeat.now().model_dump_json() if self._heartbeat is not None else ""

    @waiting_for_none
    def made_from(self) -> str:
        """Digest of the plan it was made from, see `identity.coordinator_digest`."""
        return coordinator_digest(self._plan)

    @property
    def lease_calls_waiting(self) -> int:
        """Calls about leases that wait for the commit under way."""
        return self._leasing.waiting

    def samples(self) -> Iterable[Sample]:
        """The figures of now; without the store, what is known without it. Raises nothing."""
        binding = None if self._loop is None else self._loop.view()
        try:
            coordinator = self._open()
            view = coordinator.view().model_copy(update={"binding": binding})
            return tuple(of_coordinator.samples(view, coordinator.runs(RUNS_TOLD)))
        except errors.FleetError as error:
            LOG.warning("the store is not told about: %s", error)
            return tuple(of_coordinator.unreachable(binding))

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _coordinator(self) -> Coordinator:
        return self._open()

    def _current(self) -> Coordinator:
        """The coordinator for a loop that begins, opened anew where its store was replaced."""
        try:
            self._open().newest()
        except errors.FleetError as error:
            if not error.fields.get("replaced"):
                raise
            with self._opening:
                self._opened = None
        return self._open()

    def _open(self) -> Coordinator:
        """The coordinator, opened at most once. Raises why it is not, asking once a second."""
        with self._opening:
            if self._opened is not None:
                return self._opened
            if self._refused is not None and time.monotonic() - self._refused_at < REOPEN_S:
                raise self._refused
            try:
                self._opened = self._opener(self._plan)
            except errors.FleetError as error:
                LOG.warning("the coordinator does not serve: %s", error)
                self._refused, self._refused_at = error, time.monotonic()
                raise
            return self._opened


class _Leasing(CoordinatorApi):
    """Leases of callers that come together, decided in one transaction."""

    def __init__(self, turn: threading.Lock, coordinator: Callable[[], Coordinator]) -> None:
        self._coordinator = coordinator
        self._acquiring = Batches[AcquireRequest, Lease | errors.FleetError](turn=turn)
        self._renewing = Batches[Renewal, Lease | errors.FleetError](turn=turn)
        self._releasing = Batches[Release, bool | errors.FleetError](turn=turn)

    @property
    def waiting(self) -> int:
        """Calls that wait for the commit under way."""
        kinds = (self._acquiring, self._renewing, self._releasing)
        return sum(kind.waiting for kind in kinds)

    def acquire(
        self, requests: Sequence[AcquireRequest], *, out_of_service_max: int | None = None
    ) -> Sequence[Lease | errors.FleetError]:
        """As `CoordinatorApi.acquire`."""

        def act(asked: Sequence[AcquireRequest]) -> Sequence[Lease | errors.FleetError]:
            return self._coordinator().acquire(asked, out_of_service_max=out_of_service_max)

        return self._acquiring.ask(requests, act, alike=out_of_service_max)

    def renew_all(self, renewals: Sequence[Renewal]) -> Sequence[Lease | errors.FleetError]:
        """As `CoordinatorApi.renew_all`."""
        return self._renewing.ask(renewals, lambda asked: self._coordinator().renew_all(asked))

    def release_all(self, releases: Sequence[Release]) -> Sequence[bool | errors.FleetError]:
        """As `CoordinatorApi.release_all`."""
        return self._releasing.ask(releases, lambda asked: self._coordinator().release_all(asked))


def _answered(actor: CoordinatorActor, verb: Verb, given: Mapping[str, Any]) -> Any:
    """What the coordinator answers to a verb, a JSON value."""
    with _answering(verb.name):
        if verb.name in methods.LEASES:
            return answer(verb, actor._leasing, given)
        with actor._turn:
            found = answer(verb, actor._coordinator, given)
            if verb.name == "view" and actor._loop is not None:
                found["binding"] = actor._loop.view().model_dump(mode="json")
            return found


@contextmanager
def _answering(call: str) -> Iterator[None]:
    """Whatever a library raises inside leaves as an error of ours (B60)."""
    try:
        yield
    except errors.FleetError:
        raise
    except Exception as error:
        raise unforeseen("coordinator", call, error) from error


def placement(
    plan: str, *, host: str, raylets: Iterable[Mapping[str, Any]] = ()
) -> Mapping[str, Any]:
    """Where Ray may start a coordinator of `plan`: on `host`, if its store is a file there.

    With a store of a cluster, on any, else losing one host would be the end of it; but only on
    those meant for it where one of the `raylets` is: its rights at the API are those of its pod.
    """
    if CoordinatorPlan.model_validate_json(plan).settings.store.kind is StoreKind.SQLITE:
        return {"label_selector": {HOST_LABEL: host}}
    meant = any(one["Alive"] and one["Labels"].get(COORDINATOR_LABEL) for one in raylets)
    return {"label_selector": {COORDINATOR_LABEL: "true"}} if meant else {}


for _verb, _name in methods.RUNS.items():
    setattr(CoordinatorActor, _name, methods.coordinator_method(_verb, _answered))
for _verb, _name in methods.LEASES.items():
    _method = methods.coordinator_method(_verb, _answered)
    setattr(CoordinatorActor, _name, waiting_together(_method))

_OPTIONS: dict[str, Any] = {
    "num_cpus": 0,
    "max_restarts": -1,
    "max_task_retries": 0,
    "concurrency_groups": {"leases": LEASE_THREADS, "status": 1},
}
REMOTE_COORDINATOR_ACTOR: Any = ray.remote(**_OPTIONS)(CoordinatorActor)
"""The class as Ray starts it."""
