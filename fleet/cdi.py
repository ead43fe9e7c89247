"""CDI specs: the files through which a container runtime gives a container our devices.

A spec becomes visible only complete (A1): a temporary name that no runtime scans, in the same
directory, then write, fsync, rename, fsync of the directory. Names come from the claim's UID, never
from namespace or name (A2). Removing twice is fine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet import errors
from fleet.claims import Claim
from fleet.model import ClaimUid, Uuid

CDI_VERSION = "0.5.0"
"""Lowest version that expresses what we write."""

DIRECTORY_MODE = 0o755
SPEC_MODE = 0o644

_UID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")


@dataclass(frozen=True, slots=True)
class SpecDirectory:
    """One directory of specs of one vendor and class. `vendor` is a domain."""

    directory: Path
    vendor: str = "fleetscrub.dev"
    kind: str = "gpu"

    def name(self, uid: ClaimUid) -> str:
        """``<vendor>-<class>_<claim uid>.json``. Raises `InputInvalid` if the uid is no name."""
        if not _UID.fullmatch(uid):
            raise errors.InputInvalid(
                f"claim uid {uid!r} cannot be part of a file name",
                remedy="claim uids are letters, digits and hyphens",
            )
        return f"{self.vendor}-{self.kind}_{uid}.json"

    def write(self, claim: Claim, attributes: Mapping[Uuid, Mapping[str, str]]) -> None:
        """Make the claim's spec visible, mode 0644; one that is there already is left as it is.

        Raises `SpecUnavailable`, and then what was visible before is still visible, and no more.
        """
        path = self.directory / self.name(claim.uid)
        temporary = self._temporary(path)
        text = json.dumps(self._spec(claim, attributes), indent=2, sort_keys=True).encode()
        try:
            self._make()
            if _content(path) == text:
                self._sync()
                return
            try:
                _write(temporary, text)
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            self._sync()
        except OSError as error:
            raise errors.SpecUnavailable(f"{path} cannot be written: {error}") from error

    def _spec(
        self, claim: Claim, attributes: Mapping[Uuid, Mapping[str, str]]
    ) -> Mapping[str, Any]:
        return {
            "cdiVersion": CDI_VERSION,
            "kind": f"{self.vendor}/{self.kind}",
            "devices": [
                {
                    "name": f"{claim.uid}-{uuid}",
                    "containerEdits": {
                        "env": [f"FLEETSCRUB_DEVICE={uuid}"],
                        "mounts": _mounts(attributes.get(uuid, {})),
                    },
                }
                for uuid in sorted(claim.devices)
            ],
        }

    def remove(self, uid: ClaimUid) -> None:
        """Remove the claim's spec; absent is fine. Raises `SpecUnavailable`."""
        path = self.directory / self.name(uid)
        try:
            self._temporary(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            if self.directory.is_dir():
                self._sync()
        except NotADirectoryError:
            return  # what is in its place holds no spec
        except OSError as error:
            raise errors.SpecUnavailable(f"{path} cannot be removed: {error}") from error

    def listed(self) -> Sequence[ClaimUid]:
        """Claims that have a spec of ours in the directory. Raises `SpecUnavailable`.

        A file with our prefix whose rest is no claim uid was not written by us and is not listed.
        """
        prefix, suffix = f"{self.vendor}-{self.kind}_", ".json"
        if not self.directory.is_dir():
            return ()
        try:
            names = sorted(path.name for path in self.directory.iterdir())
        except OSError as error:
            raise errors.SpecUnavailable(f"{self.directory} cannot be read: {error}") from error
        uids = (
            name[len(prefix) : -len(suffix)]
            for name in names
            if name.startswith(prefix) and name.endswith(suffix)
        )
        return tuple(ClaimUid(uid) for uid in uids if _UID.fullmatch(uid))

    def _make(self) -> None:
        """Runtimes read the directory, whatever our umask; one that exists is its maker's."""
        try:
            self.directory.mkdir(parents=True)
        except FileExistsError:
            return
        self.directory.chmod(DIRECTORY_MODE)

    def _temporary(self, path: Path) -> Path:
        return path.with_name(f".{path.name}.tmp")

    def _sync(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _write(path: Path, text: bytes) -> None:
    """All of `text`, on disk. Raises OSError."""
    with path.open("wb") as file:
        os.fchmod(file.fileno(), SPEC_MODE)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _mounts(attributes: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """A simulated device is a file; a real one lists device nodes instead."""
    memory = attributes.get("memory_file")
    if not memory:
        return []
    return [{"hostPath": memory, "containerPath": "/dev/fleetscrub/memory", "options": ["bind"]}]
