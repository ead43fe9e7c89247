"""NVML, as calls whose refusals are errors of ours: the only module that imports pynvml.

NVML has no time limit of its own: use this only in a process that somebody may kill. What the
binding makes easy to get wrong is settled here once: error objects that cannot be compared, a
mismatch error outside of the tree, texts that are bytes, or no UTF-8 (B85).
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from fleet.core import errors

NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
MISMATCH = 18
"""Library and kernel module differ since an upgrade in place."""
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
VERSION_MISMATCH = 25
INVALID_ARGUMENT = 2
OLDER_FORM = frozenset({FUNCTION_NOT_FOUND, VERSION_MISMATCH})
"""Codes of a driver that does not have a call in this form: the only ones after which an older form
of it is asked. After any other the older answer is not believed either (F41)."""

_ABSENT = {
    9: "the kernel module is not loaded",
    12: "libnvidia-ml.so.1 is not installed",
}
_REMEDIES = {
    4: "give the node service the driver's device nodes; what the driver takes from administrators"
    " of the host alone is done there, not in a pod (docs/privilege.md)",
    16: "reset the device, then scrub it",
    17: "the operating system refused: check device permissions and the cgroup of the service",
    18: "library and kernel module differ since an upgrade: reload the module or reboot",
    19: "end what uses the device; `fleet devices` names it",
}
_NEEDED = ("nvmlInit", "nvmlDeviceGetRepairStatus", "c_nvmlGpuFabricInfo_v3_t", "nvmlMemory_v2")
"""Names that look-alikes and releases before ours lack."""


class Library:
    """NVML of this process, opened on first use. Not safe for several threads at once."""

    def __init__(self) -> None:
        self._open = False
        self.generation = 0
        """Raised by each `close`: what the driver handed out before, event sets above all, is void,
        and naming it in a call is undefined."""

    @property
    def opened(self) -> bool:
        """Whether it is open, and so holds what it has looked at."""
        return self._open

    def open(self) -> None:
        """Load and initialise. Raises `DriverAbsent`, with the driver's ``code`` where it gave one.

        Whatever keeps NVML from starting is the node's matter and no device's (B14).
        """
        if self._open:
            return
        if problem := unfit(pynvml):
            raise errors.DriverAbsent(
                problem, remedy="uninstall the package `pynvml`, and install `nvidia-ml-py` again"
            )
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            code = int(error.value)
            why = _ABSENT.get(code) or _said("nvmlInit", code)
            raise errors.DriverAbsent(
                f"no NVIDIA driver answers: {why}", remedy=_REMEDIES.get(code, ""), code=code
            ) from error
        self._open = True

    def close(self) -> None:
        """Let the driver go; a later call opens it again."""
        if self._open:
            self._open = False
            self.generation += 1
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError:
                return  # it is gone, and that is all that was wanted

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call ``pynvml.<name>``. Raises `DeviceLost` or `DriverRefused` with field ``code``.

        Byte strings come back as text. A function that this driver lacks is refused with
        `FUNCTION_NOT_FOUND`.
        """
        self.open()
        try:
            return _plain(getattr(pynvml, name)(*arguments, **named))
        except pynvml.NVMLError as error:
            if error.value == GPU_IS_LOST:
                raise errors.DeviceLost(f"{name}: the device is lost") from error
            raise _refused(name, error.value) from error
        except pynvml.NVMLLibraryMismatchError as error:
            raise _refused(name, FUNCTION_NOT_FOUND) from error
        except UnicodeDecodeError as error:
            return text(error.object)  # the binding decodes names strictly

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        """As `call`, with None where the driver does not know, may not tell or fails to answer.

        For readings, whose absence is a fact of its own; raises only `DeviceLost`.
        """
        try:
            return self.call(name, *arguments, **named)
        except errors.DriverRefused:
            return None

    @staticmethod
    def constant(name: str) -> int:
        """``pynvml.<name>``: an enumeration's value or a struct version."""
        return int(getattr(pynvml, name))

    @staticmethod
    def struct(name: str) -> Any:
        """A new, zeroed ``pynvml.<name>`` to be passed by reference."""
        return getattr(pynvml, name)()


def unfit(binding: object) -> str:
    """Why a module of that name is not the vendor's binding, or too old; "" when it is fit (B85).

    Another package installs a module of the same name, and whichever came last is imported.
    """
    missing = [name for name in _NEEDED if not hasattr(binding, name)]
    place = getattr(binding, "__file__", None) or "a module without a file"
    return f"{place} is not the NVML binding we need: no {', '.join(missing)}" if missing else ""


def text(value: object) -> str:
    """What a driver says as text, whatever its bytes are; control characters become ``?``.

    White space and NULs around it are cut off.
    """
    found = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    found = found.strip("\0 \t\r\n")
    return "".join(letter if letter.isprintable() else "?" for letter in found)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, ctypes.c_uint):
        return value.value  # the binding hands one out as it is: it equals neither 0 nor 1
    return value


def _refused(name: str, code: int) -> errors.DriverRefused:
    return errors.DriverRefused(_said(name, code), remedy=_REMEDIES.get(code, ""), code=code)


def _said(name: str, code: int) -> str:
    said = text(pynvml.nvmlErrorString(code)) if _loaded() else str(pynvml.NVMLError(code))
    return f"{name}: {said} ({code})"


def _loaded() -> bool:
    return pynvml.nvmlLib is not None and hasattr(pynvml.nvmlLib, "nvmlErrorString")
