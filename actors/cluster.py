"""Starting a local Ray for one command, and attaching to a running one.

Everything security-relevant is explicit: Ray's own default for token authentication depends on the
version and on $HOME. A local Ray lives exactly as long as the command that started it and never
answers on another's behalf; ``ray stop`` is never called, since it ends every Ray on the host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors

NAMESPACE = "fleetscrub"
"""Namespace of all our named actors."""
LOCAL_HOST = "local"
"""Host label of the one raylet of a local Ray."""
SOCKET_PATH_MAX = 107
"""Longest path of a unix socket, bytes."""
SESSION_TAIL = len("/ray/session_2026-11-29_14-43-00_123456_1234567/sockets/plasma_store")
_TOKENS: list[str] = []
"""The token Ray has read in this process, once it has."""
LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At "0" Ray does on every system what it does on these two: all its processes use loopback."""
HEAD_WAIT = "RAY_gcs_server_port_wait_time_s"
HEAD_WAIT_S = "120"
"""Time, s, Ray's head has to start at the second try (default 30)."""
REMOVE_S = 10.0
"""Time, s, what is left of a Ray has to be gone."""
REMOVE_PAUSE_S = 0.1
LOG = logging.getLogger(__name__)

KNOCK_S = 5.0
"""Time, s, the machine of Ray's head has to take a connection."""
POD_IP = "POD_IP"
"""Variable with the address of the pod we run in, and of the raylet that is ours."""
RECONNECT_S = "600"
"""Ray ends attached drivers after this many seconds without its head (default 60)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connection to Ray. `address` is None for one that lives with this process."""

    address: str | None
    dashboard: str
    """URL of the dashboard, "" without one."""
    directory: Path | None
    """Ray's own scratch directory, removed with a local Ray."""

    def close(self) -> None:
        """Disconnect; a local Ray ends with all its processes."""
        import ray

        ray.shutdown()
        if self.directory is not None:
            _remove(self.directory)


def local(state: Path, *, dashboard: bool = False) -> Cluster:
    """Start a Ray for this process on this machine, reachable from it alone.

    A start that fails, as it does on a machine that is busy, is made once more with more time.
    Raises `RayUnavailable`.
    """
    refuse_override(os.environ)
    _refuse_late(os.environ)
    try:
        return _started(state, dashboard=dashboard)
    except errors.RayUnavailable as error:
        LOG.warning("%s; it is tried once more", error.detail)
    os.environ[HEAD_WAIT] = HEAD_WAIT_S
    return _started(state, dashboard=dashboard)


def _started(state: Path, *, dashboard: bool) -> Cluster:
    """One try. Raises `RayUnavailable`; nothing of it is left then."""
    directory = _scratch()
    prepare_environment(os.environ, token=_process_token(state, directory), directory=directory)
    import ray
    from ray._private import ray_constants

    from actors.identity import HOST_LABEL

    # Ray reads this once, when it is imported, and may have been. A node address of 127.0.0.1 is
    # no way round: Ray replaces it by one that others reach, and then listens everywhere.
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        # Ray puts the driver's directory on its workers' path: whoever can write there would run
        # code in the processes that sign certificates. The scratch directory is ours alone.
        with contextlib.chdir(directory):
            context = ray.init(
                address="local",
                namespace=NAMESPACE,
                num_cpus=max(os.cpu_count() or 1, 2),
                num_gpus=0,
                labels={HOST_LABEL: LOCAL_HOST},
                include_dashboard=dashboard,
                dashboard_host="127.0.0.1",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except BaseException as error:
        ray.shutdown()
        _remove(directory)
        if not isinstance(error, Exception):
            raise
        said = str(error).strip() or type(error).__name__
        raise errors.RayUnavailable(
            f"a local Ray could not be started: {said.splitlines()[0]}",
            remedy="run again when the machine is less busy, or name a running Ray with --address",
        ) from error
    url = context.dashboard_url
    return Cluster(None, f"http://{url}" if url else "", directory)


def _remove(directory: Path) -> None:
    """The scratch directory of a Ray that has ended, and what of that Ray has not.

    A start that failed half way leaves processes which nobody knows any more, and which go on
    writing here. The directory's name is in the command lines of all of them, and in no other.
    """
    until = time.monotonic() + REMOVE_S
    while True:
        for pid in _left(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists() and not _left(directory):
            return
        if time.monotonic() >= until:
            LOG.warning("%s could not be removed: remove it by hand", directory)
            return
        time.sleep(REMOVE_PAUSE_S)


def _left(directory: Path) -> list[int]:
    """Processes of the Ray whose scratch directory this is."""
    found, name = [], os.fsencode(f"{directory}/")
    for place in Path("/proc").iterdir():
        # Some end meanwhile, and one that has ended and is not waited for has no command line.
        with contextlib.suppress(OSError):
            if place.name.isdigit() and name in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return [pid for pid in found if pid != os.getpid()]


def attach(address: str) -> Cluster:
    """Connect to a running Ray as a driver. Raises `RayUnavailable`.

    Ray takes any raylet of the machine whose process it sees, the head's first. In a pod that sees
    the host's processes that may be one whose sockets are in another pod: the address says which.
    """
    refuse_override(os.environ)
    knock(address)
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT_S)
    import ray

    from actors.translate import translated

    with translated(f"attaching to Ray at {address}"), contextlib.chdir("/"):
        context = ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address=os.environ.get(POD_IP) or None,
        )
    url = context.dashboard_url
    return Cluster(address, f"http://{url}" if url else "", None)


def knock(address: str) -> None:
    """Raises `RayUnavailable` where nobody listens: Ray itself would try for more than a minute."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
    except OSError as error:
        raise errors.RayUnavailable(
            f"nobody answers at {address}: {error}",
            remedy="check the address and that Ray's head runs, then run again",
        ) from error


def refuse_override(environ: MutableMapping[str, str]) -> None:
    """Raises `SettingsInvalid` when Ray would blank the accelerator variables of our actors."""
    if environ.get("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0") not in {"", "0"}:
        raise errors.SettingsInvalid(
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO is set: Ray would hide all accelerators from the"
            " node actor",
            remedy="unset it for the raylet and for this command",
        )


def _refuse_late(environ: MutableMapping[str, str]) -> None:
    """Raises `SettingsInvalid` when Ray was imported under a mode we would not start it in."""
    if "ray" in sys.modules and environ.get("RAY_AUTH_MODE") != "token":
        raise errors.SettingsInvalid(
            f"RAY_AUTH_MODE is {environ.get('RAY_AUTH_MODE', 'not set')}: a local Ray is started"
            " with token authentication only",
            remedy="unset RAY_AUTH_MODE, or set it to token, and run again",
        )


def prepare_environment(environ: MutableMapping[str, str], *, token: Path, directory: Path) -> None:
    """What Ray reads from the environment, before it is imported for the first time."""
    environ["RAY_AUTH_MODE"] = "token"
    environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    environ.pop("RAY_AUTH_TOKEN", None)
    environ["RAY_TMPDIR"] = str(directory)
    environ["RAY_USAGE_STATS_ENABLED"] = "0"
    environ[LOOPBACK_SWITCH] = "0"
    environ.setdefault("RAY_GRAFANA_HOST", "DISABLED")
    environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT_S)
    # A submitted job runs "python": it must be this one, with this package.
    here = str(Path(sys.executable).parent)
    paths = environ.get("PATH", os.defpath).split(os.pathsep)
    if paths[0] != here:
        environ["PATH"] = os.pathsep.join([here, *paths])


def _process_token(state: Path, directory: Path) -> Path:
    """A file with the token of this process's first local Ray: Ray reads it once and keeps it."""
    if not _TOKENS:
        path = token_file(state)
        _TOKENS.append(path.read_text())
        return path
    path = directory / "token"
    path.touch(mode=0o600)
    path.write_text(_TOKENS[0])
    return path


def token_file(state: Path) -> Path:
    """The token of this state directory's Ray, made on first use, readable by its owner only."""
    path = state / "ray" / "token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        return path
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    return path


def scratch_parent(temporary: str) -> str:
    """`temporary`, or the system's own where that is too long a path for Ray's sockets."""
    if len(temporary) + len("/fleet-12345678") + SESSION_TAIL > SOCKET_PATH_MAX:
        return "/tmp"  # noqa: S108  a socket path must be short; what is made there is private
    return temporary


def _scratch() -> Path:
    """A fresh directory short enough for Ray's sockets."""
    parent = scratch_parent(tempfile.gettempdir())
    return Path(tempfile.mkdtemp(prefix="fleet-", dir=parent))
