"""A command inside a root file system, with nothing of this machine but the kernel.

Namespaces of its own for mounts, processes, IPC, host name and, unless asked for, the network; they
and all that was mounted go with the command. Needs root.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deploy.image.errors import BuildError

NOBODY = 65532
"""The image's user."""
DEVICES = ("null", "zero", "full", "random", "urandom")
NAMESPACES = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How commands are run in a root file system."""

    root: Path
    environment: Mapping[str, str]
    user: int = NOBODY
    network: bool = False
    """Whether it has this machine's network; otherwise loopback alone."""
    writable: bool = False
    """Whether it may change the root; /tmp and /dev/shm are its own and in memory either way."""
    directory: str = "/tmp"  # noqa: S108 # inside, a tmpfs of its own
    shown: Mapping[str, str] = field(default_factory=dict)
    """What is seen of this machine, path inside -> path here; made if not there, below /tmp."""

    def run(self, command: Sequence[str], *, given: str = "", limit_s: float = 600.0) -> str:
        """What it printed, both streams; `given` is its input.

        Raises `BuildError` if it fails or lasts too long.
        """
        told = json.dumps({**asdict(self), "root": str(self.root), "command": list(command)}) + "\n"
        spaces = [*NAMESPACES, *([] if self.network else ["--net"])]
        start = ["unshare", *spaces, sys.executable, "-P", "-m", __name__]
        try:
            done = subprocess.run(
                start,
                input=told + given,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise BuildError(f"{' '.join(command)}: not done after {limit_s:.0f} s") from late
        if done.returncode != 0:
            last = "\n".join(done.stdout.splitlines()[-40:])
            raise BuildError(
                f"{' '.join(command)}: ended with {done.returncode} in the image\n{last}"
            )
        return done.stdout


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, stdin=subprocess.DEVNULL)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh", b"lo", 0)
        name, flags = struct.unpack("16sh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked)[:18])
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", name, flags | IFF_UP))


def _prepare(root: Path, shown: Mapping[str, str], *, writable: bool) -> None:
    """Mounts of this mount namespace alone."""
    _mount("--bind", str(root), str(root))
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / "tmp"))
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(root / "dev"))
    for name in DEVICES:
        (root / "dev" / name).touch()
        _mount("--bind", f"/dev/{name}", str(root / "dev" / name))
    (root / "dev" / "fd").symlink_to("/proc/self/fd")
    (root / "dev" / "shm").mkdir()
    _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(root / "dev/shm"))
    for inside, here in shown.items():
        target = root / inside.lstrip("/")
        if not target.exists():
            if Path(here).is_dir():
                target.mkdir(parents=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
        _mount("--bind", here, str(target))
    if not writable:
        _mount("-o", "remount,bind,ro", str(root))


def _first_line() -> bytes:
    """Of the input, and not a byte more: the rest is the command's."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    return line


def _main() -> None:
    told = json.loads(_first_line())
    root = Path(told["root"])
    if not told["network"]:
        _raise_loopback()
    _prepare(root, told["shown"], writable=told["writable"])
    os.chroot(root)
    os.chdir(told["directory"])
    os.setgroups([])
    os.setgid(told["user"])
    os.setuid(told["user"])
    os.umask(0o022)
    command = told["command"]
    found = next(
        (
            path
            for place in told["environment"].get("PATH", "/usr/bin:/bin").split(":")
            if os.access(path := f"{place}/{command[0]}", os.X_OK)
        ),
        command[0],
    )
    os.execve(found, command, told["environment"])  # noqa: S606 # it takes our place


if __name__ == "__main__":
    _main()
