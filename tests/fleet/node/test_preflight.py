"""The hand-over of specs to the container runtime is looked at before a pod meets it (B86)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fleet.node.preflight import Preflight

PLANT = Path(__file__).parents[2] / "corpus" / "B86-cdi-preflight" / "plant"


def host(tmp_path: Path, config: str = "", *, inotify: bool = False) -> Path:
    """A host with this configuration of containerd, and the planted limit."""
    root = tmp_path / "host"
    (root / "etc/containerd").mkdir(parents=True)
    if config:
        shutil.copy(PLANT / "etc/containerd" / config, root / "etc/containerd/config.toml")
    if inotify:
        shutil.copytree(PLANT / "proc", root / "proc")
    return root


def looked(root: Path, directory: Path) -> Preflight:
    """A preflight that has looked."""
    found = Preflight(root, directory, "fleetscrub.dev")
    found.look()
    return found


@pytest.mark.parametrize(
    ("config", "said"),
    [("config-disabled.toml", "enable_cdi = true"), ("config-other-dir.toml", "cdi_spec_dirs")],
)
def test_b86_a_runtime_that_will_not_find_specs_is_told_with_its_setting(
    tmp_path: Path, config: str, said: str
) -> None:
    """B86: CDI switched off, or read elsewhere, is found before a container fails, and the setting
    that mends it is named."""
    found = looked(host(tmp_path, config), Path("/var/run/cdi"))
    (told,) = found.found
    assert said in told
    assert found.unknown == ""


def test_b86_a_runtime_that_reads_our_directory_is_no_trouble(tmp_path: Path) -> None:
    """B86: the directory that the runtime names is ours by whichever of its names."""
    root = host(tmp_path, "config-other-dir.toml")
    assert looked(root, Path("/etc/cdi")).found == ()
    path = root / "etc/containerd/config.toml"
    path.write_text(path.read_text().replace("/etc/cdi", "/run/cdi"))
    assert looked(root, Path("/var/run/cdi/")).found == ()


def test_b86_too_few_inotify_instances_are_told(tmp_path: Path) -> None:
    """B86: a host whose runtime may not watch its directory is found by the limit."""
    (told,) = looked(host(tmp_path, inotify=True), Path("/var/run/cdi")).found
    assert "fs.inotify.max_user_instances" in told


def test_b86_what_cannot_be_read_is_unknown_and_no_trouble(tmp_path: Path) -> None:
    """B86: a host that shows no configuration of a runtime is not called right, nor wrong."""
    found = looked(host(tmp_path), Path("/var/run/cdi"))
    assert found.found == ()
    assert "not" in found.unknown or "no configuration" in found.unknown


def test_b86_a_canary_is_written_and_removed(tmp_path: Path) -> None:
    """B86: a spec of no device proves that the directory takes one, and leaves nothing; a directory
    that takes none is told."""
    directory = tmp_path / "cdi"
    directory.mkdir()
    assert looked(host(tmp_path), directory).found == ()
    assert list(directory.iterdir()) == []
    shutil.rmtree(directory)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / f".fleetscrub.dev-canary_{os.getpid()}.json.tmp").mkdir()
    (told,) = looked(tmp_path / "host", tmp_path / "full").found
    assert "no spec can be written" in told
