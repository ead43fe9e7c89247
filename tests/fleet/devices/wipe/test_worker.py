"""The worker process: what it says, when it may begin, and when it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fleet.core.processes import MARKER, start_time
from fleet.devices.simulated import memory
from fleet.devices.wipe import worker
from fleet.devices.wipe.plan import WipeOrder
from fleet.devices.wipe.result import WipeResult
from tests.fleet.devices.wipe.orders import eventually, node, order_for, whole

COMMAND = (sys.executable, "-m", "fleet.devices.wipe.worker")
PARENT = """
import json, os, subprocess, sys, time
order = json.loads(sys.argv[1])
worker = subprocess.Popen([sys.executable, "-m", "fleet.devices.wipe.worker"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    env={**os.environ, sys.argv[2]: order["worker_id"]})
worker.stdin.write((json.dumps({"order": order, "parent": os.getpid()}) + "\\n").encode())
worker.stdin.flush()
print(worker.stdout.readline().decode(), end="", flush=True)
time.sleep(60)
"""


def talk(
    order: WipeOrder, after: str, *, parent: int | None = None
) -> tuple[int, list[dict[str, Any]]]:
    """Run a worker to its end; its exit code and what it said."""
    envelope = json.dumps({"order": order.as_json(), "parent": parent or os.getpid()})
    done = subprocess.run(
        COMMAND,
        input=f"{envelope}\n{after}",
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, MARKER: order.worker_id},
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_report_ends_with_the_workers_own_mark(tmp_path: Path) -> None:
    """gpus-8.15: ready, progress, result, and an end that names the worker: less is no report."""
    backend = node(tmp_path)
    order = order_for(backend, whole(backend))
    code, said = talk(order, "go\n")
    assert code == 0
    assert [next(iter(one)) for one in (said[0], said[-2], said[-1])] == ["ready", "result", "end"]
    assert said[-1] == {"end": order.worker_id}
    assert WipeResult.from_json(said[-2]["result"]).verified


def test_without_go_nothing_is_touched(tmp_path: Path) -> None:
    """B02: a worker whose identity was never journalled leaves memory as it is."""
    backend = node(tmp_path)
    device = whole(backend)
    memory.write(backend.memory(device.uuid), 0, b"kept")
    code, said = talk(order_for(backend, device), "")
    assert code == worker.REFUSED
    assert len(said) == 1
    assert memory.read(backend.memory(device.uuid), 0, 4) == b"kept"


def test_a_worker_of_another_parent_leaves(tmp_path: Path) -> None:
    """A worker whose parent died before the death signal was armed leaves at once."""
    backend = node(tmp_path)
    code, said = talk(order_for(backend, whole(backend)), "go\n", parent=1)
    assert (code, said) == (worker.REFUSED, [])


def test_an_order_it_cannot_understand_is_refused() -> None:
    """Half an order, or one that names a device by index, starts nothing."""
    done = subprocess.run(
        COMMAND,
        input='{"order": {"device": "0"}, "parent": 1}\n',
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == worker.REFUSED
    assert "refused" in json.loads(done.stdout)


def test_b44_killing_the_parent_kills_the_worker(tmp_path: Path) -> None:
    """B44: SIGKILL of the service leaves no worker behind, by the kernel's own doing."""
    backend = node(tmp_path)
    order = order_for(backend, whole(backend))
    command = (sys.executable, "-c", PARENT, json.dumps(order.as_json()), MARKER)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ready = json.loads(parent.stdout.readline())["ready"]
        assert start_time(ready["pid"]) == ready["start_time"]
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
        assert eventually(lambda: start_time(ready["pid"]) != ready["start_time"])


def test_a_worker_loads_nothing_it_does_not_need() -> None:
    """Start-up is paid once per device: no models, no Ray, no arrays, no command line."""
    code = "import sys, fleet.devices.wipe.worker as w; print(','.join(sys.modules))"
    done = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=True, timeout=30
    )
    loaded = set(done.stdout.strip().split(","))
    heavy = {"pydantic", "ray", "numpy", "typer", "rich", "cryptography", "sqlite3", "asyncio"}
    assert not loaded & heavy


def test_a_worker_is_ready_soon() -> None:
    """Starting a worker costs far less than wiping; the bound leaves room for a busy machine."""
    started = time.monotonic()
    subprocess.run(COMMAND, stdin=subprocess.DEVNULL, check=False, timeout=30)
    assert time.monotonic() - started < 3.0
