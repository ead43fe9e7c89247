"""The measurement of evidence, in short."""

from __future__ import annotations

from pathlib import Path

from tests.lab.bench.evidence import measure


def test_two_hundred_certificates_are_written_exported_and_verified(tmp_path: Path) -> None:
    """E3: what is measured at 10,000 holds at 200: all verified twice, the changed one found."""
    found = measure(tmp_path, 200)
    assert found.certificates == 200
    assert len(list(found.lines())) == 6
    assert found.bytes > 200 * 4_000
