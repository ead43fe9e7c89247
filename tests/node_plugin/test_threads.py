"""Rules of calls in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from node_plugin.threads import CallThreads
from tests.node_plugin.standins import PATIENCE_S, until


def until_open(gate: threading.Event, ended: threading.Event) -> None:
    """Work that ends when `gate` opens."""
    assert gate.wait(PATIENCE_S)
    ended.set()


def test_a_call_runs_beside_the_loop_and_gives_its_outcome() -> None:
    """The loop goes on while a call blocks, and gets what the call returns."""

    async def story() -> int:
        threads, gate = CallThreads(calls_max=2), threading.Event()
        waiter = threads.start(lambda: 7 if gate.wait(PATIENCE_S) else 0)
        assert threads.in_work == 1
        gate.set()
        return await waiter

    assert asyncio.run(story()) == 7


def test_a_cancelled_wait_leaves_the_call_alone() -> None:
    """B03: whoever waited may go; the call goes on to its end and is counted until then."""

    async def story() -> None:
        threads, gate, ended = CallThreads(calls_max=1), threading.Event(), threading.Event()
        waiter = threads.start(lambda: until_open(gate, ended))
        waiter.cancel()
        assert threads.in_work == 1
        gate.set()
        await until(lambda: threads.in_work == 0, "the call's end")
        assert ended.is_set()

    asyncio.run(story())


def test_a_closed_loop_leaves_the_call_alone(recwarn: pytest.WarningsRecorder) -> None:
    """A call that outlives the loop ends in silence: nobody waits for it any more."""
    gate, ended = threading.Event(), threading.Event()
    threads = CallThreads(calls_max=1)

    async def story() -> None:
        threads.start(lambda: until_open(gate, ended))

    asyncio.run(story())
    gate.set()
    assert ended.wait(PATIENCE_S)
    for thread in threading.enumerate():
        if thread.name.startswith("claim-call-"):
            thread.join(PATIENCE_S)
    assert threads.in_work == 0
    assert not recwarn.list


def test_no_call_is_queued() -> None:
    """One call too many is refused at once: it would start when nobody expects it any more."""

    async def story() -> None:
        threads, gate = CallThreads(calls_max=1), threading.Event()
        first = threads.start(lambda: gate.wait(PATIENCE_S))
        with pytest.raises(RuntimeError):
            threads.start(lambda: True)
        gate.set()
        assert await first
        assert await threads.start(lambda: "again") == "again"

    asyncio.run(story())
