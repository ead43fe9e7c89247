"""Asking the driver about one GPU, keeping why it did not answer.

A reading is None where it is unknown, and it matters why: what a part has not (`NOT_SUPPORTED`) is
judged otherwise than what the driver failed to tell. That a GPU must be reset may come up in any
answer, and counts whichever call it was (reference/gpus.md 1.2).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.core.errors import DeviceLost, DriverRefused
from fleet.devices.nvidia import nvml

_UNSIGNED = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Member of a field's value by its type (NVML_VALUE_TYPE_*); doubles are none of our readings."""


@dataclass(slots=True)
class Answers:
    """Readings by the names of `Readings`, and which of them the hardware has not."""

    values: dict[str, Any] = field(default_factory=dict)
    not_applicable: set[str] = field(default_factory=set)

    def absent(self, *names: str) -> None:
        """Say that the hardware has no such thing."""
        self.not_applicable.update(names)

    def add(self, other: Answers) -> None:
        """Take over what another part found."""
        self.values.update(other.values)
        self.not_applicable.update(other.not_applicable)


class Probe:
    """One GPU, asked through `library`. Every method raises only `DeviceLost`."""

    def __init__(self, library: nvml.Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._refused: dict[str, int] = {}
        self.reset_required = False
        """Whether any answer so far was that the GPU must be reset first."""

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        """``nvmlDevice<name>`` of this GPU; None when it was refused (see `refused`)."""
        self._refused.pop(name, None)
        try:
            return self._library.call(f"nvmlDevice{name}", self._handle, *arguments, **named)
        except DriverRefused as error:
            self._note(name, error.code)
            return None

    def answered(self, name: str) -> bool:
        """Whether a call that returns nothing, or fills a struct, succeeded just now."""
        return name not in self._refused

    def refused(self, name: str) -> int:
        """The code the last such call was refused with, 0 when it was answered."""
        return self._refused.get(name, 0)

    def lacks(self, name: str) -> bool:
        """Whether the last such call was refused because this part, or mode, has no such thing."""
        return self.refused(name) == nvml.NOT_SUPPORTED

    def fields(self, wanted: Sequence[int | tuple[int, int]]) -> dict[int | tuple[int, int], int]:
        """Field values, those that were answered. A pair is (field, scope).

        Each has a return code of its own: one refused field says nothing about the others.
        """
        found = self.ask("GetFieldValues", list(wanted))
        answered: dict[int | tuple[int, int], int] = {}
        for key, value in zip(wanted, found or (), strict=False):
            if value.nvmlReturn == nvml.GPU_IS_LOST:
                raise DeviceLost(f"field {key}: the device is lost")
            if value.nvmlReturn == nvml.RESET_REQUIRED:
                self.reset_required = True
            if value.nvmlReturn == 0 and value.valueType in _UNSIGNED:
                answered[key] = int(getattr(value.value, _UNSIGNED[value.valueType]))
        return answered

    def filled(self, name: str, struct: str) -> Any:
        """A struct filled by ``nvmlDevice<name>``, None when it was refused."""
        found = self._library.struct(struct)
        self.ask(name, ctypes.byref(found))
        return found if self.answered(name) else None

    def _note(self, name: str, code: int) -> None:
        self._refused[name] = code
        if code == nvml.RESET_REQUIRED:
            self.reset_required = True


def flag(value: Any) -> bool | None:
    """A driver's 0 or 1 as a truth; None stays unknown."""
    return None if value is None else bool(value)
