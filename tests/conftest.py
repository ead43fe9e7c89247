"""What all tests share: one local Ray and one AWS stand-in for those that need them.

The mode of authentication is set before anything imports Ray, which reads it once.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from fleet.core import logs

# Images set this; then each of the hundreds of processes that the tests start would compile all
# that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

if TYPE_CHECKING:
    from actors.cluster import Cluster
    from tests.cloud.server import CloudServer


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A service that a test runs within its own process sets logging up for all of it: the next
    test would find its lines in what a verb answers, or in a stream that is closed."""
    hooks, wanted = (sys.excepthook, threading.excepthook), os.environ.get(logs.FORMAT)
    levels = {name: logging.getLogger(name).level for name in logs.OURS}
    yield
    for handler in [*logging.getLogger().handlers]:
        if getattr(handler, "fleet_log", False):
            logging.getLogger().removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    sys.excepthook, threading.excepthook = hooks
    if wanted is None:
        os.environ.pop(logs.FORMAT, None)
    else:
        os.environ[logs.FORMAT] = wanted


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
