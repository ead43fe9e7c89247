"""The demo as a newcomer runs it: the real plugin, node service, gRPC, CDI, wipes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.lab.kubelet import demo


def test_the_demo_holds_every_promise() -> None:
    """Promises 1 to 5 and 10 over the life of three tenants, with restarts and a reboot."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kd-") as short:
        code = demo.run(Path(short), lines.append)
        left = list((Path(short) / "cdi").glob("*.json"))
    text = "\n".join(lines)
    assert code == 0, text
    assert [line for line in lines if line.strip().startswith("BROKEN")] == []
    assert lines[0].startswith("SIMULATED")
    assert text.count("cdiVersion") == 1, "the CDI file is shown once"
    assert left == []
    assert "NodePrepareResources answered in" in text
    assert "is held by another claim" in text, "carol's first prepare was refused"
