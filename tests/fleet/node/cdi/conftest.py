"""Claims and grants for the tests of CDI specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.core.claim_states import Claim, ClaimState
from fleet.core.model import BootId, ClaimUid, Token, Uuid
from fleet.devices.base import Grant, Mount
from fleet.node.cdi import files
from fleet.node.cdi.directory import SpecDirectory
from tests.fleet.node.cdi.writing import CLAIMS, NULL

UID, OTHER = CLAIMS
FILE = f"fleetscrub.dev-gpu_{UID}.json"
DEVICES = (Uuid("SIM-1"), Uuid("SIM-0"))
UNSYNCED = files.Calls(fsync=lambda _fd: None)
"""For tests of what is visible: durability is tested elsewhere, and costs most of a write."""


def claim(uid: ClaimUid = UID, devices: tuple[Uuid, ...] = DEVICES) -> Claim:
    return Claim(
        uid, ClaimState.PREPARING, devices, (), Token(1, 1), BootId("b"), namespace="n", name="pod"
    )


def grants(of: Claim, *mounts: Mount, version: str = "1") -> dict[Uuid, Grant]:
    """A grant for each device of a claim."""
    return {uuid: Grant((NULL,), mounts, {"DRIVER": version}) for uuid in of.devices}


@pytest.fixture
def specs(tmp_path: Path) -> SpecDirectory:
    return SpecDirectory(tmp_path / "cdi")
