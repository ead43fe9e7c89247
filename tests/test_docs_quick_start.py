"""The commands of docs/quick-start.md for a laptop, run one after the other."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fleet import bootstrap
from fleet.cli.main import main
from fleet.leases import AcquireRequest
from fleet.messages import ScrubOrder
from fleet.model import Holder, HolderKind, Lease, UnitId
from tests.document import ROOT, blocks, commands

PAGE = (ROOT / "docs" / "quick-start.md").read_text()
LAPTOP = PAGE.partition("## A laptop\n")[2].partition("\n## ")[0]
BY_RAY = frozenset({"scrub", "prove"})
"""Verbs that start a Ray: tests/jobs/test_scrub.py and tests/fleet/cli/test_prove.py run them; here
the wipe is that of the node itself."""
WAIT_S = 30.0


def scrub(state: Path, run: str) -> None:
    """Every device of the fleet wiped and judged under one lease, as a campaign does."""
    plan = bootstrap.plan_fleet(state)
    coordinator = bootstrap.open_coordinator(plan.coordinator)
    for one in plan.nodes:
        with closing(bootstrap.open_node(one)) as node:
            node.adopt(operator="me")
            devices = node.view().devices
            units = frozenset(UnitId(unit) for device in devices for unit in device.units)
            holder = Holder(HolderKind.OPERATOR, "me")
            (lease,) = coordinator.acquire([AcquireRequest(units, holder, ttl_s=60.0)])
            assert isinstance(lease, Lease)
            orders = [
                ScrubOrder(
                    operation=f"{run}/{device.uuid}",
                    node=one.node,
                    device=device.uuid,
                    token=str(lease.token),
                )
                for device in devices
            ]
            accepted = [order.operation for order in orders if node.scrub([order])[0].accepted]
            deadline = time.monotonic() + WAIT_S
            while len(node.view(accepted).results) < len(accepted):
                assert time.monotonic() < deadline, "the wipes did not end"
                threading.Event().wait(0.01)
            coordinator.sign_heads({one.node: node.head()})  # type: ignore[dict-item]
            coordinator.release(holder, lease.token)


def steps() -> Iterator[tuple[str, ...]]:
    """The words of each line of the laptop's blocks that starts `fleet`, in order."""
    shown = "\n".join(content for language, content in blocks(LAPTOP) if language == "sh")
    for line in commands("fleet"):
        if line.page == "docs/quick-start.md" and line.whole and line.text in shown.splitlines():
            yield line.words


def test_the_laptop_s_commands_do_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: the text is found before the scrub and not after it; the broken device goes out of
    service, says why, and comes back by a decision and a wipe."""
    bootstrap.plan_fleet(tmp_path, simulate="1x4", memory_bytes=1 << 20)
    monkeypatch.setenv("FLEET_STATE", str(tmp_path))
    scrub(tmp_path, "first")
    searches, codes = [], []
    for number, words in enumerate(steps()):
        if words[0] == "scrub":
            scrub(tmp_path, str(number))
        elif words[0] not in BY_RAY:
            codes.append((words[0], main([*words])))
            told = capsys.readouterr().out
            searches += re.findall(r"found (\d+)", told) if "search" in words else []
            if words[:2] == ("quarantine", "list"):
                assert "node-01/gpu-3: remap-failed" in told
    assert searches == ["1", "0"]
    assert [verb for verb, code in codes if code] == ["sim", "sweep"]
    assert main(["status"]) == 0


def test_what_starts_a_ray_is_named() -> None:
    """The lines left out above are the two verbs that need one, and no more."""
    assert {words[0] for words in steps()} >= BY_RAY
