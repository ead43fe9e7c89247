"""The list of daemons that may stay, and who may claim to be one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleet.core.model import Process, ProcessKind
from fleet.core.processes import is_of_the_host
from fleet.devices import infrastructure
from fleet.devices.infrastructure import kind


@contextmanager
def running(place: Path, program: str, *, mode: int = 0o755, **how: Any) -> Iterator[int]:
    """A process that runs a program of this name; its pid."""
    file = Path(shutil.copy("/bin/cat", place / program))
    file.chmod(mode)
    with subprocess.Popen([file], stdin=subprocess.PIPE, **how) as started:
        yield started.pid


@pytest.mark.parametrize("name", ["nvidia-persistenced", "nvidia-persiste"])
def test_a_listed_daemon_is_infrastructure(tmp_path: Path, name: str) -> None:
    """B3: also under the name the kernel cuts to 15 characters."""
    with running(tmp_path, "nvidia-persistenced") as pid:
        assert kind(name, pid) is ProcessKind.INFRASTRUCTURE


@pytest.mark.parametrize("name", ["", "cat", "nvidia", "nvidia-persistenced2", "nvidia-smi"])
def test_anybody_else_is_foreign(tmp_path: Path, name: str) -> None:
    """B3: only whole names of the list pass: in doubt a process is foreign."""
    with running(tmp_path, name or "cat") as pid:
        assert kind(name, pid) is ProcessKind.FOREIGN


def test_a_name_alone_makes_no_daemon(tmp_path: Path) -> None:
    """Promise 4: the name is the process's own choice; what it runs, and whether it lives, count.

    Our own process is a script: under no other name."""
    with running(tmp_path, "tenant") as pid:
        assert kind("nvidia-persistenced", pid) is ProcessKind.FOREIGN
        assert kind("fleet-driver", pid) is ProcessKind.FOREIGN
    assert kind("nvidia-persistenced", pid) is ProcessKind.FOREIGN
    assert kind("nvidia-persistenced", os.getpid()) is ProcessKind.FOREIGN
    assert kind("fleet-driver", os.getpid()) is ProcessKind.INFRASTRUCTURE


def test_another_users_process_is_no_daemon() -> None:
    """Promise 4: a daemon runs as root or as we do; only root can start somebody else here."""
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    expected = ProcessKind.FOREIGN if os.geteuid() == 0 else ProcessKind.INFRASTRUCTURE
    with tempfile.TemporaryDirectory() as public:  # another user does not reach a test's own
        Path(public).chmod(0o755)
        with running(Path(public), "nvidia-persistenced", user=user) as pid:
            assert kind("nvidia-persistenced", pid) is expected


def test_a_set_id_program_is_no_daemon(tmp_path: Path) -> None:
    """Promise 4: anybody starts one, under any name and with descriptors he has opened before."""
    with running(tmp_path, "nvidia-persistenced", mode=0o4755) as pid:
        assert kind("nvidia-persistenced", pid) is ProcessKind.FOREIGN
        assert not is_of_the_host(pid)


ACCOUNTS = (
    "root:x:0:0::/root:/bin/sh\nnvpd:x:70001:70001::/:/usr/sbin/nologin\nuser:x:70002:0::/:/\n"
)


def daemon(proc: Path, pid: int, *, user: int, group: str = "", parent: int = 7) -> None:
    """A persistence daemon that gave up root, and how it was started."""
    shown(proc, pid, users=f"{user} {user} {user} {user}")
    (proc / str(pid) / "stat").write_text(f"{pid} (nvidia-persiste) S {parent} 0 0\n")
    (proc / str(pid) / "cgroup").write_text(f"0::{group}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A host whose systemd is process 1, with accounts."""
    shown(tmp_path, 1)
    (tmp_path / "1/root/etc").mkdir(parents=True)
    (tmp_path / "1/root/etc/passwd").write_text(ACCOUNTS)
    return tmp_path


UNIT = "/system.slice/nvidia-persistenced.service"


@pytest.mark.parametrize(
    ("user", "group", "parent", "why"),
    [
        (70001, UNIT, 7, ""),
        (70001, f"/../../..{UNIT}", 7, ""),
        (70001, "/user.slice/x.scope", 1, ""),
        (70001, "/user.slice/x.scope", 7, "was not started as nvidia-persistenced.service"),
        (70001, f"/user.slice{UNIT}", 7, "was not started as nvidia-persistenced.service"),
        (70002, UNIT, 1, "runs as user 70002 and counts as part of the node only as root, nvidia-"),
        (70003, UNIT, 1, "runs as user 70003"),
    ],
)
def test_f80_a_daemon_under_its_own_account_is_infrastructure(
    proc: Path, user: int, group: str, parent: int, why: str
) -> None:
    """F80: nvidia-persistenced may run as the user its package made for it, started by the host's
    systemd; any other user, and any other start, is foreign and is told why."""
    daemon(proc, 5, user=user, group=group, parent=parent)
    found = infrastructure.process(5, "nvidia-persiste", proc=proc)
    if os.geteuid() != 0 and not why:
        why = "its program can be written by others than root"  # a test's files are its own
    if why:
        assert found.kind is ProcessKind.FOREIGN
        assert found.name.startswith(f"nvidia-persiste ({why}")
    else:
        assert found == Process(5, "nvidia-persiste", ProcessKind.INFRASTRUCTURE)


def test_f80_an_account_counts_only_with_roots_program_on_the_host(proc: Path) -> None:
    """F80: another mount namespace, a program that others may write, a program that takes on
    another user, or a host whose accounts cannot be read: foreign."""
    daemon(proc, 5, user=70001, group=UNIT)
    program = proc / "nvidia-persistenced"

    def found() -> ProcessKind:
        return infrastructure.process(5, "nvidia-persistenced", proc=proc).kind

    root = os.geteuid() == 0
    assert found() is (ProcessKind.INFRASTRUCTURE if root else ProcessKind.FOREIGN)
    for mode in (0o775, 0o757, 0o4755, 0o2755):
        program.chmod(mode)
        assert found() is ProcessKind.FOREIGN
    program.chmod(0o755)
    (proc / "5/ns/mnt").unlink()
    (proc / "5/ns/mnt").symlink_to("mnt:[2]")
    assert found() is ProcessKind.FOREIGN
    (proc / "5/ns/mnt").unlink()
    (proc / "5/ns/mnt").symlink_to("mnt:[1]")
    (proc / "1/root/etc/passwd").unlink()
    assert found() is ProcessKind.FOREIGN


def test_f80_daemons_without_an_account_of_their_own_run_as_root(proc: Path) -> None:
    """F80: the account of one row says nothing about another row."""
    daemon(proc, 5, user=70001, group="/system.slice/nvidia-dcgm.service")
    (proc / "nv-hostengine").touch(mode=0o755)
    (proc / "5/exe").unlink()
    (proc / "5/exe").symlink_to("../nv-hostengine")
    found = infrastructure.process(5, "nv-hostengine", proc=proc)
    assert found.kind is ProcessKind.FOREIGN
    assert "runs as user 70001 and counts as part of the node only as root" in found.name


def test_every_row_says_why_it_is_there() -> None:
    """B3: a listed daemon may stay for a wipe and for nothing else, with text and source."""
    rows = infrastructure.rows()
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.allowed_for == {infrastructure.WIPE} for row in rows)
    assert all(row.text and row.source for row in rows)


def test_holders_are_named_with_what_they_do() -> None:
    """gpus-8.36: a refusal names the holder, and of a daemon what it is for."""
    monitor = Process(7, "nv-hostengine", ProcessKind.INFRASTRUCTURE)
    tenant = Process(8, "nv-hostengine", ProcessKind.FOREIGN)
    assert infrastructure.listed([monitor, tenant]) == (
        "nv-hostengine (pid 7), which collects health readings (DCGM), nv-hostengine (pid 8)"
    )


def shown(proc: Path, pid: int, *, mounts: str = "mnt:[1]", users: str = "0 0 0 0") -> None:
    """A process that says it is a daemon of the list, below another proc."""
    (proc / str(pid) / "ns").mkdir(parents=True)
    (proc / str(pid) / "ns/mnt").symlink_to(mounts)
    (proc / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{users}\nGid:\t0\t0\t0\t0\n")
    (proc / "nvidia-persistenced").touch()
    (proc / str(pid) / "exe").symlink_to("../nvidia-persistenced")


def test_another_mount_namespace_is_not_the_hosts(tmp_path: Path) -> None:
    """Promise 4: below another root too, only a process that sees the host's files is of it."""
    for pid, mounts in ((1, "mnt:[1]"), (5, "mnt:[1]"), (6, "mnt:[2]")):
        shown(tmp_path, pid, mounts=mounts)
    assert kind("nvidia-persistenced", 5, proc=tmp_path) is ProcessKind.INFRASTRUCTURE
    assert kind("nvidia-persistenced", 6, proc=tmp_path) is ProcessKind.FOREIGN
    assert kind("nvidia-persistenced", 7, proc=tmp_path) is ProcessKind.FOREIGN


@pytest.mark.parametrize("users", ["70000 0 0 0", "0 70000 0 0", "0 0 70000 0", ""])
def test_who_runs_it_is_every_user_it_has(tmp_path: Path, users: str) -> None:
    """Promise 4: a set-id program that somebody started has his real user, whatever it does."""
    shown(tmp_path, 1)
    shown(tmp_path, 5, users=users)
    assert kind("nvidia-persistenced", 1, proc=tmp_path) is ProcessKind.INFRASTRUCTURE
    assert kind("nvidia-persistenced", 5, proc=tmp_path) is ProcessKind.FOREIGN
