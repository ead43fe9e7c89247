"""Rules of prepare and unprepare at the protocol's level."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
import pytest

from fleet.core import errors
from fleet.core.errors import FleetError
from fleet.plugin.requests import AskedClaim, PreparedClaim, PreparedDevice
from node_plugin.dra import CALLS_MAX, ClaimCalls, Stopping, answered, result_of
from node_plugin.metrics import ClaimFigures
from node_plugin.proto import dra_v1_pb2 as v1
from node_plugin.proto import dra_v1_pb2_grpc, dra_v1beta1_pb2_grpc
from node_plugin.proto import dra_v1beta1_pb2 as v1beta1
from tests.node_plugin.standins import (
    PATIENCE_S,
    ActedClaims,
    Gate,
    device_of,
    dialled,
    dra_of,
    plugin,
    started,
    to_prepare,
    to_unprepare,
    until,
)

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

FAULTS = {
    "refused": errors.DeviceBusy(
        "gpu-0 is held by claim other",
        remedy="wait for its end",
        told="gpu-0 is held by another claim",
    ),
    "cancelled": asyncio.CancelledError(),
    "cancelled-future": concurrent.futures.CancelledError(),
    "broken": ZeroDivisionError("division"),
    "exit": SystemExit(3),
}


def failing(claim: AskedClaim) -> PreparedClaim | FleetError:
    """Claims named after a fault have it; every other one is prepared."""
    fault = FAULTS.get(claim.uid)
    if fault is None:
        return device_of(claim)
    raise fault


def test_each_uid_gets_one_entry_whatever_fails(place: Path) -> None:
    """Invariant 10: exactly the UIDs asked for; each failure stays with its claim."""

    async def story() -> Mapping[str, v1.NodePrepareResourceResponse]:
        async with (
            started(plugin(place, ActedClaims(failing))) as server,
            dra_of(server.paths.dra) as stub,
        ):
            request = to_prepare("a", *FAULTS, "b")
            return dict((await stub.NodePrepareResources(request, timeout=PATIENCE_S)).claims)

    found = asyncio.run(story())
    assert set(found) == {"a", "b", *FAULTS}
    assert {uid for uid, entry in found.items() if entry.error} == set(FAULTS)
    assert found["refused"].error == "gpu-0 is held by another claim — wait for its end"
    assert "cut off" in found["cancelled"].error
    assert "cut off" in found["cancelled-future"].error
    assert "ZeroDivisionError" in found["broken"].error
    assert found["a"].devices[0].device_name == "dev-a"


def test_unprepare_too_gives_one_entry_each(place: Path) -> None:
    """Invariants 10 and 18: success is an empty entry, and one failure stays with its claim."""

    def undo(claim: AskedClaim) -> FleetError | None:
        if claim.uid == "running":
            return errors.Retryable("the tenant runs")
        if claim.uid == "broken":
            raise OSError("disk")
        return None

    async def story() -> Mapping[str, v1.NodeUnprepareResourceResponse]:
        async with (
            started(plugin(place, ActedClaims(undo=undo))) as server,
            dra_of(server.paths.dra) as stub,
        ):
            request = to_unprepare("gone", "running", "broken")
            return dict((await stub.NodeUnprepareResources(request)).claims)

    found = asyncio.run(story())
    assert found["gone"].error == ""
    assert found["running"].error.startswith("the tenant runs")
    assert "OSError: disk" in found["broken"].error


def test_a_uid_asked_twice_is_worked_on_once(place: Path) -> None:
    """A claim doubled in one request is worked on once; one UID with two names is an error."""
    behind = ActedClaims()

    async def story() -> v1.NodePrepareResourcesResponse:
        async with (
            started(plugin(place, behind)) as server,
            dra_of(server.paths.dra) as stub,
        ):
            request = to_prepare("a", "a", "b")
            request.claims.append(v1.Claim(namespace="other", uid="b", name="claim-b"))
            request.claims.append(v1.Claim(namespace="other", name="nameless"))
            return await stub.NodePrepareResources(request)

    found = asyncio.run(story()).claims
    assert behind.prepared.count("a") == 1
    assert not found["a"].error
    assert "tenant/claim-b and as other/claim-b" in found["b"].error or (
        "other/claim-b and as tenant/claim-b" in found["b"].error
    )
    assert "no UID" in found[""].error
    assert set(found) == {"a", "b", ""}


def test_claims_of_one_call_are_worked_on_side_by_side(place: Path) -> None:
    """Eight claims that each wait for the other seven are all prepared by one call."""
    together = threading.Barrier(8)

    def act(claim: AskedClaim) -> PreparedClaim:
        together.wait(PATIENCE_S)
        return device_of(claim)

    async def story() -> v1.NodePrepareResourcesResponse:
        async with (
            started(plugin(place, ActedClaims(act))) as server,
            dra_of(server.paths.dra) as stub,
        ):
            return await stub.NodePrepareResources(to_prepare(*"abcdefgh"))

    assert not any(entry.error for entry in asyncio.run(story()).claims.values())


def test_no_claims_is_no_work(place: Path) -> None:
    """An empty request has an empty answer."""

    async def story() -> None:
        async with (
            started(plugin(place)) as server,
            dra_of(server.paths.dra) as stub,
        ):
            assert not (await stub.NodePrepareResources(to_prepare())).claims
            assert not (await stub.NodeUnprepareResources(to_unprepare())).claims

    asyncio.run(story())


@pytest.mark.parametrize("ending", ["deadline", "cancel", "disconnect"])
def test_a_call_that_ends_early_does_not_end_the_work(place: Path, ending: str) -> None:
    """B03: deadline, cancellation or a broken connection end the wait; the work goes on."""
    gate, ended = Gate(), threading.Event()

    def act(claim: AskedClaim) -> PreparedClaim | FleetError:
        found = gate(claim)
        ended.set()
        return found

    async def story() -> None:
        async with started(plugin(place, ActedClaims(act))) as server:
            async with dra_of(server.paths.dra) as stub:
                call = stub.NodePrepareResources(
                    to_prepare("a"), timeout=0.2 if ending == "deadline" else PATIENCE_S
                )
                task = asyncio.ensure_future(_code(call))
                assert await asyncio.to_thread(gate.entered.acquire, timeout=PATIENCE_S)
                if ending == "cancel":
                    call.cancel()
                if ending != "disconnect":
                    assert await task in (
                        grpc.StatusCode.DEADLINE_EXCEEDED,
                        grpc.StatusCode.CANCELLED,
                    )
            await task
            assert server.claims_in_work == 1
            assert not ended.is_set()
            gate.opened.set()
            await until(lambda: server.claims_in_work == 0, "the work's end")
            assert ended.is_set()
            assert server.figures.count("prepare", "done") == 1

    asyncio.run(story())


async def _code(call: grpc.aio.UnaryUnaryCall[Asked, Answered]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return grpc.StatusCode.CANCELLED
    return grpc.StatusCode.OK


def test_work_that_takes_too_long_is_answered_before_kubelet_gives_up(place: Path) -> None:
    """Invariant 16: the slow claim gets a retryable error in time, the others their answer."""
    gate = Gate()

    def act(claim: AskedClaim) -> PreparedClaim | FleetError:
        return gate(claim) if claim.uid == "slow" else device_of(claim)

    async def story() -> v1.NodePrepareResourcesResponse:
        async with (
            started(plugin(place, ActedClaims(act), answer_s=0.2)) as server,
            dra_of(server.paths.dra) as stub,
        ):
            found = await stub.NodePrepareResources(to_prepare("slow", "fast"))
            gate.opened.set()
            await until(lambda: server.claims_in_work == 0, "the work's end")
            return found

    found = asyncio.run(story()).claims
    assert "still in work" in found["slow"].error
    assert found["fast"].devices


def test_repeats_reach_the_port_and_answer_like_the_first(place: Path) -> None:
    """B03: kubelet's repeated calls after its deadline wait until the work has ended."""
    gate = Gate()

    async def story() -> None:
        async with (
            started(plugin(place, ActedClaims(gate))) as server,
            dra_of(server.paths.dra) as stub,
        ):
            first = stub.NodePrepareResources(to_prepare("a"), timeout=0.2)
            assert await _code(first) is grpc.StatusCode.DEADLINE_EXCEEDED
            repeats = [stub.NodePrepareResources(to_prepare("a")) for _ in range(3)]
            tasks = [asyncio.ensure_future(_code(call)) for call in repeats]
            for _ in range(4):
                assert await asyncio.to_thread(gate.entered.acquire, timeout=PATIENCE_S)
            assert not any(task.done() for task in tasks)
            gate.opened.set()
            assert [await task for task in tasks] == [grpc.StatusCode.OK] * 3

    asyncio.run(story())


def test_kubelets_of_any_age_are_served_alike(place: Path) -> None:
    """B82, invariant 39: v1beta1 works like v1, without share ids."""
    shared = PreparedClaim((PreparedDevice(("gpu/x",), "pool", "dev", ("a.com/gpu=1",), "share"),))
    behind = ActedClaims(lambda _: shared)

    async def story() -> None:
        async with started(plugin(place, behind)) as server:
            async with dialled(server.paths.dra) as channel:
                newer = await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
                    to_prepare("a")
                )
                stub = dra_v1beta1_pb2_grpc.DRAPluginStub(channel)
                claim = v1beta1.Claim(namespace="tenant", uid="a", name="claim-a")
                older = await stub.NodePrepareResources(
                    v1beta1.NodePrepareResourcesRequest(claims=[claim])
                )
                gone = await stub.NodeUnprepareResources(
                    v1beta1.NodeUnprepareResourcesRequest(claims=[claim])
                )
            assert newer.claims["a"].devices[0].share_id == "share"
            assert "share_id" not in v1beta1.Device.DESCRIPTOR.fields_by_name
            assert older.claims["a"].devices[0].device_name == "dev"
            assert list(older.claims["a"].devices[0].request_names) == ["gpu"]
            assert dict(gone.claims) == {"a": v1beta1.NodeUnprepareResourceResponse()}

    asyncio.run(story())
    assert (behind.prepared, behind.unprepared) == (["a", "a"], ["a"])


@pytest.mark.parametrize(
    "method",
    [
        "/k8s.io.kubelet.pkg.apis.dra.v1alpha4.Node/NodePrepareResources",
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeReset",
        "/v1.DRAPlugin/NodePrepareResources",
    ],
)
def test_unknown_methods_are_unimplemented(place: Path, method: str) -> None:
    """B82: a kubelet that offers neither version learns it at once and cleanly."""

    async def story() -> grpc.StatusCode:
        async with (
            started(plugin(place)) as server,
            dialled(server.paths.dra) as channel,
        ):
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            return await _code(call(b"", timeout=PATIENCE_S))

    assert asyncio.run(story()) is grpc.StatusCode.UNIMPLEMENTED


def test_a_stray_cancellation_becomes_a_status(place: Path) -> None:
    """B03: a CancelledError that is not the call's own would leave kubelet waiting for its deadline
    (see the case's probe); it is answered with ABORTED."""

    async def lost() -> bytes:
        raise asyncio.CancelledError

    async def serve(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return await answered(context, lost())

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(serve)
    service = grpc.method_handlers_generic_handler("s", {"m": method})

    async def story() -> grpc.StatusCode:
        server = grpc.aio.server(handlers=[service])
        server.add_insecure_port(f"unix:{place}/s")
        await server.start()
        async with dialled(place / "s") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/s/m")
            code = await _code(call(b"", timeout=PATIENCE_S))
        await server.stop(0)
        return code

    assert asyncio.run(story()) is grpc.StatusCode.ABORTED


def test_a_full_house_refuses_with_a_retryable_error() -> None:
    """More claims than any node can hold are refused one by one, at once, and nothing is queued."""
    gate = Gate()

    async def story() -> dict[str, PreparedClaim | FleetError]:
        calls = ClaimCalls(ActedClaims(gate), figures=ClaimFigures(), answer_s=PATIENCE_S)
        full = asyncio.ensure_future(
            calls.prepare([AskedClaim("n", f"u{number}", "c") for number in range(CALLS_MAX)])
        )
        await until(lambda: calls.in_work == CALLS_MAX, "a full house")
        refused = await calls.prepare([AskedClaim("n", "late", "c")])
        gate.opened.set()
        assert all(isinstance(found, PreparedClaim) for found in (await full).values())
        return refused

    assert isinstance(asyncio.run(story())["late"], errors.Retryable)


def test_draining_takes_no_more_calls() -> None:
    """Once the plugin is being stopped no call is begun, so that the stop comes to an end."""

    async def story() -> None:
        behind = ActedClaims()
        calls = ClaimCalls(behind, figures=ClaimFigures())
        await calls.drain(0.1)
        with pytest.raises(Stopping):
            await calls.prepare([AskedClaim("n", "u", "c")])
        with pytest.raises(Stopping):
            await calls.unprepare([AskedClaim("n", "u", "c")])
        assert behind.prepared == []

    asyncio.run(story())


def test_a_port_that_forgets_a_claim_is_an_error_of_that_claim() -> None:
    """Invariant 10: a missing outcome is reported; kubelet takes a missing entry for "skipped"."""

    class Forgetful(ActedClaims):
        def prepare(self, asked: Sequence[AskedClaim]) -> Mapping[str, PreparedClaim | FleetError]:
            return dict(list(super().prepare(asked).items())[:0])

    async def story() -> dict[str, PreparedClaim | FleetError]:
        calls = ClaimCalls(Forgetful(), figures=ClaimFigures())
        return await calls.prepare([AskedClaim("n", "u", "c")])

    assert isinstance(asyncio.run(story())["u"], errors.Unforeseen)


def test_outcomes_are_counted_by_what_can_be_done_about_them() -> None:
    """Results tell a retry from a decision from a fault of ours."""
    assert result_of(PreparedClaim()) == "done"
    assert result_of(None) == "done"
    assert result_of(errors.ClaimUnready("x")) == "retryable"
    assert result_of(errors.ClaimReplaced("x")) == "refused"
    assert result_of(errors.Unforeseen("x")) == "unforeseen"
