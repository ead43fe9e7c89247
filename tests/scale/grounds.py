"""A coordinator's actor on a Ray of our own over each kind of store, for measurements.

The store of SQLite is the real one. DynamoDB is moto's server and the API server is the tests'
stand-in, each a process of its own that shares the machine: their figures are those of the
imitation's processor, never of the service.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from actors import cluster, handles
from actors.handles import RemoteCoordinator
from fleet.core.clock import SystemClock
from fleet.core.settings import Settings, StoreKind
from fleet.stores.factory import StorePlace
from fleet.wiring import adapters
from fleet.wiring.adapters import CoordinatorPlan
from tests.cloud.server import CREDENTIALS, REGION, CloudServer
from tests.e2e.polling import Hopeless, eventually

ROOT = Path(__file__).parents[2]
QPS = 10_000.0
"""Requests per second to the stand-in: its own processor is to be the bound, not our budget."""
START_S = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Ground:
    """A coordinator behind Ray."""

    coordinator: RemoteCoordinator
    address: str
    """Where further drivers attach."""
    pid: int
    """Process of the coordinator's actor."""
    plan: CoordinatorPlan


@contextmanager
def ground(kind: StoreKind = StoreKind.SQLITE) -> Iterator[Ground]:
    """Start store, Ray and coordinator; all of it ends with the block."""
    import ray  # after `actors`, which decides how it authenticates

    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-scale-")))
        plan = _plan(kind, state, stack)
        stack.callback(cluster.local(state).close)
        coordinator = handles.create_coordinator(plan.model_dump_json(), host=cluster.LOCAL_HOST)
        pid = coordinator.ping(timeout_s=START_S)
        yield Ground(coordinator, ray.get_runtime_context().gcs_address, pid, plan)


def _plan(kind: StoreKind, state: Path, stack: ExitStack) -> CoordinatorPlan:
    settings, kubeconfig = Settings(), ""
    if kind is StoreKind.DYNAMODB:
        server = stack.enter_context(CloudServer())
        os.environ.update(CREDENTIALS)
        settings = _stored(settings, kind, region=REGION, endpoint=server.endpoint, table="scale")
    elif kind is StoreKind.KUBERNETES:
        kubeconfig = str(stack.enter_context(api_server(state)).kubeconfig)
        settings = _stored(settings, kind, namespace="default")
    settings = settings.model_copy(
        update={"kubernetes": settings.kubernetes.model_copy(update={"coordinator_qps": QPS})}
    )
    plan = CoordinatorPlan(state=str(state), settings=settings, kubeconfig=kubeconfig)
    if kind is StoreKind.SQLITE:
        return adapters.plan_fleet(state, simulate="1x1", settings=settings).coordinator
    stores = StorePlace(settings, state, kubeconfig, QPS).open(SystemClock())
    stores.leases.init()
    stores.close()
    return plan


def _stored(settings: Settings, kind: StoreKind, **changes: str) -> Settings:
    store = settings.store.model_copy(update={"kind": kind, **changes})
    return settings.model_copy(update={"store": store})


@dataclass(frozen=True, slots=True)
class Server:
    """The API stand-in as a process."""

    kubeconfig: Path
    pid: int


@contextmanager
def api_server(folder: Path) -> Iterator[Server]:
    """Start the stand-in; its files go to `folder`. It ends with the block."""
    port_file, kubeconfig = folder / "api-port", folder / "kubeconfig"
    command = [sys.executable, "-m", "tests.lab.apiserver", "--until-eof"]
    command += ["--port-file", str(port_file), "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)
    try:

        def up() -> bool:
            if process.poll() is not None:
                raise Hopeless(f"the API stand-in ended with {process.returncode}")
            return port_file.exists()

        eventually("the API stand-in is up", up, timeout_s=START_S)
        yield Server(kubeconfig, process.pid)
    finally:
        process.communicate(timeout=START_S)


def cpu_s(pid: int) -> float:
    """Processor time, s, that the process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Memory of the process that it shares with nobody: what one more costs, bytes."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total
