"""Ray's own dashboard over a fleet of ours: actors by node with counts, jobs with their result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from actors import cluster, muster
from fleet.wiring import adapters
from jobs import submit
from tests.pages.browser import Browser, Page
from tests.pages.conftest import Chromium, keep

pytestmark = [pytest.mark.pages, pytest.mark.timeout(600)]
COOKIE = "ray-authentication-token"
JOB = "scrub-20261130-night"
SIZE: dict[str, int] = {"width": 1500, "height": 820}
TEXT = "document.body.innerText"


@dataclass
class Dashboard:
    """The dashboard as an operator with the token sees it."""

    url: str
    page: Page

    async def look(
        self, path: str, words: Sequence[str], *, name: str = "", height: int = SIZE["height"]
    ) -> str:
        """The text of a page once it says all these words."""
        await self.page.call(
            "Emulation.setDeviceMetricsOverride",
            width=SIZE["width"],
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        await self.page.open("about:blank")
        await self.page.open(f"{self.url}/#/{path}")
        for word in words:
            await self.page.until(f"{TEXT}.includes({word!r})", limit_s=90.0)
        if name:
            scale = 0.8 if height <= SIZE["height"] else 0.6
            keep(name, await self.page.picture(width=SIZE["width"], height=height, scale=scale))
        return str(await self.page.evaluate(TEXT))

    async def row(self, words: str) -> str:
        """Where the first link of the row with these words leads."""
        rows = f"[...document.querySelectorAll('tr')].find(r => r.innerText.includes({words!r}))"
        link = f"{rows}.querySelector('a').href"
        return str(await self.page.evaluate(link)).partition("#/")[2]


def test_actors_and_jobs_can_be_looked_at(chromium: Chromium, tmp_path: Path) -> None:
    """E4: one actor per node with its devices by state, each change of them in the actor's log; a
    campaign is a job with its name, its command, its end, and its progress and table in its log.
    """
    state = tmp_path / "state"
    plan = adapters.plan_fleet(state, simulate="3x4", memory_bytes=4 << 20)
    log: list[str] = []
    with muster.local(plan, dashboard=True) as fleet:
        asked = ["--yes", "--operator", "night-shift"]
        assert submit.run(fleet.dashboard, asked, sink=log.append, name=JOB) == 0
        token = cluster.token_file(state).read_text()
        asyncio.run(_looked_at(chromium, tmp_path / "profile", fleet.dashboard, token))


async def _looked_at(chromium: Chromium, profile: Path, url: str, token: str) -> None:
    profile.mkdir()
    async with Browser(chromium.command, profile, chromium.environment) as browser:
        page = await browser.page(**SIZE)
        await page.call("Network.setCookie", name=COOKIE, value=token, url=url)
        board = Dashboard(url, page)
        nodes = [f"node:node-{number:02d}" for number in (1, 2, 3)]
        counts = [f"node=node-{number:02d}, SIMULATED, at its start 4 devices" for number in (1, 2)]
        await board.look("actors", [*nodes, "CoordinatorActor(at its start"], name="ray-actors")
        shown = " ".join(str(await page.evaluate(TEXT)).split())
        assert all(words in shown for words in counts)
        actor = await board.row("node:node-01")
        words = ["node:node-01", "the wipe ended", "4 devices: CLEAN=4"]
        await board.look(actor, words, name="ray-actor-log", height=1200)
        await board.look("jobs", [JOB, "fleet scrub", "SUCCEEDED"], name="ray-jobs")
        job = await board.row(JOB)
        await board.look(job, [JOB, "certified"], name="ray-job-log", height=1200)
