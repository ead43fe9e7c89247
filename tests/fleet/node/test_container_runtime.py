"""Whether the host's container runtime gives accelerators past DRA, by its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.node.condition import LOOK_PERIOD_S
from fleet.node.container_runtime import BY_MOUNT, BY_VARIABLE, ContainerRuntime
from tests.fleet.node.conftest import Lab

CONTAINERD = """
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{default}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.special.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""
CRIO = '[crio.runtime]\ndefault_runtime = "{default}"\n'
DOCKER = '{{"default-runtime": "{default}"}}'
TOOLKIT = "etc/nvidia-container-runtime/config.toml"
CLOSED = f"{BY_VARIABLE} = false\n"


def host(root: Path, files: dict[str, str]) -> ContainerRuntime:
    """A host with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return ContainerRuntime(root)


@pytest.mark.parametrize(
    ("file", "text", "default", "toolkit", "is_open"),
    [
        ("etc/containerd/config.toml", CONTAINERD, "nvidia", "", True),
        ("etc/containerd/config.toml", CONTAINERD, "special", "", True),
        ("etc/containerd/config.toml", CONTAINERD, "runc", "", False),
        ("etc/containerd/config.toml", CONTAINERD, "nvidia", CLOSED, False),
        ("etc/containerd/config.toml", CONTAINERD, "nvidia", f"{CLOSED}{BY_MOUNT} = true\n", True),
        ("var/lib/rancher/k3s/agent/etc/containerd/config.toml", CONTAINERD, "nvidia", "", True),
        ("etc/crio/crio.conf.d/99-nvidia.conf", CRIO, "nvidia", "", True),
        ("etc/crio/crio.conf.d/99-nvidia.conf", CRIO, "crun", "", False),
        ("etc/docker/daemon.json", DOCKER, "nvidia", f"{BY_VARIABLE} = true\n", True),
        ("proc/1/root/etc/containerd/config.toml", CONTAINERD, "nvidia", "", True),
    ],
)
def test_f03_a_runtime_that_gives_gpus_to_whoever_asks_is_told(
    tmp_path: Path, file: str, text: str, default: str, toolkit: str, is_open: bool
) -> None:
    """F03: NVIDIA's runtime as the default one, as long as it takes the variable or a mount."""
    files = {file: text.format(default=default)}
    runtime = host(tmp_path, files | ({TOOLKIT: toolkit} if toolkit else {}))
    found = runtime.look()
    assert bool(found.trouble) == is_open
    assert not found.unknown
    if is_open:
        assert f"set {BY_VARIABLE} and {BY_MOUNT} to false" in found.trouble


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no configuration of one was found"),
        ({"etc/containerd/config.toml": "= 3"}, "/etc/containerd/config.toml is not readable"),
        (
            {"etc/containerd/config.toml": CONTAINERD.format(default="nvidia"), TOOLKIT: "= 3"},
            f"/{TOOLKIT} is not readable",
        ),
    ],
)
def test_f03_files_that_cannot_be_read_are_unknown(
    tmp_path: Path, files: dict[str, str], why: str
) -> None:
    """F03: what nobody could look at is neither good nor bad."""
    found = host(tmp_path, files).look()
    assert not found.trouble
    assert why in found.unknown


def test_f03_the_node_tells_it(lab: Lab, tmp_path: Path) -> None:
    """F03: in the node's view, for as long as it lasts."""
    files = {"etc/containerd/config.toml": CONTAINERD.format(default="nvidia")}
    lab.node._parts.runtime = host(tmp_path, files)
    lab.node._condition.step(LOOK_PERIOD_S)
    view = lab.node.view()
    assert any("gives every GPU to any container" in text for text in view.degraded)
    assert not view.blocked
    host(tmp_path, {TOOLKIT: CLOSED})
    lab.node._condition.step(2 * LOOK_PERIOD_S)
    assert lab.node.view().degraded == ()
