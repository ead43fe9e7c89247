"""NodePrepareResources and NodeUnprepareResources: one implementation, served in two versions.

Kubelet's call has a deadline, the work on a claim has none: every claim of a call is worked on in a
thread of its own, and the call only waits for it. So a deadline, a broken connection or our own
shutdown never stops work in the middle (case B03), one claim's trouble never reaches its
neighbour, and each UID asked for gets exactly one entry.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import grpc
import grpc.aio

from fleet.core import errors, logs
from fleet.core.errors import FleetError
from fleet.plugin.requests import AskedClaim, PreparedClaim
from node_plugin import translate
from node_plugin.metrics import ClaimFigures
from node_plugin.ports import Claims
from node_plugin.proto import dra_v1_pb2 as v1
from node_plugin.proto import dra_v1beta1_pb2 as v1beta1
from node_plugin.proto.dra_v1_pb2_grpc import DRAPluginServicer as V1Servicer
from node_plugin.proto.dra_v1beta1_pb2_grpc import DRAPluginServicer as V1Beta1Servicer
from node_plugin.threads import CallThreads, settle

T = TypeVar("T")
Request = TypeVar("Request")
Answer = TypeVar("Answer")
Outcome = TypeVar("Outcome")

ANSWER_S = 43.0
"""Time, s, after which a call answers without the claims that are not finished: kubelet gives up
after 45 s, and would then throw away the entries of those that are."""
CALLS_MAX = 128
"""Claims in work at once: more than twice what the largest node can hold (8 devices of 7 parts)."""

_log = logging.getLogger(__name__)


class Stopping(Exception):
    """The plugin is being stopped and takes no more calls, or this call did not end in time."""


class ClaimCalls:
    """The work behind both versions. All methods belong to the server's event loop."""

    def __init__(
        self, claims: Claims, *, figures: ClaimFigures, answer_s: float = ANSWER_S
    ) -> None:
        self._claims = claims
        self._figures = figures
        self._answer_s = answer_s
        self._threads = CallThreads(calls_max=CALLS_MAX)
        self._closed = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._endings: set[Callable[[], None]] = set()
        """For each claim somebody waits for: ends the waiting."""

    @property
    def in_work(self) -> int:
        """Claims in work, also those whose call was given up. Safe for threads."""
        return self._threads.in_work

    async def prepare(self, asked: Sequence[AskedClaim]) -> dict[str, PreparedClaim | FleetError]:
        """The outcome for each UID. Raises `Stopping`."""

        def one(claim: AskedClaim) -> PreparedClaim | FleetError:
            found = self._claims.prepare([claim]).get(claim.uid)
            return found if found is not None else _forgotten(claim)

        return await self._each(asked, "prepare", one)

    async def unprepare(self, asked: Sequence[AskedClaim]) -> dict[str, FleetError | None]:
        """What went wrong for each UID, or None. Raises `Stopping`."""
        return await self._each(asked, "unprepare", self._claims.unprepare)

    async def drain(self, grace_s: float) -> None:
        """Take no more calls, and wait up to `grace_s` for those in flight; the rest is answered
        with `Stopping`. The work on their claims goes on as long as the process lives."""
        self._closed = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
        for end in list(self._endings):
            end()

    async def _each(
        self,
        asked: Sequence[AskedClaim],
        verb: str,
        one: Callable[[AskedClaim], Outcome],
    ) -> dict[str, Outcome | FleetError]:
        if self._closed:
            raise Stopping
        distinct, answers = _distinct(asked)
        self._calls += 1
        self._idle.clear()
        try:
            waiters = {claim.uid: self._start(claim, verb, one) for claim in distinct}
            if waiters:
                await asyncio.wait(waiters.values(), timeout=self._answer_s)
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
        found: dict[str, Outcome | FleetError] = {**answers}
        for uid, waiter in waiters.items():
            outcome = waiter.result() if waiter.done() else self._unfinished(uid)
            if isinstance(outcome, _Stopped):
                raise Stopping
            found[uid] = outcome
        return found

    def _start(
        self, claim: AskedClaim, verb: str, one: Callable[[AskedClaim], Outcome]
    ) -> asyncio.Future[Outcome | FleetError | _Stopped]:
        started = time.monotonic()

        def work() -> Outcome | FleetError | _Stopped:
            outcome = _guarded(claim, verb, one)
            if isinstance(outcome, FleetError) and outcome.told != str(outcome):
                _log.info("%s: %s", verb, outcome, extra={"claim": claim.uid})
            self._figures.add(verb, result_of(outcome), time.monotonic() - started)
            return outcome

        waiter: asyncio.Future[Outcome | FleetError | _Stopped]
        try:
            waiter = self._threads.start(work)
        except RuntimeError as error:
            refusal = errors.DeviceBusy(
                f"claim {claim.uid} cannot be worked on now: {error}",
                remedy="kubelet asks again; see `fleet status` for what keeps the claims",
            )
            self._figures.add(verb, result_of(refusal), 0.0)
            waiter = asyncio.get_running_loop().create_future()
            waiter.set_result(refusal)
        end = partial(settle, waiter, _STOPPING)
        self._endings.add(end)
        waiter.add_done_callback(lambda _: self._endings.discard(end))
        return waiter

    def _unfinished(self, uid: str) -> FleetError:
        return errors.Retryable(
            f"claim {uid} is still in work after {self._answer_s:g} s",
            remedy="kubelet asks again and joins the work, which goes on meanwhile",
        )


class _Stopped:
    """Stands for the outcome of a claim whose call ends because the plugin does."""


_STOPPING = _Stopped()


def result_of(outcome: object) -> str:
    """Under which result a claim is counted."""
    if isinstance(outcome, errors.Unforeseen):
        return "unforeseen"
    if isinstance(outcome, errors.Retryable):
        return "retryable"
    return "refused" if isinstance(outcome, FleetError) else "done"


def _guarded(
    claim: AskedClaim, verb: str, one: Callable[[AskedClaim], Outcome]
) -> Outcome | FleetError:
    """What `one` returns or raises, as a value: whatever happens stays with this claim."""
    try:
        with logs.about(claim=claim.uid):
            return one(claim)
    except FleetError as error:
        return error
    except (asyncio.CancelledError, concurrent.futures.CancelledError):
        # Some call underneath was cancelled, not this one: letting it out would leave kubelet
        # without any answer until its deadline.
        return errors.Retryable(f"the {verb} of claim {claim.uid} was cut off inside this node")
    except BaseException as error:  # noqa: BLE001 - kubelet must get an answer
        _log.exception("%s of claim %s failed unexpectedly", verb, claim.uid)
        return errors.Unforeseen(
            f"the {verb} of claim {claim.uid} failed: {type(error).__name__}: {error}",
            remedy="see the log of the node plugin; this is a fault of the product, report it",
        )


def _distinct(asked: Sequence[AskedClaim]) -> tuple[list[AskedClaim], dict[str, FleetError]]:
    """Each UID once. One UID under two names is no claim anybody can mean."""
    found: dict[str, AskedClaim] = {}
    refused: dict[str, FleetError] = {}
    for claim in asked:
        if not claim.uid:
            refused[""] = errors.InputInvalid(f"claim {claim.namespace}/{claim.name} has no UID")
        elif found.setdefault(claim.uid, claim) != claim:
            refused[claim.uid] = errors.InputInvalid(
                f"one call names claim {claim.uid} as {claim.namespace}/{claim.name} and as"
                f" {found[claim.uid].namespace}/{found[claim.uid].name}"
            )
    return [claim for uid, claim in found.items() if uid not in refused], refused


def _forgotten(claim: AskedClaim) -> FleetError:
    return errors.Unforeseen(f"no outcome was given for claim {claim.uid}")


async def answered(context: grpc.aio.ServicerContext[Request, Answer], work: Awaitable[T]) -> T:
    """Await `work` and turn what is no answer into a status, so that kubelet never waits in vain.

    A cancellation that is not the call's own would end the task without any status: gRPC sends
    nothing then, and the client waits for its deadline (seen with case B03's probe).
    """
    try:
        return await work
    except Stopping:
        await context.abort(
            grpc.StatusCode.UNAVAILABLE, "the plugin is stopping; ask again once it is back"
        )
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        await context.abort(grpc.StatusCode.ABORTED, "cut off inside the plugin; ask again")


class DraV1(V1Servicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin``."""

    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(  # noqa: N802 - kubelet names it
        self,
        request: v1.NodePrepareResourcesRequest,
        context: grpc.aio.ServicerContext[
            v1.NodePrepareResourcesRequest, v1.NodePrepareResourcesResponse
        ],
    ) -> v1.NodePrepareResourcesResponse:
        """Prepare each claim; see `ClaimCalls.prepare`."""
        asked = translate.asked_claims(request.claims)
        return translate.prepared_v1(await answered(context, self._calls.prepare(asked)))

    async def NodeUnprepareResources(  # noqa: N802 - kubelet names it
        self,
        request: v1.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext[
            v1.NodeUnprepareResourcesRequest, v1.NodeUnprepareResourcesResponse
        ],
    ) -> v1.NodeUnprepareResourcesResponse:
        """Unprepare each claim; see `ClaimCalls.unprepare`."""
        asked = translate.asked_claims(request.claims)
        return translate.unprepared_v1(await answered(context, self._calls.unprepare(asked)))


class DraV1Beta1(V1Beta1Servicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin``, for kubelets that know nothing newer."""

    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(  # noqa: N802 - kubelet names it
        self,
        request: v1beta1.NodePrepareResourcesRequest,
        context: grpc.aio.ServicerContext[
            v1beta1.NodePrepareResourcesRequest, v1beta1.NodePrepareResourcesResponse
        ],
    ) -> v1beta1.NodePrepareResourcesResponse:
        """Prepare each claim; see `ClaimCalls.prepare`."""
        asked = translate.asked_claims(request.claims)
        return translate.prepared_v1beta1(await answered(context, self._calls.prepare(asked)))

    async def NodeUnprepareResources(  # noqa: N802 - kubelet names it
        self,
        request: v1beta1.NodeUnprepareResourcesRequest,
        context: grpc.aio.ServicerContext[
            v1beta1.NodeUnprepareResourcesRequest, v1beta1.NodeUnprepareResourcesResponse
        ],
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        """Unprepare each claim; see `ClaimCalls.unprepare`."""
        asked = translate.asked_claims(request.claims)
        return translate.unprepared_v1beta1(await answered(context, self._calls.unprepare(asked)))
