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

_UID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")


@dataclass(frozen=True, slots=True)
class SpecDirectory:
    """One directory of specs of one vendor and class. `vendor` is a domain."""

    directory: Path
    vendor: str = "fleetscrub.dev"
    kind: str = "gpu"

    def name(self, uid: ClaimUid) -> str:
        """``<vendor>-<class>_<claim uid>.json``. Raises `InputInvalid` if the uid is no name."""
        if not _UID.match(uid):
            raise errors.InputInvalid(
                f"claim uid {uid!r} cannot be part of a file name",
                remedy="claim uids are letters, digits and hyphens",
            )
        return f"{self.vendor}-{self.kind}_{uid}.json"

    def write(self, claim: Claim, attributes: Mapping[Uuid, Mapping[str, str]]) -> None:
        """Make the claim's spec visible, mode 0644."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / self.name(claim.uid)
        temporary = self.directory / f".{path.name}.tmp"
        text = json.dumps(self._spec(claim, attributes), indent=2, sort_keys=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)
            os.write(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
        self._sync()

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
        """Remove the claim's spec; absent is fine."""
        path = self.directory / self.name(uid)
        path.unlink(missing_ok=True)
        if self.directory.is_dir():
            self._sync()

    def listed(self) -> Sequence[ClaimUid]:
        """Claims that have a spec of ours in the directory."""
        prefix, suffix = f"{self.vendor}-{self.kind}_", ".json"
        if not self.directory.is_dir():
            return ()
        return tuple(
            ClaimUid(path.name[len(prefix) : -len(suffix)])
            for path in sorted(self.directory.iterdir())
            if path.name.startswith(prefix) and path.name.endswith(suffix)
        )

    def _sync(self) -> None:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _mounts(attributes: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """A simulated device is a file; a real one lists device nodes instead."""
    memory = attributes.get("memory_file")
    if not memory:
        return []
    return [{"hostPath": memory, "containerPath": "/dev/fleetscrub/memory", "options": ["bind"]}]
