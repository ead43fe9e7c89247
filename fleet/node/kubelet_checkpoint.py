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
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core.errors import MALFORMED, CheckpointUnreadable
from fleet.core.model import ClaimUid

NAME = "dra_manager_state"
"""File name below kubelet's root directory."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the file says. `present` False: there is none, which is not the same as "nobody"."""

    present: bool
    pods: Mapping[ClaimUid, tuple[str, ...]]
    """UIDs of the pods that use each claim."""
    devices: Mapping[ClaimUid, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Names of the devices each claim was given, by driver; none before its prepare succeeded."""


def read(path: Path) -> Checkpoint:
    """Read the file. Raises `CheckpointUnreadable` when it cannot be read or is damaged."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Checkpoint(present=False, pods={})
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointUnreadable(f"kubelet's checkpoint {path}: {error}") from error
    try:
        return _understood(text)
    except MALFORMED as error:
        raise CheckpointUnreadable(
            f"kubelet's checkpoint {path} cannot be understood: {error}"
        ) from error


def _understood(text: str) -> Checkpoint:
    outer = json.loads(text)
    content, checksum = outer["Data"], outer["Checksum"]
    if checksum != zlib.crc32(content.encode()):
        raise ValueError(f"the checksum is {checksum}, not that of its content")
    inner = json.loads(content)
    # Earlier versions of kubelet call the list Entries.
    key = "ClaimInfoStateList" if "ClaimInfoStateList" in inner else "Entries"
    found: dict[ClaimUid, tuple[str, ...]] = {}
    devices: dict[ClaimUid, dict[str, tuple[str, ...]]] = {}
    for entry in inner[key] or ():
        uid = ClaimUid(entry["ClaimUID"])
        pods = tuple(_uids(entry.get("PodUIDs")))
        found[uid] = tuple(sorted({*found.get(uid, ()), *pods}))
        for driver, state in (entry.get("DriverState") or {}).items():
            names = tuple(str(device["DeviceName"]) for device in state.get("Devices") or ())
            mine = devices.setdefault(uid, {})
            mine[driver] = (*mine.get(driver, ()), *names)
    return Checkpoint(present=True, pods=found, devices=devices)


def _uids(listed: object) -> list[str]:
    """A set of strings, as Go writes it: an object with these keys. A list is accepted too."""
    if listed is None:
        return []
    if not isinstance(listed, dict | list) or not all(isinstance(uid, str) for uid in listed):
        raise TypeError(f"PodUIDs is {listed!r}")
    return list(listed)
