"""Exports: whole or partial copies that verify by themselves."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.evidence import dsse
from fleet.evidence.export import export
from fleet.evidence.keys import KeyRing
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from tests.fleet.evidence.samples import Site, codes, device_named, rewrite


@pytest.fixture(name="site", scope="module")
def site_fixture(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Two nodes of two devices, countersigned. Never changed."""
    site = Site(tmp_path_factory.mktemp("site") / "state")
    for node in ("node-1", "node-2"):
        site.certify(node)
    site.countersign()
    return site


@pytest.fixture(name="copy")
def copy_fixture(site: Site, tmp_path: Path) -> Path:
    """A whole export to tamper with."""
    export(collect(site.state), tmp_path / "export")
    return tmp_path / "export"


def certificates(directory: Path, node: str = "node-1") -> list[Path]:
    """The node's certificate files in order."""
    return sorted((directory / "certificates" / node).iterdir())


def test_export_verifies_and_is_repeatable(site: Site, copy: Path, tmp_path: Path) -> None:
    """E3: an export is whole, names its files after their content, and comes out the same again."""
    report = verify(collect(copy))
    assert report.defects == []
    assert (report.certificates, report.countersigned, report.omitted) == (8, 8, 0)
    again = export(collect(site.state), tmp_path / "again")
    assert (again.certificates, again.countersignatures) == (8, 1)

    def content(top: Path) -> dict[str, bytes]:
        return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}

    assert content(tmp_path / "again") == content(copy)
    assert certificates(copy)[0].name.startswith("00000001-")
    assert not [name for name in content(copy) if name.endswith(".key")]


def test_export_of_an_export_is_the_same(copy: Path, tmp_path: Path) -> None:
    """An export can be passed on without the state directory it came from."""
    export(collect(copy), tmp_path / "second")
    assert (tmp_path / "second" / "SHA256SUMS").read_bytes() == (copy / "SHA256SUMS").read_bytes()


def test_checksums_work_without_us(copy: Path) -> None:
    """Anyone can check an export's files with sha256sum."""
    program = shutil.which("sha256sum")
    assert program is not None
    done = subprocess.run(
        [program, "--check", "--quiet", "SHA256SUMS"], cwd=copy, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_partial_export_verifies_against_the_heads(site: Site, tmp_path: Path) -> None:
    """A copy of one device still proves its place in the ledger, and says what it leaves out."""
    done = export(collect(site.state), tmp_path / "device", device="node-1-a")
    assert (done.certificates, done.omitted) == (2, 6)
    report = verify(collect(tmp_path / "device"))
    assert (report.defects, report.certificates, report.omitted) == ([], 2, 6)
    done = export(collect(site.state), tmp_path / "node", node="node-2")
    report = verify(collect(tmp_path / "node"))
    assert (report.defects, report.certificates, report.ledgers) == ([], 4, 1)


def test_partition_export_brings_the_parent_along(tmp_path: Path) -> None:
    """Everything that touched a unit of the device is in its export, the parent's wipes too."""
    site = Site(tmp_path / "state")
    whole, other = device_named("a", ("0", "1")), device_named("a-1", ("1",), accelerator="a")
    part = device_named("a-0", ("0",), accelerator="a")
    with site.ledger() as ledger:
        for device in (whole, other, part, whole):
            ledger.append(site.issue(ledger, device).envelope)
    done = export(collect(site.state), tmp_path / "export", device=part.uuid)
    assert (done.certificates, done.omitted) == (3, 1)
    assert codes(tmp_path / "export") == set()


@pytest.mark.parametrize("choice", [{"node": "node-9"}, {"device": "nothing"}])
def test_choice_of_nothing_is_refused(site: Site, tmp_path: Path, choice: dict[str, str]) -> None:
    """An export that would hold nothing is an error, not an empty proof."""
    with pytest.raises(InputInvalid, match="no certificate"):
        export(collect(site.state), tmp_path / "x", **choice)
    assert not (tmp_path / "x").exists()


def test_target_in_use_is_refused(site: Site, tmp_path: Path) -> None:
    """Nothing is ever written over."""
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputInvalid, match="exists already"):
            export(collect(site.state), target)


def test_damaged_evidence_is_not_exported(site: Site, tmp_path: Path) -> None:
    """A damaged ledger is not laundered into a copy that looks whole."""
    shutil.copytree(site.state, tmp_path / "state")
    path = tmp_path / "state/nodes/node-1/ledger/000000000001.jsonl"
    rewrite(path, lambda lines: lines[1:])
    with pytest.raises(EvidenceInvalid, match="node-1 is damaged"):
        export(collect(tmp_path / "state"), tmp_path / "x")


def _swap_names(copy: Path) -> None:
    one, two = certificates(copy)[:2]
    spare = one.with_suffix(".tmp")
    one.rename(spare)
    two.rename(one)
    spare.rename(two)


def _drop_from_index(copy: Path, *, keep_row: bool) -> None:
    index = json.loads((copy / "index.json").read_bytes())
    rows = index["nodes"]["node-1"]["entries"]
    rows[1:2] = [[rows[1][0], None]] if keep_row else []
    text = json.dumps(index, sort_keys=True, separators=(",", ":"))
    (copy / "index.json").write_text(text)


def _edit_index(copy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the index and make the checksums fit again, as a careful forger would."""
    index = json.loads((copy / "index.json").read_bytes())
    change(index)
    (copy / "index.json").write_bytes(dsse.canonical(index))
    names = sorted(str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file())
    names.remove("SHA256SUMS")
    lines = [f"{hashlib.sha256((copy / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    (copy / "SHA256SUMS").write_text("".join(lines))


def _drop_heads(copy: Path) -> None:
    shutil.rmtree(copy / "heads")
    _edit_index(copy, lambda index: index["heads"].update(entries=[]))


def _drop_heads_and_files(copy: Path) -> None:
    shutil.rmtree(copy / "heads")
    files = json.loads((copy / "index.json").read_bytes())["files"]
    kept = {name: digest for name, digest in files.items() if not name.startswith("heads/")}
    _edit_index(copy, lambda i: i.update(heads={"entries": []}, files=kept))


def _row(copy: Path, file: str) -> None:
    _edit_index(copy, lambda i: i["nodes"]["node-1"]["entries"][1].__setitem__(1, file))


def _fifo(copy: Path) -> None:
    path = certificates(copy)[1]
    path.unlink()
    os.mkfifo(path)


def _fifo_for_sums(copy: Path) -> None:
    (copy / "SHA256SUMS").unlink()
    os.mkfifo(copy / "SHA256SUMS")


def _add_listed(copy: Path) -> None:
    (copy / "x").write_text("x")
    _edit_index(copy, lambda _: None)


def _link(copy: Path) -> None:
    path = certificates(copy)[1]
    path.unlink()
    path.symlink_to("/dev/zero")


def _endless(copy: Path) -> None:
    with certificates(copy)[1].open("r+b") as file:
        file.truncate(1 << 42)


def _swap_keys(copy: Path) -> None:
    for name in ("node-1", "node-2"):
        (copy / "keys/nodes" / name).rename(copy / "keys/nodes" / f"{name}.tmp")
    (copy / "keys/nodes/node-1.tmp").rename(copy / "keys/nodes/node-2")
    (copy / "keys/nodes/node-2.tmp").rename(copy / "keys/nodes/node-1")
    _edit_index(copy, lambda _: None)


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "renamed certificate": (
        lambda copy: certificates(copy)[0].rename(certificates(copy)[0].with_name("x.json")),
        "missing-file",
    ),
    "swapped names": (_swap_names, "altered-entry"),
    "removed certificate": (lambda copy: certificates(copy)[1].unlink(), "missing-file"),
    "emptied certificate": (lambda copy: certificates(copy)[1].write_bytes(b""), "altered-entry"),
    "truncated certificate": (
        lambda copy: certificates(copy)[1].write_bytes(certificates(copy)[1].read_bytes()[:99]),
        "unreadable-certificate",
    ),
    "added file": (lambda copy: (copy / "heads" / "9.json").write_text("{}"), "extra-file"),
    "key removed": (
        lambda copy: shutil.rmtree(copy / "keys" / "nodes" / "node-1"),
        "unknown-key",
    ),
    "row removed": (lambda copy: _drop_from_index(copy, keep_row=False), "tail-cut"),
    "row hidden": (lambda copy: _drop_from_index(copy, keep_row=True), "altered-file"),
    "heads removed": (lambda copy: shutil.rmtree(copy / "heads"), "missing-file"),
    "heads removed, index made to fit": (_drop_heads, "altered-index"),
    "heads removed from everything but the counts": (_drop_heads_and_files, "missing-heads"),
    "name with NUL": (lambda copy: _row(copy, "a\0b"), "unreadable-index"),
    "FIFO for a certificate": (_fifo, "unreadable-file"),
    "device for a certificate": (_link, "unreadable-file"),
    "endless certificate": (_endless, "unreadable-file"),
    "FIFO added": (lambda copy: os.mkfifo(copy / "fifo"), "extra-file"),
    "FIFO for the checksums": (_fifo_for_sums, "missing-file"),
    "keys of two nodes swapped": (_swap_keys, "unknown-key"),
    "file the index does not name": (_add_listed, "altered-index"),
    "checksums removed": (lambda copy: (copy / "SHA256SUMS").unlink(), "missing-file"),
    "index removed": (lambda copy: (copy / "index.json").unlink(), "unreadable-index"),
    "note changed": (lambda copy: (copy / "README.txt").write_text("trust me"), "altered-file"),
}


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_tampering_with_an_export_is_found(copy: Path, kind: str) -> None:
    """E3: each way to change an export is found with the kind that fits it."""
    change, code = TAMPERINGS[kind]
    change(copy)
    assert code in codes(copy)


def test_index_binds_keys_to_nodes(copy: Path) -> None:
    """A key dropped into a copy is a note beside its checksum defect, and signs for nobody."""
    other = next((copy / "keys/nodes/node-2").iterdir())
    index = json.loads((copy / "index.json").read_bytes())
    assert index["keys"]["nodes"]["node-2"][0].startswith(other.stem)
    shutil.copy(other, copy / "keys/nodes/node-1")
    report = verify(collect(copy))
    assert {d.code for d in report.defects} == {"extra-file"}
    assert any("it was not used" in note for note in report.notes)
    _edit_index(copy, lambda i: i["keys"]["nodes"].update({"node-1": i["keys"]["nodes"]["node-2"]}))
    assert "shared-key" in codes(copy)


def test_index_counts_and_lists_every_file(copy: Path) -> None:
    """The index says how much the copy holds and the checksum of every file; it is unsigned."""
    index = json.loads((copy / "index.json").read_bytes())
    assert index["counts"] == {"certificates": 8, "omitted": 0, "countersignatures": 1}
    names = {str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file()}
    assert index["files"].keys() == names - {"index.json", "SHA256SUMS"}
    assert verify(collect(copy)).unsigned_index


def test_keys_inside_an_export_are_not_trusted_over_the_callers(site: Site, copy: Path) -> None:
    """Keys the caller trusts replace those an export brings along."""
    mine = KeyRing([site.key("node-2").public()])
    found = verify(collect(copy, mine, coordinator_keys=KeyRing([site.coordinator.public()])))
    assert {d.code for d in found.defects} == {"unknown-key"}
    assert len(found.defects) == 4
