"""The driver's library with answers from a table: for refusals no stand-in of it can be made to
give in the right moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet.core import errors
from fleet.devices.nvidia import nvml

Answer = Any


class Scripted(nvml.Library):
    """Answers calls by name: a value, an error code (`refuse`), or a function of the arguments.

    A name that is missing is a function this driver does not have.
    """

    def __init__(self, **answers: Answer) -> None:
        super().__init__()
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []
        self.closed = 0

    def open(self) -> None:
        """There is nothing to load."""

    def close(self) -> None:
        """Count it."""
        self.closed += 1

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """The answer to a call, as the real library gives it."""
        self.calls.append((name, *arguments))
        answer = self.answers.get(name, refuse(nvml.FUNCTION_NOT_FOUND))
        if isinstance(answer, Refusal):
            raise answer.error(name)
        return answer(*arguments, **named) if callable(answer) else answer

    def called(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of all calls of one function."""
        return [tuple(rest) for found, *rest in self.calls if found == name]


class Refusal:
    """An error code as an answer."""

    def __init__(self, code: int) -> None:
        self.code = code

    def error(self, name: str) -> errors.FleetError:
        """What the real library raises."""
        if self.code == nvml.GPU_IS_LOST:
            return errors.DeviceLost(f"{name}: the device is lost")
        return errors.DriverRefused(f"{name}: refused ({self.code})", code=self.code)


def refuse(code: int) -> Refusal:
    """An answer that is this error code."""
    return Refusal(code)


def by_turns(*answers: Answer) -> Callable[..., Answer]:
    """One answer after the other; the last one stays."""
    left = list(answers)

    def answer(*_: Any, **__: Any) -> Answer:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Refusal):
            raise found.error("call")
        return found

    return answer
