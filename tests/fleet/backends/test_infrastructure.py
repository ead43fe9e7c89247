"""The list of daemons that may stay, and who may claim to be one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fleet.backends.infrastructure import kind
from fleet.model import ProcessKind


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
