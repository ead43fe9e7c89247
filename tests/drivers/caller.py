"""A child process in which tests call a driver binding, so that no stand-in enters their own.

The child evaluates lines of Python with `n` as pynvml and keeps what they assign. A driver once
loaded stays loaded: a test process that must have none would find the stand-in of another test.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Refused(Exception):
    """The binding raised its error; `code` is the driver's."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


class Caller:
    """The child. ``caller("n.nvmlDeviceGetCount()")`` gives the value; a statement gives None.

    Structures come back as dicts, arrays as lists, ctypes values as {"type": value}, handles as
    "<handle>". Raises `Refused` for an error of the driver and `RuntimeError` for any other.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.drivers.caller"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def __call__(self, line: str) -> Any:
        self.send(line)
        return self.receive()

    def send(self, line: str) -> None:
        """Start a call; `receive` waits for its end."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(line) + "\n")
        self._child.stdin.flush()

    def receive(self) -> Any:
        """The value of the call that `send` started."""
        assert self._child.stdout is not None
        answer = json.loads(self._child.stdout.readline())
        if "code" in answer:
            raise Refused(answer["code"])
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    def answered(self, timeout_s: float) -> bool:
        """Whether the call that `send` started ends within that time."""
        assert self._child.stdout is not None
        return bool(select.select([self._child.stdout], [], [], timeout_s)[0])

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def plain(value: object) -> Any:
    """A value of the binding as JSON has it."""
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ctypes._SimpleCData):
        return {type(value).__name__: value.value}
    if type(value).__name__ == "nvmlFriendlyObject":
        return {name: plain(item) for name, item in vars(value).items()}
    if value is None or isinstance(value, int | float | str | dict):
        return value
    return "<handle>"


def _answer(line: str, names: dict[str, Any]) -> dict[str, Any]:
    try:
        code = compile(line, "<line>", "eval")
    except SyntaxError:
        code = compile(line, "<line>", "exec")
    try:
        return {"value": plain(eval(code, names))}  # noqa: S307 - the lines are the tests' own
    except names["n"].NVMLError as error:
        return {"code": error.value}
    except Exception as error:  # noqa: BLE001 - the test shall see it, whatever it is
        return {"error": repr(error)}


def _serve() -> None:
    import pynvml

    names: dict[str, Any] = {"n": pynvml, "c": ctypes, "os": os}
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_answer(json.loads(line), names)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
