"""CUDA MPS on a device: found, refused or asked to end, and what it leaves behind."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, DriverRefused
from fleet.core.model import Process, ProcessKind
from fleet.devices.nvidia import mps, nvml
from fleet.devices.nvidia.daemons import CONTROL, PIPE_VARIABLE, SERVER, Daemon, find
from fleet.devices.nvidia.mps import Policy
from tests.fleet.devices.nvidia import hosttree
from tests.fleet.devices.nvidia.scripted import Scripted, refuse

UUID = "GPU-stand-in-0"
DAEMON, SERVER_PID, CLIENT = 300, 301, 302
POD = "0a1b2c3d-0000-4000-8000-00000000000f"
PROGRAM = """#!/bin/sh
read command argument
echo "$command $argument" >> {root}/asked
echo "$CUDA_MPS_PIPE_DIRECTORY" >> {root}/pipes
case "$command" in
get_server_list) cat {root}/servers ;;
get_client_list) cat {root}/clients ;;
quit) {quit} ;;
esac
"""
QUITS = "rm -r {root}/proc/300 {root}/proc/301"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with a daemon that has one server and no client."""
    found = hosttree.host(tmp_path)
    hosttree.process(found, DAEMON, CONTROL, environment=["CUDA_MPS_PIPE_DIRECTORY=/run/mps"])
    hosttree.process(found, SERVER_PID, SERVER, opens=["/dev/nvidia0"])
    for name in ("control", "control_lock", f"{CONTROL}.pid"):
        hosttree.put(found, f"run/mps/{name}")
    hosttree.put(found, "var/log/nvidia-mps/control.log", "started by user 0")
    hosttree.put(found, "servers", f"{SERVER_PID}\n")
    hosttree.put(found, "clients")
    return found


def policy(root: Path, *, end: str = QUITS, deadline_s: float = 5.0) -> Policy:
    """Shuts down, with a control program that does `end` when it is asked to quit."""
    text = PROGRAM.format(root=root, quit=end.format(root=root))
    program = hosttree.put(root, "control-program", text)
    program.chmod(stat.S_IRWXU)
    return Policy(shuts_down=True, deadline_s=deadline_s, program=str(program))


def asked(root: Path) -> list[str]:
    path = root / "asked"
    return [line.strip() for line in path.read_text().splitlines()] if path.exists() else []


def test_by_default_the_daemon_is_a_holder_and_is_left_alone(root: Path) -> None:
    """gpus-8.34, B18: policy refuse names daemon and server, and says what an operator can do."""
    found = mps.settle(UUID, root=root, policy=Policy(), holding={SERVER_PID}, clients=())
    daemon, server = found.holders
    assert (daemon.pid, server) == (DAEMON, Process(SERVER_PID, SERVER, ProcessKind.FOREIGN))
    assert daemon.name == (
        f"{CONTROL} (end it with `echo quit | {CONTROL}`, or set hardware.mps to shut-down)"
    )
    assert found.ended == ()
    (found_daemon,) = find(root).daemons
    assert "clients" in mps.remedy(found_daemon, Policy(shuts_down=True))


def test_an_idle_daemon_is_asked_to_quit_and_its_leftovers_go(root: Path) -> None:
    """gpus-8.34, 8.35: shut down by policy; pipes and logs of that daemon are removed."""
    found = mps.settle(UUID, root=root, policy=policy(root), holding={SERVER_PID}, clients=())
    assert found.holders == ()
    assert [one.pid for one in found.ended] == [DAEMON]
    assert found.gone == {DAEMON, SERVER_PID}
    assert asked(root) == ["get_server_list", f"get_client_list {SERVER_PID}", "quit"]
    assert set((root / "pipes").read_text().splitlines()) == {str(root / "run/mps")}
    assert "/run/mps" in found.removed
    assert not (root / "run/mps").exists()
    assert not (root / "var/log/nvidia-mps").exists()


@pytest.mark.parametrize("known_by", ["driver", "daemon"])
def test_a_daemon_with_a_client_is_never_asked_to_quit(root: Path, known_by: str) -> None:
    """gpus-8.34, promise 4: no client is ended, whoever knows of it."""
    clients = (CLIENT,) if known_by == "driver" else ()
    if known_by == "daemon":
        hosttree.put(root, "clients", f"{CLIENT}\n")
    found = mps.settle(UUID, root=root, policy=policy(root), holding=(), clients=clients)
    assert [one.pid for one in found.holders] == [DAEMON]
    assert "quit" not in asked(root)


def test_a_daemon_that_does_not_end_in_time_stays_a_holder(root: Path) -> None:
    """gpus-8.34: the wait is bounded, and nothing of a living daemon is removed."""
    terms = policy(root, end="exec sleep 60", deadline_s=0.3)
    found = mps.settle(UUID, root=root, policy=terms, holding=(), clients=())
    assert [one.pid for one in found.holders] == [DAEMON]
    assert asked(root)[-1] == "quit"
    assert (root / "run/mps/control").exists()


def test_a_daemon_that_cannot_be_asked_stays_a_holder(root: Path) -> None:
    """gpus-8.34: no control program, or one that fails, is no leave to assume an idle daemon."""
    for program in ("/nonexistent/control", "/bin/false"):
        terms = Policy(shuts_down=True, deadline_s=5.0, program=program)
        found = mps.settle(UUID, root=root, policy=terms, holding=(), clients=())
        assert [one.pid for one in found.holders] == [DAEMON]


def test_a_daemon_in_a_container_is_asked_nothing(root: Path) -> None:
    """Promise 9: its paths are not the host's; what it names there is not ours to touch."""
    shutil.rmtree(root / f"proc/{DAEMON}")
    hosttree.process(
        root, DAEMON, CONTROL, environment=[f"{PIPE_VARIABLE}=/run/mps"],
        mounts=hosttree.OTHER_MOUNTS,
    )  # fmt: skip
    hosttree.put(root, f"proc/{DAEMON}/cgroup", f"0::/kubepods.slice/kubepods-pod{POD}.slice/c\n")
    found = mps.settle(UUID, root=root, policy=policy(root), holding={DAEMON}, clients=())
    assert [(one.pid, one.name) for one in found.holders] == [
        (DAEMON, f"{CONTROL} of pod {POD} (end it in its container, or delete the pod)")
    ]
    assert asked(root) == []
    assert mps.clear(find(root).daemons[0], root=root) == ()
    assert mps.settle(UUID, root=root, policy=Policy(), holding=(), clients=()).holders == ()


def test_only_what_a_daemon_makes_is_removed(root: Path) -> None:
    """gpus-8.35: a strange file stays, and its directory with it; no link is followed."""
    (daemon,) = find(root).daemons
    hosttree.put(root, "run/mps/notes")
    hosttree.put(root, "elsewhere/control.log")
    shutil.rmtree(root / "var/log/nvidia-mps")
    (root / "var/log/nvidia-mps").symlink_to(root / "elsewhere")
    removed = mps.clear(daemon, root=root)
    assert removed == ("/run/mps/control", "/run/mps/control_lock", f"/run/mps/{CONTROL}.pid")
    assert (root / "run/mps/notes").exists()
    assert (root / "elsewhere/control.log").exists()


def test_a_directory_of_another_user_is_left(root: Path) -> None:
    """gpus-8.35: a daemon may name any directory; only its own user's is cleared."""
    (daemon,) = find(root).daemons
    stranger = Daemon(DAEMON, 0, daemon.user + 1, daemon.pipes, daemon.logs, None, of_host=True)
    assert mps.clear(stranger, root=root) == ()
    assert (root / "run/mps/control").exists()


def test_the_exclusive_mode_of_a_daemon_that_ended_is_taken_back() -> None:
    """gpus-8.35: it would keep a second process off the device; any other mode is left."""
    gone = Scripted(nvmlDeviceGetComputeMode=3, nvmlDeviceSetComputeMode=None)
    assert mps.leave_exclusive_mode(gone, "handle")
    assert gone.called("nvmlDeviceSetComputeMode") == [("handle", 0)]
    for mode in (0, 2, refuse(nvml.NOT_SUPPORTED)):
        other = Scripted(nvmlDeviceGetComputeMode=mode)
        assert not mps.leave_exclusive_mode(other, "handle")
    refused = Scripted(
        nvmlDeviceGetComputeMode=3, nvmlDeviceSetComputeMode=refuse(nvml.NO_PERMISSION)
    )
    with pytest.raises(DriverRefused):
        mps.leave_exclusive_mode(refused, "handle")


def test_our_workers_look_where_no_daemon_is(tmp_path: Path) -> None:
    """gpus-8.34: the directory for them is there and empty, or they are not started."""
    place = mps.empty_pipe_directory(tmp_path / "run")
    assert mps.empty_pipe_directory(tmp_path / "run") == place
    assert list(place.iterdir()) == []
    place.chmod(0o700)
    (place / "control").touch()
    with pytest.raises(BackendFailed, match="has to be empty"):
        mps.empty_pipe_directory(tmp_path / "run")


def test_processes_that_cannot_be_listed_are_not_none(tmp_path: Path) -> None:
    """gpus-8.34: no view of processes is unknown, never "no daemon"."""
    with pytest.raises(BackendFailed, match="unknown"):
        mps.settle(UUID, root=tmp_path, policy=Policy(), holding=(), clients=())
