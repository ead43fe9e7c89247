"""What all tests share: one local Ray and one AWS stand-in for those that need them.

The mode of authentication is set before anything imports Ray, which reads it once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

if TYPE_CHECKING:
    from actors.cluster import Cluster
    from tests.cloud.server import CloudServer


@pytest.fixture(scope="session")
def cloud() -> Iterator[CloudServer]:
    """moto's server, and an environment that talks to nothing else."""
    from tests.cloud import server

    with pytest.MonkeyPatch.context() as patch, server.CloudServer() as found:
        for name, value in server.CREDENTIALS.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A local Ray with its job server, started once for the whole session."""
    from actors import cluster

    found = cluster.local(tmp_path_factory.mktemp("ray-state"), dashboard=True)
    yield found
    found.close()
