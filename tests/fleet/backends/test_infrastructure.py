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

from fleet.backends import infrastructure
from fleet.backends.infrastructure import kind
from fleet.model import Process, ProcessKind


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
        assert not infrastructure.is_of_the_host(pid)


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
