"""NVML as calls whose refusals are errors of ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.errors import DeviceLost, DriverAbsent, DriverRefused
from fleet.devices.nvidia import nvml
from tests.drivers.host import Gpu, Host


@pytest.fixture
def library(host: Host) -> Iterator[nvml.Library]:
    """NVML of a machine without GPUs."""
    made = nvml.Library()
    yield made
    made.close()


@pytest.fixture
def gpu(host: Host) -> Gpu:
    """The only GPU."""
    return host.add_gpu()


def handle(library: nvml.Library, gpu: Gpu) -> Any:
    """The driver's handle of the GPU."""
    return library.call("nvmlDeviceGetHandleByUUID", gpu.uuid)


def test_8_1_without_a_library_everything_imports(tmp_path: Path) -> None:
    """gpus-8.1: no driver on the machine: imports work, and the first question is answered so."""
    program = (
        "from fleet.devices import registry\n"
        "from fleet.core.errors import DriverAbsent\n"
        f"backend = registry.build('nvidia', {{'root': {str(tmp_path)!r}}})\n"
        "try:\n    backend.inventory()\n"
        "except DriverAbsent as error:\n    raise SystemExit(error.exit_code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(Path.cwd())},
        check=False,
    )
    assert done.returncode == DriverAbsent.exit_code


@pytest.mark.parametrize("code", [2, 3, 4, 6, 16, 17, 19, 23, 25, 27, 28, 29, 30, 999])
def test_8_43_a_code_becomes_one_error(library: nvml.Library, gpu: Gpu, code: int) -> None:
    """gpus-8.43: whatever NVML answers, known class or not, is one error with its number."""
    found = handle(library, gpu)
    gpu.fault("nvmlDeviceGetTemperature", f"return {code}")
    with pytest.raises(DriverRefused) as caught:
        library.call("nvmlDeviceGetTemperature", found, 0)
    assert caught.value.code == code
    assert hash(caught.value) is not None
    assert library.ask("nvmlDeviceGetTemperature", found, 0) is None


def test_8_43_lost_is_lost_also_when_only_asked(library: nvml.Library, gpu: Gpu) -> None:
    """gpus-8.43, B24: 15 is never a mere "unknown"."""
    found = handle(library, gpu)
    gpu.fault("nvmlDeviceGetTemperature", "return 15")
    with pytest.raises(DeviceLost):
        library.ask("nvmlDeviceGetTemperature", found, 0)


def test_8_43_a_boolean_of_the_binding_is_a_number(library: nvml.Library, gpu: Gpu) -> None:
    """gpus-8.43: the binding's c_uint equals neither 0 nor 1; ours does."""
    assert library.call("nvmlDeviceIsMigDeviceHandle", handle(library, gpu)) == 0


def test_8_43_a_mismatch_outside_of_the_tree_is_caught(library: nvml.Library, gpu: Gpu) -> None:
    """gpus-8.43: the binding's mismatch error is no NVMLError, and is a refusal all the same."""
    found = handle(library, gpu)
    gpu.fault("nvmlDeviceGetComputeRunningProcesses_v3", "return 13")
    with pytest.raises(DriverRefused) as caught:
        library.call("nvmlDeviceGetComputeRunningProcesses", found)
    assert caught.value.code == nvml.FUNCTION_NOT_FOUND


def test_8_43_a_function_the_driver_lacks(library: nvml.Library, gpu: Gpu) -> None:
    """gpus-8.43: a symbol an older driver has not is refused, and told from "not supported"."""
    with pytest.raises(DriverRefused) as caught:
        library.call("nvmlDeviceGetHostname_v1", handle(library, gpu))
    assert caught.value.code == nvml.FUNCTION_NOT_FOUND


def test_it_can_be_closed_and_opened_again(library: nvml.Library, gpu: Gpu) -> None:
    """A reset needs the driver let go; the next call opens it again."""
    opened = []
    for _ in range(2):
        assert library.call("nvmlDeviceGetCount") == 1
        opened.append(library.opened)
        library.close()
        library.close()
        opened.append(library.opened)
    assert opened == [True, False, True, False]


def test_b85_texts_are_texts(library: nvml.Library, gpu: Gpu) -> None:
    """B85: bytes, NULs, control characters and broken UTF-8 become printable text."""
    assert nvml.text(b"GPU-1") == "GPU-1"
    assert nvml.text(b"a\xf8b") == "a\N{REPLACEMENT CHARACTER}b"
    assert nvml.text("a\x1b[31mb\n") == "a?[31mb"
    assert nvml.text(b"GPU-2\0\0") == "GPU-2"
    (gpu.path / "name").write_bytes(b"\xf8NV\n")
    assert library.call("nvmlDeviceGetName", handle(library, gpu)) == "\N{REPLACEMENT CHARACTER}NV"


def test_b85_a_look_alike_is_refused() -> None:
    """B85: another package with a module of the same name is told from the vendor's binding."""
    assert nvml.unfit(sys.modules["pynvml"]) == ""
    assert "nvmlMemory_v2" in nvml.unfit(SimpleNamespace(nvmlInit=print, __file__="pynvml.py"))
