"""Work on a GPU in processes that can be ended: our own children, tenants, and the wipe worker."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from fleet.core.model import Accelerator, Device, Uuid
from fleet.core.processes import MARKER
from fleet.core.settings import WipePolicy
from fleet.devices.wipe import plan
from fleet.devices.wipe.environment import environment
from fleet.devices.wipe.result import WipeResult
from fleet.devices.wipe.workers import Finished, Spawner

POLL_S = 0.005


class WorkFailed(AssertionError):
    """A child failed, or was ended at its time limit."""


def ask(
    what: str,
    order: Mapping[str, Any],
    *,
    limit_s: float,
    visible: str = "",
    extra: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run ``tests.gpu.child`` for one order and return its answer. Raises `WorkFailed`.

    `visible`: UUID of the one device the child sees.
    """
    seen = environment(os.environ, uuid.uuid4().hex, visible)
    try:
        done = subprocess.run(
            (sys.executable, "-P", "-m", "tests.gpu.child", what),
            input=json.dumps(order),
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={**seen, **(extra or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise WorkFailed(f"{what} was ended after {limit_s:.0f} s: {error.stderr!r}") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise WorkFailed(f"{what}: exit {done.returncode}: {done.stderr[-3000:]}") from None
    if "error" in answer:
        raise WorkFailed(f"{what}: {answer['error']}")
    return answer


class Tenant:
    """A tenant on one GPU (`fleet.devices.nvidia.tenant`), not one of our processes."""

    def __init__(self, visible: str) -> None:
        seen = environment(os.environ, "", visible)
        del seen[MARKER]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the tenant
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "fleet.devices.nvidia.tenant"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=seen,
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ask(self, what: str, secret: bytes, *, limit_s: float) -> dict[str, int]:
        """``plant`` or ``search``; blocks and bytes of memory. Raises `WorkFailed`."""
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(json.dumps({"do": what, "secret": secret.hex()}).encode() + b"\n")
        orders.flush()
        if not select.select((answers,), (), (), limit_s)[0]:
            self.kill()
            raise WorkFailed(f"a tenant did not {what} in {limit_s:.0f} s")
        line = answers.readline()
        answer = json.loads(line) if line else {"error": self._said()}
        if "error" in answer:
            raise WorkFailed(f"a tenant could not {what}: {answer['error']}")
        return dict(answer)

    def kill(self) -> None:
        """End it as it stands: nothing is given back but by the driver."""
        self._process.kill()
        self._process.wait(30)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()

    def _said(self) -> str:
        self._process.wait(10)
        self._errors.seek(0)
        return self._errors.read()[-3000:].decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._errors.closed:
            self.kill()


@dataclass(frozen=True)
class Wiped:
    """A wipe that came to its end. Times are seconds by the host's clock."""

    result: WipeResult
    ready_s: float
    """From starting the worker until it waits for its go."""
    wall_s: float
    """From its go until it has left."""
    worker: str


def order(
    settings: Mapping[str, Any], one: Accelerator, device: Device, *, visible: str = ""
) -> plan.WipeOrder:
    """An order under the default policy, as the node would give it."""
    target = plan.Target(
        backend="nvidia",
        settings=settings,
        accelerator=one.uuid,
        device=device.uuid,
        units=device.units,
        size_bytes=device.memory_bytes,
        visible=visible,
        peak_bytes_per_s=float(device.attributes.get("memory_rate_bytes_per_s") or 0),
    )
    return plan.order(target, WipePolicy(), worker_id=uuid.uuid4().hex, nonce=secrets.token_hex(32))


def wipe(given: plan.WipeOrder, *, contained: bool, limit_s: float) -> Wiped:
    """Have a worker carry an order out. Raises `WorkFailed` when there is no complete report."""
    if contained:
        return _in_a_child(given, limit_s)
    spawner = Spawner()
    try:
        began = time.monotonic()
        worker = spawner.spawn(given)
        ready = time.monotonic()
        worker.go()
        while (ended := worker.poll()) is None:
            if time.monotonic() - ready > limit_s:
                gone = worker.kill(10)
                raise WorkFailed(
                    f"the worker was ended after {limit_s:.0f} s in {worker.progress()}"
                    f" ({'gone' if gone else 'and lives on'})"
                )
            time.sleep(POLL_S)
        if not isinstance(ended, Finished):
            raise WorkFailed(f"the worker died: {ended}")
        return Wiped(
            ended.result, ready - began, time.monotonic() - ready, "fleet.devices.wipe.worker"
        )
    finally:
        spawner.close()


def _in_a_child(given: plan.WipeOrder, limit_s: float) -> Wiped:
    visible = given.visible or Uuid(given.device)
    answer = ask("wipe", {"order": given.as_json()}, limit_s=limit_s, visible=visible)
    return Wiped(
        WipeResult.from_json(answer["result"]),
        answer["ready_s"],
        answer["wall_s"],
        "tests.gpu.child",
    )
