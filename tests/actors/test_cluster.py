"""What is decided before Ray starts."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actors import cluster
from fleet.core import errors

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


STARTS = """
import sys
from pathlib import Path
from actors import cluster
try:
    found = cluster.local(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
else:
    import ray
    print("started", ray.is_initialized(), found.directory.is_dir())
    found.close()
print(len(cluster._left(Path(sys.argv[2]))))
"""


@pytest.fixture
def private_directory() -> Iterator[Path]:
    """A directory of its own with a name that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="f-", dir="/tmp") as directory:
        yield Path(directory)


def started(directory: Path, **environment: str) -> tuple[list[str], list[str]]:
    """What a process says that starts a Ray below `directory`, and what is left there."""
    scratch = directory / "scratch"
    scratch.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", STARTS, str(directory / "state"), str(scratch)],
        env={**os.environ, "TMPDIR": str(scratch), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines(), [path.name for path in scratch.iterdir()]


@pytest.mark.ray
def test_f54_a_start_that_fails_is_made_once_more_and_leaves_nothing(
    private_directory: Path,
) -> None:
    """F54: Ray's head that is not up in its time, as on a busy machine, is started once more with
    more time; directory and processes of the first try are gone."""
    said, left = started(private_directory, **{cluster.HEAD_WAIT: "0"})
    assert said == ["started True True", "0"]
    assert left == []


@pytest.mark.ray
def test_f54_a_ray_that_cannot_be_started_leaves_nothing(private_directory: Path) -> None:
    """F54: where both tries fail it is said in one sentence, and nothing is left behind."""
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        said, left = started(private_directory, RAY_GCS_SERVER_PORT=port)
    assert said[0].startswith("RayUnavailable a local Ray could not be started")
    assert said[1] == "0"
    assert left == []


def test_an_address_without_ray_is_an_error_at_once() -> None:
    """Ray itself would try for more than a minute where nobody listens."""
    with pytest.raises(errors.RayUnavailable, match=r"nobody answers at 127\.0\.0\.1:1"):
        cluster.attach("127.0.0.1:1")
