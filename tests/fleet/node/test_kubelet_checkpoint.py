"""Kubelet's checkpoint names consumers, or is unknown; it is never silently "nobody"."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from fleet.core.errors import CheckpointUnreadable
from fleet.node import kubelet_checkpoint
from tests.fleet.node.trees import checkpoint_text


def test_pods_are_listed_by_claim(tmp_path: Path) -> None:
    """Reference 1.6: Data is JSON within JSON, PodUIDs a set written as an object."""
    path = tmp_path / kubelet_checkpoint.NAME
    path.write_text(checkpoint_text({"c1": ["p2", "p1"], "c2": []}))
    found = kubelet_checkpoint.read(path)
    assert found.present
    assert found.pods == {"c1": ("p1", "p2"), "c2": ()}


def test_one_claim_in_two_entries_has_the_pods_of_both(tmp_path: Path) -> None:
    """Kubelet keys its entries by name: nothing is lost when one UID is there twice."""
    path = tmp_path / "state"
    path.write_text(checkpoint_text([("c1", ["p1"]), ("c1", ["p2"])]))
    assert kubelet_checkpoint.read(path).pods == {"c1": ("p1", "p2")}


@pytest.mark.parametrize("entries", [None, []])
def test_a_checkpoint_without_entries_names_nobody(tmp_path: Path, entries: Any) -> None:
    """A kubelet that has prepared nothing says so in a valid file."""
    path = tmp_path / "state"
    path.write_text(sealed({"kind": "DRACheckpoint", "ClaimInfoStateList": entries}))
    assert kubelet_checkpoint.read(path) == kubelet_checkpoint.Checkpoint(True, {})


def test_entries_of_an_earlier_kubelet_are_read(tmp_path: Path) -> None:
    """The list was called Entries, and a set may be written as a list."""
    path = tmp_path / "state"
    path.write_text(sealed({"Entries": [{"ClaimUID": "c", "PodUIDs": ["p"]}]}))
    assert kubelet_checkpoint.read(path).pods == {"c": ("p",)}


def test_a_missing_file_is_told_from_an_empty_one(tmp_path: Path) -> None:
    """No file: kubelet says nothing; that is not the same as "nobody"."""
    found = kubelet_checkpoint.read(tmp_path / "state")
    assert (found.present, found.pods) == (False, {})


def sealed(content: object, *, checksum: int | None = None) -> str:
    """A checkpoint file with this content and its checksum."""
    text = json.dumps(content)
    value = zlib.crc32(text.encode()) if checksum is None else checksum
    return json.dumps({"Data": text, "Checksum": value})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"Data": "{}", "Checksum": zlib.crc32(b"{}")}),
        json.dumps({"Data": {}, "Checksum": 0}),
        json.dumps({"Data": "{", "Checksum": zlib.crc32(b"{")}),
        sealed({"ClaimInfoStateList": [{}]}),
        sealed({"ClaimInfoStateList": [{"ClaimUID": "c", "PodUIDs": 7}]}),
        sealed({"ClaimInfoStateList": [{"ClaimUID": "c", "PodUIDs": [7]}]}),
        sealed({"ClaimInfoStateList": "c"}),
        sealed({"ClaimInfoStateList": []}, checksum=1),
        json.dumps({"version": "v1", "entries": [], "checksum": 1}),
    ],
)
def test_a_damaged_checkpoint_is_unknown(tmp_path: Path, text: str) -> None:
    """Promise 5, B07: damage, a wrong checksum or a foreign form raise; they never mean nobody."""
    path = tmp_path / "state"
    path.write_text(text)
    with pytest.raises(CheckpointUnreadable, match="state"):
        kubelet_checkpoint.read(path)


def test_an_unreadable_checkpoint_is_unknown(tmp_path: Path) -> None:
    """Promise 5: an I/O error is no answer."""
    with pytest.raises(CheckpointUnreadable):
        kubelet_checkpoint.read(tmp_path)
    (tmp_path / "state").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointUnreadable):
        kubelet_checkpoint.read(tmp_path / "state")
