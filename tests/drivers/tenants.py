"""A program on a stand-in GPU that nobody wiped for it: plants, searches, and is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import IO, Self, cast

from fleet.devices.wipe.environment import environment


class GpuTenant:
    """A process that has all the memory of the one device it sees, by its UUID."""

    def __init__(self, visible: str) -> None:
        self.size = 0
        """Bytes it has, once it was asked anything."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fleet.devices.nvidia.tenant"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(os.environ, "", visible),
            text=True,
        )
        self._orders = cast("IO[str]", self._process.stdin)
        self._answers = cast("IO[str]", self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def plant(self, secret: bytes) -> int:
        """Write the secret all over its memory; at how many places."""
        return self._ask("plant", secret)

    def search(self, secret: bytes) -> int:
        """How many blocks of the secret it finds."""
        return self._ask("search", secret)

    def kill(self) -> None:
        """End it, so that it gives nothing back by itself."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, act: str, secret: bytes) -> int:
        self._orders.write(json.dumps({"do": act, "secret": secret.hex()}) + "\n")
        self._orders.flush()
        answer = json.loads(self._answers.readline())
        if "blocks" not in answer:
            raise RuntimeError(answer.get("error", "it ended"))
        self.size = int(answer["memory_bytes"])
        return int(answer["blocks"])
