"""The benchmark of everything runs, in its short form."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.ray
def test_every_figure_is_printed_beside_its_yardstick() -> None:
    """Wipe, campaign and leases are measured in one run, and nothing is zero."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.lab.bench", "--runs", "1", "--gib", "0.03", "--mib", "4"],
        check=False,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert found.returncode == 0, found.stderr
    ratios = [float(ratio) for ratio in re.findall(r"ratio +([0-9.]+)", found.stdout)]
    assert len(ratios) == 2
    assert all(ratio > 0 for ratio in ratios)
    assert "leases, coordinator actor" in found.stdout
