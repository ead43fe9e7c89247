"""The CUDA driver, as calls whose refusals are errors of ours: the only module that imports it.

A worker process has one device and one primary context. Nothing here waits inside the driver: work
is queued on a stream, and its end is found by asking (a call that blocks in a sick driver cannot be
stopped by any time limit of this process). The binding is loaded at first use, because what a
process sees is decided by its environment at that moment.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fleet.core import errors

SUCCESS = 0
OUT_OF_MEMORY = 2
NOT_FOUND = 500
NOT_READY = 600
UNKNOWN = 999
NO_KERNELS = frozenset({221, 222})
"""No compiler for PTX, or PTX of a version it does not know: memory is reached without kernels."""
STICKY = frozenset({214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 810, 911})
"""After these every further call of the process fails; only a new process goes on."""
NEEDED = (
    "cuCtxSetCurrent",
    "cuCtxSetLimit",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncSetAttribute",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemGetInfo",
    "cuMemHostAlloc",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamQuery",
)
"""Every call that a wipe makes."""
POLL_S = 20e-6
DRAIN_S = 2.0
STACK_BYTES = 64
"""Stack of a thread: our kernels use none, and the driver keeps one for each that can run."""
_STACK_LIMIT = 0
_NON_BLOCKING = 1
_PLAIN_EVENT = 0
_UNTIMED_EVENT = 2
_DYNAMIC_SHARED_BYTES = 8
_MULTIPROCESSORS = 16
_SHARED_BYTES_OPT_IN = 97
_NEW_PROCESS = "the worker ends with it; the device is quarantined and tested again by itself"
_UPGRADE = "library and kernel module differ since an upgrade: reload the module or reboot"
SET_READY = (
    "set the GPUs ready once they are attested: `nvidia-smi conf-compute -srs 1`, after each boot"
)
_MPS = "an MPS daemon took the worker in: stop it, or see the setting hardware.mps"
_WORDS = {
    34: ("the library is a stub", "install the driver's own libcuda.so.1 before the toolkit's"),
    46: (
        "the device is in exclusive or prohibited mode",
        "set the compute mode back to default, or end the process that has the device",
    ),
    100: (
        "no device is visible to CUDA",
        "a partitioned device needs an instance; else check its nodes and CUDA_VISIBLE_DEVICES",
    ),
    214: (
        "uncorrectable ECC error in device memory",
        "read the counters again and reset the device",
    ),
    218: ("the kernels are not understood", "report this: kernels and driver do not fit"),
    220: ("uncorrectable NVLink error", "read the link counters and reset the device"),
    221: ("there is no compiler for PTX here", "install libnvidia-ptxjitcompiler.so.1"),
    222: ("PTX of this version is too new for the driver", "install a newer driver"),
    226: ("a contained memory error", _NEW_PROCESS),
    700: ("a kernel used an illegal address", _NEW_PROCESS),
    702: ("a kernel ran into the driver's time limit", _NEW_PROCESS),
    709: ("the context of the process is being destroyed", _NEW_PROCESS),
    710: ("a kernel hit an assertion", _NEW_PROCESS),
    714: ("a kernel met an error of the hardware's stack", _NEW_PROCESS),
    715: ("a kernel met an illegal instruction", _NEW_PROCESS),
    716: ("a kernel used a misaligned address", _NEW_PROCESS),
    717: ("a kernel used an address in a wrong space", _NEW_PROCESS),
    718: ("the program counter of a kernel went wild", _NEW_PROCESS),
    719: ("a kernel failed", _NEW_PROCESS),
    721: ("a tensor operation left memory in use", _NEW_PROCESS),
    802: (
        "the system is not ready",
        (
            "on machines with NVSwitch start the fabric manager and wait until it is done; in"
            f" confidential computing {SET_READY}"
        ),
    ),
    803: ("driver and library do not fit", _UPGRADE),
    804: ("the driver does not support this device or library", _UPGRADE),
    805: ("the MPS daemon cannot be reached", _MPS),
    806: ("the MPS daemon does not answer rightly", _MPS),
    807: ("the MPS server is not ready", _MPS),
    808: ("the MPS server has as many clients as it takes", _MPS),
    809: ("the MPS server has as many connections as it takes", _MPS),
    810: ("the MPS server ended this client", _MPS),
    911: ("an external device failed", _NEW_PROCESS),
    999: (
        "an error the driver does not explain",
        "check the kernel log; reset the device or reboot",
    ),
}


@dataclass(frozen=True, slots=True)
class Visible:
    """The one device this process sees."""

    number: int
    """The driver's handle, no index of any other list."""
    uuid: bytes
    """16 bytes; with MIG those of the MIG device."""
    multiprocessors: int
    shared_bytes: int
    """Most dynamic shared memory that a block may ask for."""
    driver: str
    """CUDA version the driver speaks, as ``13.0``."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel is launched: blocks, threads of a block, dynamic shared memory in bytes."""

    blocks: int
    threads: int
    shared_bytes: int = 0


class Driver:
    """CUDA of this process, loaded on first use. For one thread."""

    def __init__(self) -> None:
        self._binding: ModuleType | None = None

    def call(self, name: str, *arguments: Any) -> Any:
        """Call ``name``; None, its only result, or the tuple of them.

        Raises `DriverAbsent` where there is no library, `OutOfMemory`, and else `DriverRefused`
        with the fields ``code`` and ``sticky``.
        """
        code, *results = self._asked(name, arguments)
        if code != SUCCESS:
            raise refused(name, code)
        return results[0] if len(results) == 1 else tuple(results) or None

    def finished(self, name: str, handle: Any) -> bool:
        """Ask an event or a stream whether all of its work is done. Raises as `call`."""
        code = self._asked(name, (handle,))[0]
        if code not in (SUCCESS, NOT_READY):
            raise refused(name, code)
        return bool(code == SUCCESS)

    def only_device(self) -> Visible:
        """The device this process sees. Raises `BackendFailed` unless it is exactly one."""
        self.call("cuInit", 0)
        count = self.call("cuDeviceGetCount")
        if count != 1:
            raise errors.BackendFailed(
                f"CUDA sees {count} devices and should see one; nothing was written",
                remedy="start one worker for each device, with its UUID in CUDA_VISIBLE_DEVICES",
            )
        device = self.call("cuDeviceGet", 0)
        version = int(self.call("cuDriverGetVersion"))
        return Visible(
            number=int(device),
            uuid=bytes(self.call("cuDeviceGetUuid", device).bytes),
            multiprocessors=self._attribute(_MULTIPROCESSORS, device),
            shared_bytes=self._attribute(_SHARED_BYTES_OPT_IN, device),
            driver=f"{version // 1000}.{version % 1000 // 10}",
        )

    def _attribute(self, number: int, device: Any) -> int:
        kinds = self._loaded().CUdevice_attribute
        return int(self.call("cuDeviceGetAttribute", kinds(number), device))

    def shared_limit(self, function: Any, size_bytes: int) -> None:
        """Allow a kernel that much dynamic shared memory. Raises as `call`."""
        kind = self._loaded().CUfunction_attribute(_DYNAMIC_SHARED_BYTES)
        self.call("cuFuncSetAttribute", function, kind, size_bytes)

    def stack_limit(self, size_bytes: int) -> None:
        """Set the stack of a thread, before kernels are loaded. Raises as `call`."""
        self.call("cuCtxSetLimit", self._loaded().CUlimit(_STACK_LIMIT), size_bytes)

    def _asked(self, name: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
        try:
            code, *results = getattr(self._loaded(), name)(*arguments)
        except ValueError as error:  # a code newer than the binding
            raise refused(f"{name} ({error})", UNKNOWN) from error
        except RuntimeError as error:
            if type(error).__name__ == "DynamicLibNotFoundError":
                raise errors.DriverAbsent("libcuda.so.1 is not installed") from error
            raise errors.DriverAbsent(f"libcuda.so.1 is too old: {error}") from error
        return (int(code), *results)

    def require(self) -> None:
        """See that the library is there and has every call that a wipe makes; opens no device.

        Raises `DriverAbsent` where it is missing or too old.
        """
        version = int(self.call("cuDriverGetVersion"))
        missing = [name for name in NEEDED if self._lacks(name, version)]
        if missing:
            raise errors.DriverAbsent(
                f"libcuda.so.1 of CUDA {version // 1000}.{version % 1000 // 10} is too old:"
                f" it has no {', '.join(missing)}"
            )

    def _lacks(self, name: str, version: int) -> bool:
        try:
            code = self._asked("cuGetProcAddress", (name.encode(), version, 0))[0]
        except errors.FleetError:
            return False  # from before that question: its calls are found by their names
        return bool(code == NOT_FOUND)

    def preload(self) -> None:
        """Load the binding ahead of its first use; opens no driver and asks for none."""
        self._loaded()

    def _loaded(self) -> ModuleType:
        if self._binding is None:
            from cuda.bindings import driver

            self._binding = driver
        return self._binding


class Context:
    """The primary context of one device, its stream, and everything made in it.

    All methods raise as `Driver.call`. Work is queued and done in order.
    """

    def __init__(self, driver: Driver, device: Visible, *, drain_s: float = DRAIN_S) -> None:
        """`drain_s`: time, s, that `close` gives to work which is still queued."""
        self.device = device
        self._drain_s = drain_s
        self._driver = driver
        self._module: Any = None
        self._functions: dict[str, Any] = {}
        self._memory: list[int] = []
        self._pinned: list[int] = []
        self._events: list[Any] = []
        self._open = True
        context = driver.call("cuDevicePrimaryCtxRetain", device.number)
        self._stream: Any = None
        try:
            driver.call("cuCtxSetCurrent", context)
            with suppress(errors.DriverRefused):  # it costs coverage, which is judged anyway
                driver.stack_limit(STACK_BYTES)
            self._stream = driver.call("cuStreamCreate", _NON_BLOCKING)
        except errors.FleetError:
            self.close()
            raise

    def load(self, text: bytes, names: Sequence[str]) -> None:
        """Compile PTX `text` and find the kernels `names`; code `NO_KERNELS`: not here."""
        self._module = self._driver.call("cuModuleLoadData", text + b"\0")
        for name in names:
            self._functions[name] = self._driver.call(
                "cuModuleGetFunction", self._module, name.encode()
            )

    def allow_shared(self, name: str, size_bytes: int) -> None:
        """Let kernel `name` have that much dynamic shared memory."""
        self._driver.shared_limit(self._functions[name], size_bytes)

    def free_bytes(self) -> int:
        """What the driver believes to be free: a hint, never a promise."""
        return int(self._driver.call("cuMemGetInfo")[0])

    def allocate(self, size_bytes: int) -> int:
        """Address of fresh device memory, with whatever is in it. Raises `OutOfMemory`."""
        address = int(self._driver.call("cuMemAlloc", size_bytes))
        self._memory.append(address)
        return address

    def free(self, address: int) -> None:
        """Give one piece of device memory back, once nothing queued needs it."""
        self._driver.call("cuMemFree", address)
        self._memory.remove(address)

    def pinned(self, size_bytes: int) -> memoryview:
        """Host memory that the device copies from and to. Gone after `close`."""
        address = int(self._driver.call("cuMemHostAlloc", size_bytes, 0))
        self._pinned.append(address)
        return memoryview((ctypes.c_ubyte * size_bytes).from_address(address)).cast("B")

    def launch(
        self, name: str, shape: Shape, values: Sequence[int], widths: Sequence[type[Any]]
    ) -> None:
        """Queue a kernel with integers `values` as the ctypes `widths`."""
        grid, block = (shape.blocks, 1, 1), (shape.threads, 1, 1)
        self._driver.call(
            "cuLaunchKernel",
            self._functions[name],
            *grid,
            *block,
            shape.shared_bytes,
            self._stream,
            (tuple(values), tuple(widths)),
            0,
        )

    def exercise(self, address: int, host: memoryview) -> None:
        """Fill a piece of scratch memory and copy it both ways, as large as `host`.

        What a driver does for the first time it sets up first, and that needs memory itself: so it
        is done before all memory is taken (F83). `host` is back when the stream is done.
        """
        self.set_bytes(address, 0, host.nbytes)
        self.download(host, address)
        self.upload(address, host)

    def set_bytes(self, address: int, value: int, size_bytes: int) -> None:
        """Queue the driver's own fill with one byte."""
        self._driver.call("cuMemsetD8Async", address, value, size_bytes, self._stream)

    def upload(self, address: int, host: memoryview) -> None:
        """Queue a copy of pinned memory to the device."""
        self._driver.call("cuMemcpyHtoDAsync", address, _at(host), host.nbytes, self._stream)

    def download(self, host: memoryview, address: int) -> None:
        """Queue a copy from the device to pinned memory."""
        self._driver.call("cuMemcpyDtoHAsync", _at(host), address, host.nbytes, self._stream)

    def event(self, *, timed: bool = False) -> Any:
        """A mark to `record` again and again."""
        flags = _PLAIN_EVENT if timed else _UNTIMED_EVENT
        made = self._driver.call("cuEventCreate", flags)
        self._events.append(made)
        return made

    def record(self, event: Any) -> None:
        """Mark the end of what is queued so far."""
        self._driver.call("cuEventRecord", event, self._stream)

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Time, s, on the device between two timed events that are done."""
        return float(self._driver.call("cuEventElapsedTime", start, end)) / 1e3

    def finished(self, event: Any) -> bool:
        """Whether all before `event` is done; waits for nothing."""
        return self._driver.finished("cuEventQuery", event)

    def wait(self, event: Any, meanwhile: Callable[[], None]) -> None:
        """Ask until all before `event` is done, calling `meanwhile` between two questions."""
        while not self.finished(event):
            meanwhile()
            time.sleep(POLL_S)

    def close(self) -> None:
        """Give everything back; again: nothing. Never raises: after a sticky error all calls fail.

        Work that does not end is left to the end of the process: to free its memory would wait
        for it, inside the driver.
        """
        if not self._open:
            return
        self._open = False
        if self._drained():
            for event in self._events:
                self._let_go("cuEventDestroy", event)
            for address in self._memory:
                self._let_go("cuMemFree", address)
            for address in self._pinned:
                self._let_go("cuMemFreeHost", address)
            if self._module is not None:
                self._let_go("cuModuleUnload", self._module)
            if self._stream is not None:
                self._let_go("cuStreamDestroy", self._stream)
            self._let_go("cuDevicePrimaryCtxRelease", self.device.number)
        self._events, self._memory, self._pinned, self._functions = [], [], [], {}

    def _drained(self) -> bool:
        limit = time.monotonic() + self._drain_s
        try:
            while self._stream is not None and not self._driver.finished(
                "cuStreamQuery", self._stream
            ):
                if time.monotonic() > limit:
                    return False
                time.sleep(POLL_S)
        except errors.FleetError:
            return True  # broken is not busy: nothing runs that could be waited for
        return True

    def _let_go(self, name: str, what: Any) -> None:
        try:
            self._driver.call(name, what)
        except errors.FleetError:
            return  # the process ends soon, and that gives everything back


def refused(name: str, code: int) -> errors.FleetError:
    """The error that says what a result code means here."""
    if code == OUT_OF_MEMORY:
        return errors.OutOfMemory(f"{name}: the device has no room of this size")
    what, remedy = _WORDS.get(code, ("the driver refused", ""))
    return errors.DriverRefused(
        f"{name}: {what} ({code})", remedy=remedy, code=code, sticky=code in STICKY
    )


def _at(host: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(host))
