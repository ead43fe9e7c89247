"""A campaign run as a page to print: complete at any size, alone, safe whatever a record says."""

from __future__ import annotations

import time

import pytest

from fleet.cli.pages import run
from fleet.cli.pages.run_figures import Read, figures
from fleet.core.messages import Finding, Outcome
from fleet.stores.base import RunRecord
from tests.fleet.cli.pages.records import BEGIN, certified, failed, mixed, record
from tests.fleet.cli.pages.test_certificate import HOSTILE, Parsed

UNREAD = Read(why="none was named")
MANY = 10_000
LARGEST_BYTES = 6_000_000
"""Of a page of 10,000 devices; measured: 3.8 MB."""
LONGEST_S = 5.0
"""CPU time for it; measured: 0.3 s."""


def page(one: RunRecord) -> str:
    """The page of a record."""
    return run.render(figures(one, UNREAD, now=BEGIN))


@pytest.mark.parametrize("count", [0, 1, 16, 64, 65, 200])
def test_the_page_has_every_device_and_stands_alone(count: int) -> None:
    """E2: from none to many, each device is on it; nothing is fetched, nothing runs."""
    text = page(mixed(count))
    found = Parsed(text)
    assert found.open == []
    assert not {"script", "img", "link", "iframe", "object"} & set(found.tags)
    assert not {"src", "href", "onclick", "onload"} & {name for name, _ in found.attributes}
    assert "default-src 'none'" in text
    for number in range(count):
        assert f"SIM-{number:05d}-0000-4000-8000-000000000000" in found.text


def test_what_is_not_covered_stands_on_top_with_its_remedy() -> None:
    """B51: busy, failed, missing, unknown with counts, reasons, remedies; never only a total."""
    text = Parsed(page(mixed(200))).text
    head = text.index("194 of 200 devices are covered")
    assert head < text.index("Not covered: 2 busy, 2 failed, 2 missing, 1 unknown") < 3_000
    for words in (
        "1 nodes showed no device",
        "mend ecc",
        "device-lost of 53",
        "node-9999 is silent",
        "start it",
    ):
        assert words in text
    assert "No evidence was read" in text


def test_simulated_is_said_and_real_is_not() -> None:
    """Promise 10: on the page and in its title."""
    simulated = page(record([certified(0)]))
    assert "<title>SIMULATED: " in simulated
    assert "SIMULATED" not in page(record([certified(0)], simulated=False))


def test_hostile_records_show_and_do_not_act() -> None:
    """Every text of a result is written by a node, a driver or a tenant."""
    told = (Finding(check=HOSTILE, verdict="fail", detail=HOSTILE, remedy=HOSTILE),)
    hostile = failed(
        0, Outcome.FAILED, node=HOSTILE, device=HOSTILE, uuid=HOSTILE, state=HOSTILE, findings=told
    )
    plan = {"select": HOSTILE}
    found = Parsed(page(record([hostile], id=HOSTILE, plan=plan, exit_reason=HOSTILE)))
    assert found.open == []
    assert not {"script", "img"} & set(found.tags)
    assert not {"src", "onerror"} & {name for name, _ in found.attributes}
    assert not {"\x1b", "\u202e"} & set(found.text)


def test_ten_thousand_devices_are_one_page() -> None:
    """E2: aggregated on top, complete below, in a file and a time people wait for."""
    one = mixed(MANY)
    began = time.process_time()
    text = page(one)
    assert time.process_time() - began < LONGEST_S
    assert len(text.encode()) < LARGEST_BYTES
    assert text.count("<rect") < 400
    assert "of 1251 nodes" not in text
    assert f"SIM-{MANY - 1:05d}" in text
    assert text.count("<details>") == 1251 + 3
