"""MPS daemons and servers of a node: which there are, and what each of them holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fleet.devices.nvidia.daemons import CONTROL, SERVER, find, is_alive
from tests.fleet.devices.nvidia import hosttree

UUID = "GPU-stand-in-0"
DAEMON, SERVER_PID, OTHER = 300, 301, 310
POD = "0a1b2c3d-0000-4000-8000-00000000000f"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a daemon that has one server."""
    found = hosttree.host(tmp_path)
    hosttree.process(found, DAEMON, CONTROL, environment=["CUDA_MPS_PIPE_DIRECTORY=/run/mps"])
    server = hosttree.process(found, SERVER_PID, SERVER, opens=["/dev/nvidia0"])
    stat = (server / "stat").read_text()
    (server / "stat").write_text(stat.replace(") S 1 ", f") S {DAEMON} "))
    return found


def test_daemon_and_server_are_told_apart(root: Path) -> None:
    """gpus-8.34: the kernel cuts both names to the same; their command lines tell."""
    found = find(root)
    (daemon,) = found.daemons
    assert (daemon.pid, daemon.pipes, daemon.logs, daemon.of_host) == (
        DAEMON, "/run/mps", "/var/log/nvidia-mps", True,
    )  # fmt: skip
    assert [server.pid for server in found.servers] == [SERVER_PID]


def test_a_daemon_with_nothing_said_uses_the_usual_places(root: Path) -> None:
    """gpus-8.34: an environment that may not be read, or says nonsense, hides no daemon."""
    (root / f"proc/{DAEMON}/environ").unlink()
    assert find(root).daemons[0].pipes == "/tmp/nvidia-mps"  # noqa: S108 # the vendor's
    hosttree.put(root, f"proc/{DAEMON}/environ", "CUDA_MPS_PIPE_DIRECTORY=../etc\0broken\0")
    assert find(root).daemons[0].pipes == "/tmp/nvidia-mps"  # noqa: S108 # the vendor's


def test_a_process_that_is_ending_is_a_holder_yet(root: Path) -> None:
    """gpus-8.34: without a command line it is still one of the two, if it has the device."""
    hosttree.put(root, f"proc/{SERVER_PID}/cmdline", "")
    found = find(root)
    assert [one.pid for one in found.serving({SERVER_PID})] == [SERVER_PID]
    assert [one.name for one in found.servers] == ["nvidia-cuda-mps"]


@pytest.mark.parametrize(
    ("visible", "serves"),
    [
        (None, True), ("", False), ("0", True), (UUID, True), ("GPU-stand", True),
        ("GPU-other", False), (f"GPU-other,{UUID}", True), ("MIG-x", True),
    ],
)  # fmt: skip
def test_a_daemon_may_be_limited_to_other_devices(
    root: Path, visible: str | None, serves: bool
) -> None:
    """gpus-8.34: by UUID it can be told which; an index may be any device, so it counts."""
    text = "" if visible is None else f"CUDA_VISIBLE_DEVICES={visible}\0"
    hosttree.put(root, f"proc/{DAEMON}/environ", text)
    assert find(root).daemons[0].serves(UUID) is serves


def test_a_server_of_another_device_is_no_holder_of_this_one(root: Path) -> None:
    """Promise 9: only servers that have this device open count."""
    hosttree.put(root, f"proc/{DAEMON}/environ", "CUDA_VISIBLE_DEVICES=GPU-other\0")
    assert find(root).serving({999}) == ()
    assert find(root).holding(UUID, {999}) == ()


def test_a_name_in_a_container_holds_nothing(root: Path) -> None:
    """gpus-8.34, promise 9: a pod without a GPU blocks none by what it calls itself; a daemon in a
    container counts where it or a server it started has the device, and one of the host always."""
    hosttree.process(root, OTHER, CONTROL, mounts=hosttree.OTHER_MOUNTS)
    assert [one.pid for one in find(root).holding(UUID)] == [DAEMON]
    assert [one.pid for one in find(root).holding(UUID, {OTHER})] == [DAEMON, OTHER]
    (root / f"proc/{DAEMON}/ns/mnt").unlink()
    (root / f"proc/{DAEMON}/ns/mnt").symlink_to(hosttree.OTHER_MOUNTS)
    assert find(root).holding(UUID) == ()
    assert [one.pid for one in find(root).holding(UUID, {SERVER_PID})] == [DAEMON]


@pytest.mark.parametrize(
    ("group", "pod"),
    [
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/c", POD),
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-x.scope", POD),
        (f"5:devices:/a\n4:memory:/kubepods/besteffort/pod{POD}/0123", POD),
        (f"0::/kubepods/pod{POD}", POD),
        ("0::/system.slice/mps.service", ""),
        (f"0::/user.slice/pod{POD}/x", ""),
        (f"0::/kubepods/pod{POD}0/x", ""),
    ],
)
def test_a_pod_is_known_by_its_control_group(root: Path, group: str, pod: str) -> None:
    """gpus-8.36: whoever has to end it is told which pod it is in, under both drivers of groups."""
    hosttree.put(root, f"proc/{DAEMON}/cgroup", f"{group}\n")
    assert find(root).daemons[0].pod == pod


def test_a_daemon_is_alive_until_it_has_ended(root: Path) -> None:
    """gpus-8.34: a later process with its pid is not it, and neither is one nobody reaped yet."""
    (daemon,) = find(root).daemons
    stat = root / f"proc/{DAEMON}/stat"
    told = stat.read_text()
    assert is_alive(daemon, root)
    for other in (told.replace(f"{1000 + DAEMON}", "7"), told.replace(") S", ") Z")):
        stat.write_text(other)
        assert not is_alive(daemon, root)
    shutil.rmtree(root / f"proc/{DAEMON}")
    assert not is_alive(daemon, root)


def test_a_daemon_whose_first_thread_ended_is_one(root: Path) -> None:
    """gpus-8.34: its other threads have its command line and its environment."""
    place = f"proc/{DAEMON}"
    for name in ("cmdline", "environ"):
        hosttree.put(root, f"{place}/task/{DAEMON + 9}/{name}", (root / place / name).read_text())
        hosttree.put(root, f"{place}/{name}", "")
    (root / place / "task" / str(DAEMON)).mkdir()
    assert [(one.pid, one.pipes) for one in find(root).daemons] == [(DAEMON, "/run/mps")]
