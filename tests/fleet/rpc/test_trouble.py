"""Who finds nobody at a node's door is told why, by the standby that tries to open it (B72)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.node.service import NodeService
from fleet.node.standby import Patience, Standby
from fleet.rpc import trouble
from fleet.rpc.client import DoorNode
from fleet.rpc.node_api import HandOver


def test_b72_a_caller_is_told_what_keeps_the_node_from_being_opened(tmp_path: Path) -> None:
    """B72, F43: the cause that the standby knows is what kubelet and operators are told, with what
    to do; nobody at the door is not the end of the answer."""
    door = DoorNode(tmp_path / "door.sock")

    def failing(_: HandOver) -> NodeService:
        raise errors.JournalUnreadable("journal.db cannot be read", remedy="repair its disk")

    standing = Standby(
        open=failing,
        door=door,
        lock=tmp_path / "lock",
        clock=SystemClock(),
        patience=Patience(grace_s=0.0),
        told=door.path,
    )
    standing.step()
    with pytest.raises(errors.NotOwner) as caught:
        door.unprepare("claim-a", budget_s=1.0)
    assert "journal.db cannot be read" in caught.value.detail
    assert caught.value.remedy == "repair its disk"
    found = trouble.read(door.path)
    assert found is not None
    assert found.pid == os.getpid()
    trouble.end(door.path)
    assert trouble.read(door.path) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"pid": 1, "at": "x", "boot_id": ""}'])
def test_b72_what_is_no_cause_is_told_to_nobody(tmp_path: Path, content: str) -> None:
    """B72: a file that is old, of another boot or damaged says nothing."""
    (tmp_path / trouble.FILE).write_text(content)
    assert trouble.read(tmp_path / "door.sock") is None
    trouble.tell(tmp_path / "door.sock", OSError(28, "no space"))
    told = json.loads((tmp_path / trouble.FILE).read_text())
    (tmp_path / trouble.FILE).write_text(json.dumps({**told, "at": told["at"] - 3600.0}))
    assert trouble.read(tmp_path / "door.sock") is None
