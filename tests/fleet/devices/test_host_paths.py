"""Paths of the host, seen through wherever its tree is mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.devices import host_paths


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    library = root / "usr/lib"
    library.mkdir(parents=True)
    (library / "libgpu.so.2.0").touch()
    for name, target in {
        "relative": "libgpu.so.2.0",
        "absolute": "/usr/lib/libgpu.so.2.0",
        "up": "../../../../../usr/lib/./libgpu.so.2.0",
        "twice": "absolute",
        "dangling": "libgpu.so.1.0",
        "outside": str(tmp_path / "secret"),
        "loop": "loop",
    }.items():
        (library / name).symlink_to(target)
    (root / "lib").symlink_to("/usr/lib")
    (tmp_path / "secret").touch()
    return root


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/usr/lib/libgpu.so.2.0", True), ("/usr/lib", True), ("/", True),
        ("/usr/lib/relative", True), ("/usr/lib/absolute", True), ("/usr/lib/up", True),
        ("/usr/lib/twice", True), ("/lib/libgpu.so.2.0", True), ("/lib/twice", True),
        ("/usr/lib/libgpu.so.1.0", False), ("/usr/lib/dangling", False),
        ("/usr/lib/outside", False), ("/usr/lib/loop", False),
        ("/usr/lib/libgpu.so.2.0/x", False), ("/" + "x" * 300, False), ("/nowhere/x", False),
    ],
)  # fmt: skip
def test_a_path_exists_as_the_host_sees_it(host: Path, path: str, there: bool) -> None:
    """B79: links are followed below the host's root, never to where we happen to run."""
    assert host_paths.exists(host, path) is there


def test_without_another_root_paths_are_our_own(host: Path) -> None:
    """B79: with the root directory as the host's root a path is what it says."""
    assert host_paths.exists(Path("/"), str(host / "usr/lib/relative"))
    assert not host_paths.exists(Path("/"), str(host / "usr/lib/dangling"))


def test_device_nodes_are_in_the_containers_own_dev(host: Path) -> None:
    """A5: they come by CDI, not with the host's tree; where that has a /dev, it is asked alone."""
    assert host_paths.exists(host, "/dev/null")
    assert host_paths.located(host, "/dev/null") == Path("/dev/null")
    (host / "dev").mkdir()
    assert not host_paths.exists(host, "/dev/null")
    assert host_paths.located(host, "/dev/null") == host / "dev/null"
