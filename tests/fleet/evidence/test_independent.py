"""Exports verified by an implementation of DSSE that is not ours."""

from __future__ import annotations

import ast
import base64
import json
from pathlib import Path

import pytest

from fleet.evidence.export import export
from fleet.evidence.sources import collect
from tests.fleet.evidence import independent
from tests.fleet.evidence.independent import decode, encoding, public_keys, signed_by, troubles
from tests.fleet.evidence.samples import Site


@pytest.fixture(name="copy")
def copy_fixture(tmp_path: Path) -> Path:
    """An export of two nodes of two devices, countersigned."""
    site = Site(tmp_path / "state")
    for node in ("node-1", "node-2"):
        site.certify(node)
    site.countersign()
    export(collect(site.state), tmp_path / "export")
    return tmp_path / "export"


def certificates(copy: Path) -> list[Path]:
    """All certificate files."""
    return sorted(copy.glob("certificates/*/*.json"))


def test_the_second_reader_shares_no_code_with_the_first() -> None:
    """E3: it imports the standard library and cryptography, and nothing of ours."""
    tree = ast.parse(Path(independent.__file__).read_text())
    found = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
    ours = {name for name in found if name.split(".")[0] in {"fleet", "tests", "actors", "jobs"}}
    assert ours == set()


def test_the_second_reader_knows_the_specification() -> None:
    """E3: the encoding is that of the specification's own example."""
    said = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert encoding("http://example.com/HelloWorld", b"hello world") == said
    assert decode("_-8") == decode("/+8=") == b"\xff\xef"


def test_an_export_verifies_with_the_second_reader(copy: Path) -> None:
    """E3: anyone with a reader of DSSE verifies every signature and every chain offline."""
    assert len(certificates(copy)) == 8
    assert list(troubles(copy)) == []


def test_countersignatures_verify_with_the_second_reader(copy: Path) -> None:
    """E3: they are DSSE as well, of the coordinator's key and of no node's."""
    (file,) = (copy / "heads").iterdir()
    envelope = json.loads(file.read_bytes())
    (coordinator,) = public_keys(copy / "keys" / "coordinator")
    assert signed_by(envelope, coordinator)
    nodes = [key for folder in (copy / "keys" / "nodes").iterdir() for key in public_keys(folder)]
    assert len(nodes) == 2
    assert not any(signed_by(envelope, key) for key in nodes)


def test_a_key_of_another_node_verifies_nothing(copy: Path) -> None:
    """B48: each node's certificates verify with its key alone."""
    first, second = (
        public_keys(copy / "keys" / "nodes" / node)[0] for node in ("node-1", "node-2")
    )
    for path in certificates(copy):
        envelope = json.loads(path.read_bytes())
        assert signed_by(envelope, first) == (path.parent.name == "node-1")
        assert signed_by(envelope, second) == (path.parent.name == "node-2")


def test_both_readers_find_a_changed_certificate(copy: Path) -> None:
    """E3: a changed payload, type, signature or a file taken out is found by the second too."""
    path = certificates(copy)[2]
    good = path.read_bytes()
    envelope = json.loads(good)
    payload = decode(envelope["payload"]).replace(b"node-1", b"node-7")
    for change in (
        {"payload": base64.b64encode(payload).decode()},
        {"payloadType": "application/json"},
        {"signatures": [{"sig": "AAAA"}]},
        {"payload": "%%%"},
    ):
        path.write_bytes(json.dumps({**envelope, **change}).encode())
        assert path.name in {name for name, _ in troubles(copy)}
    path.unlink()
    assert [what for _, what in troubles(copy)] == []
    path.write_bytes(good)
    certificates(copy)[0].unlink()
    assert (path.name, "chain") in set(troubles(copy))
