"""Kubelet's own record of which pods use which claims, read from its checkpoint.

Kubelet writes a pod's UID there before it asks for a prepare and takes it out after the last
unprepare succeeded, so the file knows consumers that the API has forgotten (force delete) and that
our record never heard of. It is JSON: ``Data`` is the text of a second JSON document, ``Checksum``
its CRC-32 (IEEE).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import CheckpointUnreadable
from fleet.model import ClaimUid

NAME = "dra_manager_state"
"""File name below kubelet's root directory."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the file says. `present` False: there is none, which is not the same as "nobody"."""

    present: bool
    pods: Mapping[ClaimUid, tuple[str, ...]]
    """UIDs of the pods that use each claim."""


def read(path: Path) -> Checkpoint:
    """Read the file. Raises `CheckpointUnreadable` when it cannot be read or is damaged."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Checkpoint(present=False, pods={})
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointUnreadable(f"kubelet's checkpoint {path}: {error}") from error
    try:
        return Checkpoint(present=True, pods=_pods(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointUnreadable(
            f"kubelet's checkpoint {path} cannot be understood: {error}"
        ) from error


def _pods(text: str) -> dict[ClaimUid, tuple[str, ...]]:
    outer = json.loads(text)
    content, checksum = outer["Data"], outer["Checksum"]
    if checksum != zlib.crc32(content.encode()):
        raise ValueError(f"the checksum is {checksum}, not that of its content")
    inner = json.loads(content)
    # Earlier versions of kubelet call the list Entries.
    key = "ClaimInfoStateList" if "ClaimInfoStateList" in inner else "Entries"
    found: dict[ClaimUid, tuple[str, ...]] = {}
    for entry in inner[key] or ():
        uid = ClaimUid(entry["ClaimUID"])
        pods = tuple(_uids(entry.get("PodUIDs")))
        found[uid] = tuple(sorted({*found.get(uid, ()), *pods}))
    return found


def _uids(listed: object) -> list[str]:
    """A set of strings, as Go writes it: an object with these keys. A list is accepted too."""
    if listed is None:
        return []
    if not isinstance(listed, dict | list) or not all(isinstance(uid, str) for uid in listed):
        raise TypeError(f"PodUIDs is {listed!r}")
    return list(listed)
