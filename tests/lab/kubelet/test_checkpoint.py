"""Kubelet's file, as kubelet writes it and as the product reads it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.node import kubelet_checkpoint
from fleet.plugin.requests import AskedClaim, PreparedDevice
from tests.lab.kubelet import checkpoint
from tests.lab.kubelet.checkpoint import ClaimEntry

texts = st.text(min_size=1, max_size=8)
devices = st.builds(
    PreparedDevice,
    requests=st.tuples(texts),
    pool=texts,
    device=texts,
    cdi_ids=st.tuples(texts, texts),
    share_id=st.none() | texts,
)
entries = st.builds(
    ClaimEntry,
    namespace=texts,
    name=texts,
    uid=texts,
    pods=st.sets(texts, max_size=3),
    drivers=st.dictionaries(texts, st.lists(devices, max_size=2), max_size=2),
)


@given(st.lists(entries, max_size=3))
def test_what_is_written_is_read(found: list[ClaimEntry]) -> None:
    """Reference 1.6: everything but `prepared` survives a restart."""
    assert checkpoint.decoded(checkpoint.encoded(found)) == found


def test_prepared_is_forgotten(tmp_path: Path) -> None:
    """Reference 1.6: a kubelet that starts again asks again."""
    path = tmp_path / checkpoint.NAME
    checkpoint.write(path, [ClaimEntry("ns", "c", "u1", prepared=True)])
    assert [entry.prepared for entry in checkpoint.read(path)] == [False]


def test_the_format_is_kubelets(tmp_path: Path) -> None:
    """Reference 1.6: Data is JSON in JSON, Checksum its CRC-32, PodUIDs a set as Go writes it."""
    path = tmp_path / checkpoint.NAME
    device = PreparedDevice(("gpu",), "node-a", "gpu-0", ("example.com/gpu=x",))
    checkpoint.write(path, [ClaimEntry("ns", "c", "u1", {"p2", "p1"}, {"d": [device]})])
    outer = json.loads(path.read_text())
    assert outer["Checksum"] == zlib.crc32(outer["Data"].encode())
    inner = json.loads(outer["Data"])
    assert (inner["kind"], inner["apiVersion"]) == (
        "DRACheckpoint",
        "checkpoint.dra.kubelet.k8s.io/v1",
    )
    (entry,) = inner["ClaimInfoStateList"]
    assert entry["PodUIDs"] == {"p1": {}, "p2": {}}
    assert entry["DriverState"]["d"]["Devices"][0]["CDIDeviceIDs"] == ["example.com/gpu=x"]
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.NAME]


def test_the_product_reads_it(tmp_path: Path) -> None:
    """Promise 4: the node finds the pods of a claim in this file."""
    path = tmp_path / checkpoint.NAME
    checkpoint.write(path, [ClaimEntry("ns", "c", "u1", {"p2", "p1"}), ClaimEntry("ns", "d", "u2")])
    assert kubelet_checkpoint.read(path).pods == {"u1": ("p1", "p2"), "u2": ()}


def test_no_file_is_no_claims_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    """Reference 1.6: kubelet starts without a checkpoint, and not on a corrupt one."""
    path = tmp_path / checkpoint.NAME
    assert checkpoint.read(path) == []
    checkpoint.write(path, [ClaimEntry("ns", "c", "u1")])
    for damaged in (path.read_text().replace("u1", "u2"), "", "{}", "[]"):
        path.write_text(damaged)
        with pytest.raises(errors.CheckpointUnreadable):
            checkpoint.read(path)


def test_a_claim_is_named_by_its_three_names() -> None:
    """Reference 1.3: nothing else of a claim crosses the socket."""
    assert ClaimEntry("ns", "c", "u1").asked == AskedClaim(namespace="ns", uid="u1", name="c")
