"""The commands people are given check digest, key and signature, and find what was changed."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from fleet.core.model import Digest
from fleet.evidence import by_hand
from fleet.evidence.export import export
from fleet.evidence.sources import collect
from tests.fleet.evidence.samples import Site

GOOD = "Signature Verified Successfully"


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """One device with two certificates, exported."""
    site = Site(tmp_path / "state")
    site.certify(devices=("a",))
    export(collect(site.state), tmp_path / "export")
    return site


def run(commands: str, directory: Path) -> list[str]:
    """What the commands print in an export, hashes without file names."""
    done = subprocess.run(
        ["bash", "-c", commands], cwd=directory, capture_output=True, text=True, check=False
    )
    return [line.removesuffix("-").strip() for line in done.stdout.splitlines()]


def test_the_commands_verify_a_certificate(site: Site, tmp_path: Path) -> None:
    """E3: without this software digest, key id and signature check out; the copy stays whole."""
    key_id = site.key("node-1").key_id
    before = sorted((tmp_path / "export").rglob("*"))
    for entry in site.ledger().entries():
        lines = by_hand.commands("node-1", entry.number, entry.digest, key_id=key_id)
        digest = entry.digest.removeprefix("sha256:")
        assert run(lines, tmp_path / "export") == [digest, key_id, GOOD]
    assert sorted((tmp_path / "export").rglob("*")) == before


def test_the_commands_find_a_changed_certificate(site: Site, tmp_path: Path) -> None:
    """E3: one character of the payload changed, and digest and signature both say so."""
    entry = next(iter(site.ledger().entries()))
    (file, _) = sorted((tmp_path / "export" / "certificates" / "node-1").iterdir())
    content = file.read_bytes()
    at = content.index(b'"payload":"') + 500
    other = b"B" if content[at : at + 1] == b"A" else b"A"
    file.write_bytes(content[:at] + other + content[at + 1 :])
    key_id = site.key("node-1").key_id
    lines = by_hand.commands("node-1", 1, entry.digest, key_id=key_id)
    digest, key, *verdict = run(lines, tmp_path / "export")
    assert digest != entry.digest.removeprefix("sha256:")
    assert key == key_id
    assert GOOD not in verdict


def test_a_name_is_never_a_command(tmp_path: Path) -> None:
    """E3: a node's name from a certificate is quoted, whatever it is."""
    hostile = f"$(touch {shlex.quote(str(tmp_path / 'pwned'))})'; touch pwned; '"
    run(by_hand.commands(hostile, 1, Digest("sha256:00"), key_id="ab`id`"), tmp_path)
    assert list(tmp_path.iterdir()) == []
