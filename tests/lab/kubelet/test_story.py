"""The story over a small plugin: it ends well with one that keeps the promises, and only then."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.kubelet.fake_site import FakeSite, HonestPlugin
from tests.lab.kubelet.narration import Telling
from tests.lab.kubelet.story import Story


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ks-") as short:
        yield Path(short)


def tell(directory: Path, plugin: HonestPlugin, *, patience_s: float = 20.0) -> tuple[int, str]:
    """(exit code, everything that was said)."""
    lines: list[str] = []
    site = FakeSite(directory, plugin)
    site.sim.start()
    try:
        code = Story(site.stage, Telling(lines.append), patience_s=patience_s).run()
    finally:
        site.sim.power_off()
        plugin.stop()
    return code, "\n".join(lines)


def broken(text: str) -> set[str]:
    """The promises the summary names."""
    summary = text.splitlines()[::-1]
    return {
        line.removeprefix("   BROKEN: ")
        for line in summary[: summary.index(next(one for one in summary if "held," in one))]
    }


def test_a_plugin_that_keeps_its_promises_gets_exit_code_0(directory: Path) -> None:
    """Every step is told, the CDI file is shown once, and everything holds."""
    code, text = tell(directory, HonestPlugin(directory))
    assert (code, broken(text)) == (0, set()), text
    assert text.count("CDI spec claim-") == 1
    assert "10. carol is deleted" in text
    assert "ends: " not in text


def test_a_plugin_that_does_not_wipe_is_found_out(directory: Path) -> None:
    """B01: when the next tenant finds the secret, the story says so and fails."""
    plugin = HonestPlugin(directory)
    plugin.wipes = False
    code, text = tell(directory, plugin)
    assert code == 1
    assert {
        "bob finds nothing of alice's secret",
        "carol finds nothing of bob's secret",
    } <= broken(text)


def test_a_plugin_that_shares_a_held_device_is_found_out(directory: Path) -> None:
    """B01: a tenant that starts while the previous one runs breaks a promise."""
    plugin = HonestPlugin(directory)
    plugin.exclusive = False
    code, text = tell(directory, plugin)
    assert code == 1
    assert "carol runs, and only after bob's process was gone" in broken(text)


def test_a_plugin_that_wipes_under_a_running_tenant_is_found_out(directory: Path) -> None:
    """Promise 4: a plugin that believes every unprepare wipes alice's memory under her."""
    plugin = HonestPlugin(directory)
    plugin.proves = False
    code, text = tell(directory, plugin, patience_s=2.0)
    assert code == 1
    assert {
        "her container runs on, and its spec is there",
        "her memory is as she left it",
    } <= broken(text)


def test_a_plugin_that_forgets_the_spec_after_a_reboot_is_found_out(directory: Path) -> None:
    """B10: prepared by its own word, but without a CDI file: the pod never runs."""
    plugin = HonestPlugin(directory)
    plugin.rebuilds = False
    code, text = tell(directory, plugin, patience_s=2.0)
    assert code == 1
    assert "carol is prepared again and runs" in broken(text)


def test_a_story_that_breaks_off_is_a_failure(directory: Path) -> None:
    """Without a device on offer the story ends early, by its own words."""
    plugin = HonestPlugin(directory)
    plugin.offers = False
    code, text = tell(directory, plugin, patience_s=0.3)
    assert code == 1
    assert "no device came to be on offer" in text
    assert "0 of 2 expectations held" in text
