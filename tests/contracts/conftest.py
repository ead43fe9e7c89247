"""The API servers that the rows and contracts are put to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.api_ground import Ground
from tests.contracts.api_server import KUBECONFIG, RealServer, Server, standing_in
from tests.contracts.cluster_benches import Bench, ClientBench, MemoryBench

SERVERS = [pytest.param("stand-in")]
if KUBECONFIG:
    SERVERS.append(pytest.param("real", marks=pytest.mark.e2e))


@pytest.fixture(scope="module", params=SERVERS)
def api_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The stand-in; and the real cluster of FLEET_E2E_KUBECONFIG, when it is set."""
    server: Server = RealServer(KUBECONFIG) if request.param == "real" else standing_in()
    yield server
    server.close()


@pytest.fixture
def ground(api_server: Server) -> Iterator[Ground]:
    """A server to put a row to; what the row made is removed afterwards."""
    found = Ground(api_server)
    yield found
    found.clean()


@pytest.fixture(params=["memory", "client"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each implementation of the port."""
    found: Bench = MemoryBench() if request.param == "memory" else ClientBench(tmp_path)
    yield found
    found.close()
