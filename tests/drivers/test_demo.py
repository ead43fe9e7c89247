"""The demo on stand-in drivers as a newcomer runs it, without the parts that need Ray."""

from __future__ import annotations

import subprocess
import sys

from tests.drivers.stage import ROOT


def test_the_demo_holds_every_promise() -> None:
    """F59, promises 1 to 4: what leaks without us does not leak through us, in three MIG slices
    made for claims and in pods' slices behind kubelet, which are gone afterwards; all of it is
    said to be simulated."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.drivers.demo", "--short"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    said = ended.stdout
    assert ended.returncode == 0, said + ended.stderr
    assert said.startswith("SIMULATED GPUs.\nSTAND-IN drivers")
    for line in said.splitlines():
        if "H100" in line and "GPU-" in line:
            assert "simulated" in line, "F59: nobody takes a stand-in for a GPU"
    assert "BROKEN" not in said
    assert "holds: without our wipe the next program reads it" in said
    assert "holds: exactly these three instances exist" in said
    assert "holds: bob finds nothing of alice's secret" in said
    assert said.count("expectations held") == 1
