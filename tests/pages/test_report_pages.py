"""Pages to print, in a real browser: nothing fetched, nothing complained about, all of it there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleet.cli.pages import certificate as certificates
from fleet.cli.pages import run
from fleet.cli.pages.run_figures import Read, figures
from fleet.core.messages import Outcome
from fleet.evidence.judged import judge
from fleet.evidence.sources import collect
from fleet.stores.base import RunRecord
from tests.fleet.cli.pages.records import BEGIN, certified, failed, lost, mixed, record
from tests.fleet.cli.pages.test_certificate import HOSTILE
from tests.fleet.evidence.samples import Site, device_named
from tests.pages.browser import Browser
from tests.pages.conftest import Chromium, keep

pytestmark = pytest.mark.pages
WIDTH = 1100
BAR = "document.querySelectorAll('svg rect').length"
SEEN = "[...document.querySelectorAll('table')].filter(t => t.offsetHeight > 20).length"
TEXT = "document.body.innerText"


def proven(state: Path) -> tuple[RunRecord, Read]:
    """A run of 16 devices with evidence of their wipes; three were not covered."""
    site = Site(state)
    results = []
    for node in range(2):
        name = f"node-{node:04d}"
        with site.ledger(name) as ledger:
            for slot in range(8):
                device = device_named(f"{node}-{slot}")
                for _ in range(1 + slot % 3):
                    done = site.issue(ledger, device, node=name)
                    digest = ledger.append(done.envelope)
                number = node * 8 + slot
                results.append(certified(number, certificate=str(digest), uuid=device.uuid))
    results[3] = failed(3, Outcome.QUARANTINED, "ecc")
    results[5] = failed(5, Outcome.IN_USE, state="IN_USE", started_at=0.0)
    results[12] = results[12].model_copy(update={"before": "QUARANTINED"})
    site.countersign()
    return record([*results, lost("node-0002")]), Read(judge(collect(state)), "an export")


async def shown(chromium: Chromium, file: Path, profile: Path, *, height: int) -> dict[str, object]:
    """What a browser makes of the page."""
    async with Browser(chromium.command, profile, chromium.environment) as browser:
        page = await browser.page(width=WIDTH, height=height)
        await page.open(file.as_uri())
        found: dict[str, object] = {
            "picture": await page.picture(width=WIDTH, height=height, scale=0.75),
            "paper": await page.paper(),
            "tables": await page.evaluate(SEEN),
            "bars": await page.evaluate(BAR),
            "text": await page.evaluate(TEXT),
            "wide": await page.evaluate("document.body.scrollWidth <= window.innerWidth"),
        }
        await page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        found["opened"] = await page.evaluate(TEXT)
        found["requests"], found["said"] = page.requests, page.said
    return found


def looked_at(
    chromium: Chromium, tmp_path: Path, text: str, *, height: int = 900
) -> dict[str, object]:
    """As `shown`; every page asks for itself alone, complains of nothing, and can be printed."""
    file, profile = tmp_path / "page.html", tmp_path / "profile"
    file.write_text(text, encoding="utf-8")
    profile.mkdir()
    found = asyncio.run(shown(chromium, file, profile, height=height))
    assert found["requests"] == [file.as_uri()]
    assert found["said"] == []
    assert found["wide"], "the page is wider than the window"
    paper = found["paper"]
    assert isinstance(paper, bytes)
    assert paper.startswith(b"%PDF-")
    return found


def test_a_run_of_sixteen_devices(chromium: Chromium, tmp_path: Path) -> None:
    """E2: timeline, rates, outcomes, findings, certificates: seen, drawn and printed."""
    one, read = proven(tmp_path / "state")
    text = run.render(figures(one, read, now=BEGIN))
    found = looked_at(chromium, tmp_path, text, height=1650)
    assert int(str(found["tables"])) >= 6
    assert int(str(found["bars"])) > 16
    for words in ("14 of 16 devices are covered", "mend ecc", "tainted-and-done", "verified"):
        assert words in str(found["text"])
    picture = found["picture"]
    assert isinstance(picture, bytes)
    keep("report", picture)


def test_a_run_of_ten_thousand_devices(chromium: Chromium, tmp_path: Path) -> None:
    """E2: aggregated; every device is there once its node is opened."""
    one = mixed(10_000)
    text = run.render(figures(one, Read(why="none was named"), now=BEGIN))
    found = looked_at(chromium, tmp_path, text)
    assert "SIM-09999" not in str(found["text"])
    assert "SIM-09999" in str(found["opened"])
    paper = found["paper"]
    assert isinstance(paper, bytes)
    assert len(paper) < 5_000_000


def test_hostile_words_do_nothing(chromium: Chromium, tmp_path: Path) -> None:
    """Scripts, sources and terminal escapes in names are letters in a real browser as well."""
    hostile = failed(0, Outcome.FAILED, HOSTILE, node=HOSTILE, device=HOSTILE, uuid=HOSTILE)
    text = run.render(figures(record([hostile]), Read(why=HOSTILE), now=BEGIN))
    found = looked_at(chromium, tmp_path, text)
    assert "<script>alert(1)</script>" in str(found["text"])


def test_a_certificate(chromium: Chromium, tmp_path: Path) -> None:
    """E3: the page of one certificate stands alone too."""
    site = Site(tmp_path / "state")
    site.certify(devices=("a",), rounds=3)
    site.countersign()
    digest = site.ledger().heads()[device_named("node-1-a").units[0]]
    target = tmp_path / "certificate.html"
    certificates.write(target, collect(site.state), digest)
    found = looked_at(chromium, tmp_path, target.read_text())
    assert "Chain back to the first certificate" in str(found["text"])
