"""Whether a path exists on the host, also when the host's tree is mounted somewhere else (B79).

Links are followed as the host would follow them: an absolute one starts at the host's root again,
and ``..`` never leads above it. A link that ends nowhere is a missing path to a runtime too.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

DEVICES = "/dev/"
LINKS_MAX = 40
"""Links the kernel follows in one path."""


def exists(root: Path, path: str) -> bool:
    """Whether the host whose tree is at `root` has `path`. Raises OSError when it cannot tell."""
    try:
        (Path(path) if root == Path("/") else located(root, path)).stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return False
        raise
    return True


def shows_devices(root: Path) -> bool:
    """Whether the /dev seen here is the host's: else a node that is not there proves nothing."""
    return root == Path("/") or (root / "dev").exists()


def located(root: Path, path: str) -> Path:
    """Where this process sees the host's `path`. Raises OSError for too many links.

    Device nodes reach a container through CDI only (A5): where the tree at `root` has no /dev, they
    are in the container's own, under the paths they have on the host.
    """
    if path.startswith(DEVICES) and not (root / "dev").exists():
        return Path(path)
    return _resolved(root, path)


def _resolved(root: Path, path: str) -> Path:
    """`path` below `root` with every link replaced. Raises OSError for too many."""
    pending = [part for part in reversed(path.split("/")) if part]
    found: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == ".":
            continue
        if part == "..":
            del found[-1:]
            continue
        here = root.joinpath(*found, part)
        if not here.is_symlink():
            found.append(part)
            continue
        links += 1
        if links > LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = here.readlink().as_posix()
        if target.startswith("/"):
            found = []
        pending += [name for name in reversed(target.split("/")) if name]
    return root.joinpath(*found)
