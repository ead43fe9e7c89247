"""docs/node-plugin.md says what the code says: texts, options, settings, metrics, taints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet.core.messages import DeviceView
from fleet.core.profiles import Profile
from fleet.core.settings import KubernetesSettings
from fleet.plugin.slices.device_attributes import Terms, render
from fleet.plugin.slices.gate import GateRules
from node_plugin.__main__ import _parser
from tests.document import spoken

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "node-plugin.md").read_text()
COORDINATOR = ROOT / "docs" / "coordinator.md"
FOREIGN = frozenset({"DRA driver", "is not registered"})
"""Texts of kubelet's own."""
VARIES = re.compile(r"\.\.\.|QUARANTINED|HELD|403")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def event_texts() -> list[str]:
    """The pieces of text in the table of events, without what varies."""
    rows = [
        line for line in section("What the pod's events mean").splitlines() if line[:3] == "| `"
    ]
    shown = [text for row in rows for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    pieces = [piece.strip() for text in shown for piece in VARIES.split(text)]
    return [piece for piece in pieces if piece.strip(":;,/()[] ")]


@pytest.mark.parametrize("piece", sorted(set(event_texts()) - FOREIGN))
def test_a_text_of_an_event_is_in_the_code(piece: str) -> None:
    """Whoever searches for an event's text at night must find what the plugin really says."""
    assert piece in spoken()


def test_the_metrics_are_those_of_the_plugin() -> None:
    """Every metric is on the page, and none that does not exist."""
    assert set(re.findall(r"fleet_plugin_\w+", PAGE)) == set(
        re.findall(r"fleet_plugin_\w+", spoken())
    )


def test_the_options_and_settings_are_all_there() -> None:
    """The command line and the section [kubernetes], complete, with the coordinator's page."""
    table = section("Run it")
    coordinator = COORDINATOR.read_text()
    options = {
        name
        for action in _parser()._actions
        for name in action.option_strings
        if name.startswith("--") and name != "--help"
    }
    assert set(re.findall(r"^\| `(--[a-z-]+)", table, re.MULTILINE)) == options
    told = table + coordinator
    assert {name for name in KubernetesSettings.model_fields if f"`{name}`" not in told} == set()


def test_the_taints_and_attributes_are_those_published() -> None:
    """Keys of taints and names of attributes as a slice carries them."""
    told = section("ResourceSlices")
    rules = GateRules(driver="<driver>", fresh_s=1)
    assert f"`{rules.not_clean}`" in told
    assert f"`{rules.quarantined}=" in told
    view = DeviceView(
        uuid="u", name="gpu-0", accelerator="u", units=("u/0",), memory_bytes=1, state="CLEAN"
    )
    terms = Terms("<driver>", "n", Profile.STRICT)
    entry = render(view, "gpu-0", taints=(), terms=terms)
    assert {name for name in entry["attributes"] if f"`{name}`" not in told} == set()
    assert {name for name in entry["bindingConditions"] if f"`{name}`" not in told} == set()


def test_the_page_stays_readable() -> None:
    """At three in the morning nobody reads more than 300 lines."""
    assert len(PAGE.splitlines()) < 300
