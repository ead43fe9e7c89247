"""ConfigMaps hold what a real server lets them hold."""

from __future__ import annotations

import base64

import pytest

from fleet.core import errors
from fleet.kube.base import CONFIGMAPS, Name, Object
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.configmaps import LIMIT_BYTES


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def body(**parts: object) -> Object:
    """A ConfigMap."""
    metadata = {"name": "x", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **parts}


def test_texts_and_bytes_come_back(cluster: MemoryCluster) -> None:
    """Both parts are kept; neither counts a generation."""
    packed = base64.b64encode(b"\x00\x01").decode()
    found = cluster.create(CONFIGMAPS, body(data={"a": "1"}, binaryData={"b": packed}))
    assert (found["data"], found["binaryData"]) == ({"a": "1"}, {"b": packed})
    assert "generation" not in found["metadata"]


@pytest.mark.parametrize(
    "parts",
    [
        {"data": {"a": "x" * (LIMIT_BYTES + 1)}},
        {"binaryData": {"a": base64.b64encode(b"x" * (LIMIT_BYTES + 1)).decode()}},
        {"data": {"a/b": "1"}},
        {"data": {"a": "1"}, "binaryData": {"a": "MQ=="}},
        {"binaryData": {"a": "?"}},
    ],
)
def test_what_is_too_large_or_misnamed_is_refused(
    cluster: MemoryCluster, parts: dict[str, object]
) -> None:
    """1 MiB of values together, decoded; keys are file names, each once."""
    with pytest.raises(errors.ApiInvalid):
        cluster.create(CONFIGMAPS, body(**parts))


def test_the_limit_itself_fits(cluster: MemoryCluster) -> None:
    """Exactly 1 MiB of decoded bytes is taken."""
    text = base64.b64encode(b"x" * LIMIT_BYTES).decode()
    assert cluster.create(CONFIGMAPS, body(binaryData={"a": text}))["binaryData"] == {"a": text}


def test_a_frozen_one_stays(cluster: MemoryCluster) -> None:
    """`immutable` cannot be undone; the metadata can still be changed."""
    found = cluster.create(CONFIGMAPS, body(data={"a": "1"}, immutable=True))
    found["metadata"]["labels"] = {"team": "ops"}
    found = cluster.replace(CONFIGMAPS, found)
    for change in ({"data": {"a": "2"}}, {"immutable": False}):
        with pytest.raises(errors.ApiForbidden):
            cluster.replace(CONFIGMAPS, {**found, **change})
    assert cluster.get(CONFIGMAPS, Name("x", "default"))["data"] == {"a": "1"}
