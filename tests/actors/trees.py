"""Rays of a test's own, as process trees that can be killed: a head, and a node that joins it.

Everything a tree starts inherits a mark, by which it is found and killed: never ``ray stop``, which
would end every Ray of the machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from actors.cluster import LOOPBACK_SWITCH
from actors.identity import HOST_LABEL
from tests.chaos.checks import living

MARK = "FLEET_TEST_RAY"
START_MAX_S = 90.0
RECONNECT_S = 4
"""Time, s, a node outlives its head: 60 by Ray's default, which a test need not wait for."""
HEAD = "127.0.0.2"
"""Address of the head, as of another machine than the node's."""


@dataclass
class Tree:
    """The processes of one ``ray start``."""

    rays: Rays
    mark: str
    arguments: tuple[str, ...]
    shell: str = ""
    """Script that runs ``"$0" "$@"`` as the command; "": it is run as it is."""
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; `Rays.await_nodes` waits until it is there."""
        self.reap()
        with (self.rays.directory / f"{self.mark}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(("sh", "-c", self.shell) if self.shell else ()),
                    str(Path(sys.executable).parent / "ray"),
                    "start",
                    "--block",
                    "--disable-usage-stats",
                    *self.arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.rays.environment(), MARK: f"{self.rays.token}-{self.mark}"},
                start_new_session=True,
            )

    def pids(self, word: str = "") -> list[int]:
        """Its processes, those with `word` in their command line."""
        found = []
        for pid in living(MARK, f"{self.rays.token}-{self.mark}"):
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill(self, word: str = "") -> list[int]:
        """SIGKILL to those of its processes; who was killed."""
        found = self.pids(word)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def reap(self) -> None:
        """Kill whatever is left, and wait for it."""
        while self.pids():
            self.kill()
            threading.Event().wait(0.02)
        if self._process is not None:
            self._process.wait()


@dataclass
class Rays:
    """A cluster of a head without our label and one node that carries `host`."""

    host: str = "node-host"
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tr-")))
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        """Choose a port and write the token; nothing is started."""
        with socket.create_server((HEAD, 0)) as one, socket.create_server((HEAD, 0)) as two:
            self.port, clients = (int(free.getsockname()[1]) for free in (one, two))
        path = self.directory / "token"
        path.touch(mode=0o600)
        path.write_text(self.token)
        resources = ("--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000")
        self.head = Tree(
            self,
            "head",
            (
                "--head",
                f"--node-ip-address={HEAD}",
                f"--port={self.port}",
                "--include-dashboard=false",
                f"--ray-client-server-port={clients}",
                *resources,
            ),
        )
        self.node = Tree(
            self,
            "node",
            (f"--address={self.address}", f"--labels={HOST_LABEL}={self.host}", *resources),
        )

    @property
    def address(self) -> str:
        """Where the head answers."""
        return f"{HEAD}:{self.port}"

    def environment(self) -> dict[str, str]:
        """For everything that is to be in this cluster, or to speak to it."""
        kept = {key: value for key, value in os.environ.items() if key != LOOPBACK_SWITCH}
        return {
            **kept,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.directory / "token"),
            "RAY_TMPDIR": str(self.directory),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S),
        }

    def start(self) -> None:
        """The head, and as soon as it answers the node."""
        # A head refuses to start where a file says that another one runs.
        shutil.rmtree(self.directory / "ray", ignore_errors=True)
        self.head.start()
        deadline = time.monotonic() + START_MAX_S
        while True:
            with suppress(OSError):
                socket.create_connection((HEAD, self.port), 1.0).close()
                break
            assert time.monotonic() < deadline, (self.directory / "head.log").read_text()
            threading.Event().wait(0.1)
        self.node.start()

    def end(self) -> None:
        """Kill everything and remove the files."""
        for tree in (self.node, self.head):
            tree.reap()
        shutil.rmtree(self.directory, ignore_errors=True)
