"""What is decided before Ray starts."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from actors import cluster
from fleet import errors

DEADLINE_S = 120.0


def test_a_ray_that_would_hide_the_accelerators_is_refused() -> None:
    """B13: with this variable Ray blanks the accelerators of an actor that asks for none."""
    with pytest.raises(errors.SettingsInvalid):
        cluster.refuse_override({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"})
    cluster.refuse_override({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
    cluster.refuse_override({})


def test_the_token_is_private_and_stays(tmp_path: Path) -> None:
    """The token of a state directory is made once, for its owner's eyes only."""
    first = cluster.token_file(tmp_path)
    content = first.read_text()
    first.chmod(0o644)
    assert cluster.token_file(tmp_path) == first
    assert first.read_text() == content
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert len(content) == 64


def test_authentication_is_explicit(tmp_path: Path) -> None:
    """Ray's default depends on its version and on $HOME: ours is written out."""
    environment = {"RAY_AUTH_TOKEN": "somebody else's", "PATH": "/usr/bin"}
    cluster.prepare_environment(environment, token=tmp_path / "token", directory=tmp_path)
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert "RAY_AUTH_TOKEN" not in environment
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["PATH"].endswith(":/usr/bin")


def test_the_scratch_directory_leaves_room_for_sockets() -> None:
    """A socket's path has at most 107 bytes, whatever the temporary directory is called."""
    long = "/" + "x" * 90
    assert cluster.scratch_parent(long) == "/tmp"  # noqa: S108
    assert cluster.scratch_parent("/var/tmp") == "/var/tmp"  # noqa: S108


def listening(pid: int) -> set[str]:
    """Addresses (hexadecimal, as the kernel tells them) a process listens on for TCP."""
    inodes = set()
    with suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(fd.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def descendants(pid: int) -> dict[int, str]:
    """The process and all below it, with the names the kernel has for them."""
    names, children = {}, defaultdict(list)
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdigit():
                name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(") ")
                names[int(place.name)] = name
                children[int(rest.split()[1])].append(int(place.name))
    found, todo = {}, [pid]
    while todo:
        one = todo.pop()
        found[one] = names.get(one, "")
        todo += children[one]
    return found


@pytest.mark.ray
def test_a_ray_of_ours_listens_on_loopback_only(ray_cluster: cluster.Cluster) -> None:
    """Nobody on the network reaches a Ray that serves one command; its agents included."""
    assert ray_cluster.address is None
    end, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while True:
        ours = descendants(os.getpid())
        places = {(name, place) for pid, name in ours.items() for place in listening(pid)}
        told = " ".join(name for name, _ in places)
        if all(part in told for part in ("gcs_server", "raylet", "DashboardA", "RuntimeEnv")):
            break
        assert time.monotonic() < end, f"only these listen so far: {told}"
        pause.wait(0.2)
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert [(name, place) for name, place in places if place not in loopback] == []


def test_an_address_without_ray_is_an_error_at_once() -> None:
    """Ray itself would try for more than a minute where nobody listens."""
    with pytest.raises(errors.RayUnavailable, match=r"nobody answers at 127\.0\.0\.1:1"):
        cluster.attach("127.0.0.1:1")
