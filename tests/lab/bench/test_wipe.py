"""The benchmark of wiping measures something and says how."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.lab.bench import wipe


def test_a_short_run_gives_all_figures() -> None:
    """Wipe and yardstick both run for real; the wipe is not an order slower than libc."""
    found = wipe.measure(gib=1 / 32, devices=1, runs=1)
    assert found.gib_per_device == 1 / 32
    assert (len(found.wipe_runs), len(found.libc_runs)) == (1, 1)
    assert found.ratio == found.wipe_bytes_per_s / found.libc_bytes_per_s
    assert found.ratio > 0.1


def test_it_prints_one_json_document() -> None:
    """Figures for machines: medians, ratio and every run."""
    command = (
        sys.executable,
        "-m",
        "tests.lab.bench.wipe",
        "--gib",
        "0.01",
        "--runs",
        "1",
        "--json",
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {"wipe_bytes_per_s", "libc_bytes_per_s", "ratio"} <= set(json.loads(done.stdout))


def test_what_cannot_run_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Too little room is told with the bytes needed."""
    assert wipe.main(["--gib", "1e9"]) == 2
    assert "no directory has room" in capsys.readouterr().err


def test_it_does_not_load_ray() -> None:
    """Memory is measured, not the fleet's transport."""
    code = "import sys, tests.lab.bench.wipe; sys.exit('ray' in sys.modules)"
    assert subprocess.run((sys.executable, "-c", code), check=False, timeout=60).returncode == 0
