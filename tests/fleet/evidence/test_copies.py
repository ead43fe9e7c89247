"""Reading an export's files and index: strictly, and never out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.evidence import dsse
from fleet.evidence.copies import COUNTS, FORMAT, check_sums, read
from fleet.evidence.segments import Damage
from tests.fleet.evidence.samples import codes


def index_of(**changes: Any) -> bytes:
    """An index of nothing, changed."""
    empty = {
        "complete": True,
        "format": FORMAT,
        "heads": {"entries": []},
        "nodes": {},
        "keys": {"nodes": {}, "coordinator": []},
        "counts": dict.fromkeys(COUNTS, 0),
        "files": {},
    }
    return dsse.canonical({**empty, **changes})


def test_index_of_nothing_is_read(tmp_path: Path) -> None:
    """The index the malformed ones below are made from is well-formed itself."""
    (tmp_path / "index.json").write_bytes(index_of())
    (tmp_path / "SHA256SUMS").write_bytes(b"")
    damages: list[Damage] = []
    assert read(tmp_path, damages) == dsse.parse(index_of())
    assert {damage.code for damage in damages} == {"extra-file"}


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"{}",
        b"[]",
        b'{"complete":1,"format":"x","heads":{"entries":[]},"nodes":{}}',
        index_of(heads={"entries": [["x", None]]}),
        index_of(keys={"nodes": {"n": ["../x"]}, "coordinator": []}),
        index_of(counts={}),
        index_of(files=[]),
        *(
            index_of(nodes={node: {"entries": [["sha256:" + "0" * 64, file]]}})
            for node, file in (
                ("n", "/etc/hostname"),
                ("n", "../x"),
                ("../n", None),
                ("n", 7),
                ("n", "a\0b"),
            )
        ),
    ],
)
def test_malformed_index_is_a_finding(tmp_path: Path, index: bytes) -> None:
    """An index that is damaged or leads out of the export is reported and not followed."""
    (tmp_path / "index.json").write_bytes(index)
    (tmp_path / "SHA256SUMS").write_bytes(b"")
    assert "unreadable-index" in codes(tmp_path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"zz\n", "unreadable-entry"),
        (b"0" * 64 + b"  ../x\n", "unreadable-entry"),
        (b"0" * 64 + b"  gone\n", "missing-file"),
        (b"0" * 64 + b"  a", "unreadable-entry"),
        (b"0" * 64 + b"  b\n" + b"0" * 64 + b"  a\n", "out-of-order"),
        (b"\xff", "missing-file"),
        (b"", "extra-file"),
    ],
)
def test_checksum_list_is_read_strictly(tmp_path: Path, text: bytes, code: str) -> None:
    """A checksum list that is not as written, or does not fit the files, is reported."""
    (tmp_path / "a").write_text("a")
    (tmp_path / "SHA256SUMS").write_bytes(text)
    assert code in {damage.code for damage in check_sums(tmp_path)}
