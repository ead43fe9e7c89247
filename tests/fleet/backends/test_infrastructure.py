"""The list of daemons that may stay, and who may claim to be one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.backends import infrastructure
from fleet.backends.infrastructure import kind
from fleet.model import Process, ProcessKind


@pytest.mark.parametrize("name", ["nvidia-persistenced", "nvidia-persiste", "dcgm-exporter"])
def test_a_listed_daemon_is_infrastructure(name: str) -> None:
    """Also under the name the kernel cuts to 15 characters."""
    assert kind(name, os.getpid()) is ProcessKind.INFRASTRUCTURE


@pytest.mark.parametrize("name", ["", "python3", "nvidia", "nvidia-persistenced2", "nvidia-smi"])
def test_anybody_else_is_foreign(name: str) -> None:
    """Only whole names of the list pass: in doubt a process is foreign."""
    assert kind(name, os.getpid()) is ProcessKind.FOREIGN


def test_a_name_alone_makes_no_daemon() -> None:
    """Promise 4: the name is the process's own choice; one that is gone proves nothing."""
    script = "import os; print(os.getpid())"
    gone = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert kind("nvidia-persistenced", int(gone.stdout)) is ProcessKind.FOREIGN


def test_another_users_process_is_no_daemon() -> None:
    """Promise 4: a daemon runs as root or as we do; only root can start somebody else here."""
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    other = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=user)
    expected = ProcessKind.FOREIGN if os.geteuid() == 0 else ProcessKind.INFRASTRUCTURE
    assert kind("nvidia-persistenced", other.pid) is expected
    other.communicate()


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


def test_another_mount_namespace_is_not_the_hosts(tmp_path: Path) -> None:
    """Promise 4: below another root too, only a process that sees the host's files is of it."""
    for pid, mounts in ((1, "mnt:[1]"), (5, "mnt:[1]"), (6, "mnt:[2]")):
        (tmp_path / str(pid) / "ns").mkdir(parents=True)
        (tmp_path / str(pid) / "ns/mnt").symlink_to(mounts)
    assert kind("nvidia-persistenced", 5, proc=tmp_path) is ProcessKind.INFRASTRUCTURE
    assert kind("nvidia-persistenced", 6, proc=tmp_path) is ProcessKind.FOREIGN
    assert kind("nvidia-persistenced", 7, proc=tmp_path) is ProcessKind.FOREIGN
