"""docs/hardware.md says what the code says: its messages, settings and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet.core.settings import HardwareSettings, HealthPolicy, WipePolicy
from fleet.devices.health import kernel_log
from tests.document import spoken

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "hardware.md").read_text()
MESSAGES = PAGE.partition("\n## When something is wrong\n")[2]


def pieces() -> list[str]:
    """The pieces of messages in the table, without what varies."""
    rows = [line for line in MESSAGES.splitlines() if line.startswith("| `")]
    shown = [text for row in rows for text in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    cut = [piece.strip(" ,;") for text in shown for piece in text.split("...")]
    return sorted({piece for piece in cut if piece})


@pytest.mark.parametrize("piece", pieces())
def test_a_message_is_in_the_code(piece: str) -> None:
    """Whoever searches for a message at night must find what the product really says."""
    assert piece in spoken()


def test_settings_named_are_settings() -> None:
    """No field is told that does not exist."""
    for section, kind in (
        ("hardware", HardwareSettings),
        ("health", HealthPolicy),
        ("wipe", WipePolicy),
    ):
        named = set(re.findall(rf"`{section}\.(\w+)`", PAGE))
        assert named
        assert named <= set(kind.model_fields)


def test_links_lead_somewhere() -> None:
    """Files the page points at are there."""
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_the_mark_of_a_reset_is_the_one_searched_for() -> None:
    """gpus-8.21: what an operator looks for in the kernel log is what is written there."""
    assert f"`{kernel_log.MARK} <slot>`" in PAGE
