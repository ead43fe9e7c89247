"""Libraries of exactly the loaded driver, and specs that name others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DriverAbsent
from fleet.devices import host_paths
from fleet.devices.nvidia import libraries
from tests.fleet.devices.nvidia import hosttree


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.01  Tue Sep 17 16:54:04 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  535.216.01  Release Build",
        "NVRM version: STAND-IN  535.216.01",
    ],
)
def test_the_version_is_the_loaded_modules(tmp_path: Path, line: str) -> None:
    """Open and closed modules, of any machine, print it differently."""
    hosttree.put(tmp_path, libraries.VERSION, f"{line}\nGCC version:  gcc version 12.2.0\n")
    assert libraries.version(tmp_path) == "535.216.01"


def test_no_module_is_no_version(tmp_path: Path) -> None:
    """gpus-8.1: without a loaded driver nothing is offered; the compiler's version is not its."""
    with pytest.raises(DriverAbsent):
        libraries.version(tmp_path)
    hosttree.put(tmp_path, libraries.VERSION, "GCC version:  gcc version 12.20.0\n")
    with pytest.raises(DriverAbsent):
        libraries.version(tmp_path)


def test_every_name_a_program_loads_is_there(tmp_path: Path) -> None:
    """A6: read-only, the file under its own name and all names programs use; the tool."""
    root = hosttree.host(tmp_path)
    found = {mount.container_path: mount for mount in libraries.mounts(root)}
    cuda = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{hosttree.VERSION}"
    for name in (f"libcuda.so.{hosttree.VERSION}", "libcuda.so.1", "libcuda.so"):
        assert found[f"/usr/local/nvidia/lib64/{name}"].host_path == cuda
    assert "/usr/local/nvidia/lib64/libnvidia-ml.so.1" in found
    assert found["/usr/local/nvidia/bin/nvidia-smi"].host_path == "/usr/bin/nvidia-smi"
    assert all(mount.read_only for mount in found.values())
    assert all(host_paths.exists(root, mount.host_path) for mount in found.values())


def test_libraries_of_another_version_are_never_offered(tmp_path: Path) -> None:
    """B79: what an update left behind is not mounted, also where a link still leads to it."""
    root = hosttree.host(tmp_path)
    hosttree.install(root, "535.216.01")
    link = root / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    link.symlink_to("libcuda.so.535.216.01")
    assert not [m for m in libraries.mounts(root) if "535.216.01" in m.host_path + m.container_path]


def test_after_an_update_the_new_files_are_listed(tmp_path: Path) -> None:
    """B79: the driver changed, the next answer names its files and none of the old ones."""
    root = hosttree.host(tmp_path)
    before = [mount.host_path for mount in libraries.mounts(root)]
    hosttree.install(root, "600.10.01")
    hosttree.load(root, "600.10.01")
    after = [mount.host_path for mount in libraries.mounts(root)]
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.600.10.01" in after
    assert not set(before).intersection(path for path in after if ".so." in path)


def test_an_update_in_place_fails_with_the_files_name(tmp_path: Path) -> None:
    """B79: libraries replaced under a loaded module: the missing one is named, with what helps."""
    root = hosttree.host(tmp_path)
    hosttree.load(root, "600.10.01")
    with pytest.raises(BackendFailed, match=r"libcuda\.so\.600\.10\.01") as caught:
        libraries.mounts(root)
    assert "reboot" in caught.value.remedy


def test_a_link_that_ends_nowhere_is_missing(tmp_path: Path) -> None:
    """B79: a runtime follows links; one without an end is no library."""
    root = hosttree.host(tmp_path)
    path = root / f"usr/lib/x86_64-linux-gnu/libcuda.so.{hosttree.VERSION}"
    path.unlink()
    path.symlink_to("/opt/driver/libcuda.so")
    with pytest.raises(BackendFailed, match=r"libcuda\.so"):
        libraries.mounts(root)


def test_libraries_for_the_other_word_length_are_passed_over(tmp_path: Path) -> None:
    """Where 32-bit ones lie under the same name in /usr/lib, those beside it are taken."""
    root = hosttree.host(tmp_path)
    (root / f"usr/lib/x86_64-linux-gnu/libcuda.so.{hosttree.VERSION}").unlink()
    hosttree.put(root, f"usr/lib64/libcuda.so.{hosttree.VERSION}", b"\x7fELF\x01")
    hosttree.put(root, f"usr/lib/libcuda.so.{hosttree.VERSION}", b"\x7fELF\x02")
    found = {mount.container_path: mount.host_path for mount in libraries.mounts(root)}
    assert found[f"{libraries.LIBRARIES}/libcuda.so.1"] == f"/usr/lib/libcuda.so.{hosttree.VERSION}"


def test_a_driver_without_its_tool_still_serves(tmp_path: Path) -> None:
    """Only what nothing works without is demanded: headless installations have no nvidia-smi."""
    root = hosttree.host(tmp_path)
    (root / "usr/bin/nvidia-smi").unlink()
    assert not [
        m for m in libraries.mounts(root) if m.container_path.startswith("/usr/local/nvidia/bin")
    ]
