"""GPU check: the contract of all back ends, on a real GPU.

Runs last: this process opens the GPU itself, and a process that has used CUDA has the device until
it ends.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.core.errors import BackendFailed, DeviceLost, DriverAbsent
from fleet.core.model import Accelerator
from fleet.devices.base import Backend
from fleet.devices.nvidia.backend import NvidiaBackend
from fleet.devices.wipe.environment import MPS_PIPES, NOWHERE, VISIBILITY
from tests.contracts.backend_contract import BackendContract
from tests.gpu.contained import built
from tests.gpu.place import Machine, partitioned, until
from tests.gpu.report import REPORT
from tests.gpu.working import Tenant


@pytest.fixture(scope="module", autouse=True)
def _seen(machine: Machine) -> None:
    """What CUDA of this process sees is settled before its first call, and for good."""
    os.environ[VISIBILITY] = machine.whole[0].uuid
    os.environ[MPS_PIPES] = NOWHERE
    REPORT.add(machine.whole[0].uuid, "contract", {"ran": True})


@pytest.fixture(autouse=True)
def _in_time() -> None:
    """No test begins after the time of all."""
    REPORT.left_s(1)


class TestNvidia(BackendContract):
    """One GPU that is not partitioned."""

    @pytest.fixture
    def backend(self, machine: Machine) -> Iterator[NvidiaBackend]:
        """The back end itself, in this process."""
        found = built(machine.settings, contained=bool(machine.contained))
        yield found
        found.close()

    @pytest.fixture
    def accelerator(self, machine: Machine) -> Accelerator:
        """The one that CUDA of this process sees."""
        return machine.whole[0]

    def test_a_session_is_a_process_on_the_device(
        self, backend: Backend, accelerator: Accelerator
    ) -> None:
        """Whoever has the device open is listed, and no longer after its end. Another process: this
        one has looked at the device before, which holds it."""
        before = {process.pid for process in backend.processes(accelerator.uuid)}
        with Tenant(accelerator.uuid) as tenant:
            tenant.ask("search", secrets.token_bytes(64), limit_s=REPORT.left_s(120))
            during = {process.pid for process in backend.processes(accelerator.uuid)}
            pid = tenant.pid
        if REPORT.host["contained"] and during == before:
            REPORT.note("a process on a GPU is not seen in this container: holders are unknown")
            return
        assert during - before == {pid}
        assert until(
            lambda: pid not in {one.pid for one in backend.processes(accelerator.uuid)}, within_s=10
        )

    @pytest.fixture
    def host_root(self, machine: Machine) -> Path:
        """Where the check sees the host's files."""
        return Path(machine.settings["root"])

    def test_a_grant_names_what_exists_and_no_neighbour(
        self, backend: Backend, host_root: Path
    ) -> None:
        """A6, promise 9, as of all back ends; in a container that does not show the driver's files
        it is recorded why there is no grant."""
        test = super().test_a_grant_names_what_exists_and_no_neighbour
        _or_contained(lambda: test(_OfWhole(backend), host_root))

    def test_the_agents_grant_reaches_every_device(self, backend: Backend) -> None:
        """DESIGN 7, Privilege, as of all back ends; the same exception."""
        test = super().test_the_agents_grant_reaches_every_device
        _or_contained(lambda: test(_OfWhole(backend)))


class _OfWhole:
    """A back end without the GPUs that are partitioned: a partition is granted once it is made."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def inventory(self) -> Sequence[Accelerator]:
        """GPUs that are not partitioned."""
        return [one for one in self._backend.inventory() if not partitioned(one)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def _or_contained(check: Callable[[], None]) -> None:
    try:
        check()
    except (BackendFailed, DeviceLost, DriverAbsent) as error:
        if not REPORT.host["contained"]:
            raise
        REPORT.note(f"no grant can be made in this container: {error.detail}")
