"""A machine of stand-ins per test, and one child per test process that calls NVML on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.caller import Caller
from tests.drivers.host import Gpu, Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine without GPUs."""
    return Host(tmp_path / "machine")


@pytest.fixture
def gpu(host: Host) -> Gpu:
    """Its first GPU, H100-like, with MIG off."""
    return host.add_gpu()


@pytest.fixture(scope="session")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """The child that every test of this process shares."""
    with Caller(Host(tmp_path_factory.mktemp("nowhere")).environment()) as caller:
        yield caller


@pytest.fixture
def nvml(host: Host, gpu: Gpu, child: Caller) -> Iterator[Caller]:
    """NVML of the machine, initialised; `h` is the handle of the first GPU."""
    child(f"os.environ.__setitem__('FLEET_STANDIN', {str(host.root)!r})")
    child("n.nvmlInit()")
    child("h = n.nvmlDeviceGetHandleByIndex(0)")
    yield child
    child("n.nvmlShutdown()")
