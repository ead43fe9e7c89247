"""What all tests share: one local Ray for those that need a real one.

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


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A local Ray with its job server, started once for the whole session."""
    from actors import cluster

    found = cluster.local(tmp_path_factory.mktemp("ray-state"), dashboard=True)
    yield found
    found.close()
