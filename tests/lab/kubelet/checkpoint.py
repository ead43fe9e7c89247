"""Kubelet's record of claims, in memory and as its file ``dra_manager_state`` (reference 1.6).

The file is JSON: ``Data`` is the text of a second JSON document, ``Checksum`` its CRC-32 (IEEE).
Whether a claim is prepared is not in it: a kubelet that starts again asks again.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.plugin.requests import AskedClaim, PreparedDevice

NAME = "dra_manager_state"
_KIND = "DRACheckpoint"
_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"


@dataclass(slots=True)
class ClaimEntry:
    """One claim kubelet knows: by whom it is used and what the drivers answered."""

    namespace: str
    name: str
    uid: str
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    prepared: bool = False
    """Forgotten with the process."""

    @property
    def asked(self) -> AskedClaim:
        """As it is named to a plugin."""
        return AskedClaim(namespace=self.namespace, uid=self.uid, name=self.name)


def write(path: Path, entries: Iterable[ClaimEntry]) -> None:
    """Replace the file as a whole."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(encoded(entries))
    temporary.replace(path)


def read(path: Path) -> list[ClaimEntry]:
    """The entries; none without a file. Raises `CheckpointUnreadable`: kubelet will not start."""
    try:
        return decoded(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.CheckpointUnreadable(f"{path}: {error}") from error


def encoded(entries: Iterable[ClaimEntry]) -> str:
    """The text of the file."""
    content = json.dumps(
        {
            "kind": _KIND,
            "apiVersion": _VERSION,
            "ClaimInfoStateList": [_written(entry) for entry in entries],
        },
        separators=(",", ":"),
    )
    return json.dumps({"Data": content, "Checksum": zlib.crc32(content.encode())})


def decoded(text: str) -> list[ClaimEntry]:
    """The entries of such a text. Raises ValueError, KeyError or TypeError when it is damaged."""
    outer = json.loads(text)
    content = outer["Data"]
    if outer["Checksum"] != zlib.crc32(content.encode()):
        raise ValueError("checkpoint is corrupted")
    return [_read(entry) for entry in json.loads(content)["ClaimInfoStateList"] or ()]


def _written(entry: ClaimEntry) -> dict[str, Any]:
    return {
        "ClaimUID": entry.uid,
        "ClaimName": entry.name,
        "Namespace": entry.namespace,
        "PodUIDs": {uid: {} for uid in sorted(entry.pods)},  # a set, as Go writes it
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": device.pool,
                        "DeviceName": device.device,
                        "ShareID": device.share_id,
                        "RequestNames": list(device.requests),
                        "CDIDeviceIDs": list(device.cdi_ids),
                    }
                    for device in devices
                ]
            }
            for driver, devices in entry.drivers.items()
        },
    }


def _read(found: dict[str, Any]) -> ClaimEntry:
    return ClaimEntry(
        namespace=found["Namespace"],
        name=found["ClaimName"],
        uid=found["ClaimUID"],
        pods=set(found["PodUIDs"]),
        drivers={
            driver: [
                PreparedDevice(
                    requests=tuple(device["RequestNames"]),
                    pool=device["PoolName"],
                    device=device["DeviceName"],
                    cdi_ids=tuple(device["CDIDeviceIDs"]),
                    share_id=device["ShareID"],
                )
                for device in state["Devices"]
            ]
            for driver, state in found["DriverState"].items()
        },
    )
