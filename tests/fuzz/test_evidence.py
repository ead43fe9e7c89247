"""Certificates, ledgers, key lists, exports: nothing changed verifies, nothing good is hidden."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.evidence import dsse, key_list, layout, parsed
from fleet.evidence.copies import SUMS
from fleet.evidence.export import export
from fleet.evidence.judged import Evidence, judge
from fleet.evidence.keys import KeyRing, PublicKey
from fleet.evidence.segments import Damage, Place
from fleet.evidence.sources import collect
from tests.fleet.evidence.samples import Site
from tests.fuzz.mutations import HOSTILE, damaged, documents, spelled, texts
from tests.fuzz.running import bounded, fuzzed, told

GOOD, BAD = "node-1", "node-2"


@dataclass(frozen=True, slots=True)
class _Kept:
    """Two nodes' evidence, countersigned, with a list of keys, and its export. Never changed."""

    site: Site
    state: Path
    export: Path
    list: bytes


@cache
def _kept(place: Path) -> _Kept:
    site = Site(place / "state")
    for node in (GOOD, BAD):
        site.certify(node)
    rings = {
        "": KeyRing.owned(layout.coordinator_keys_directory(site.state), layout.COORDINATOR_STEM),
        **{node: KeyRing([site.key(node).public()]) for node in (GOOD, BAD)},
    }
    rings[""] = KeyRing([site.coordinator.public()])
    found = key_list.renewed(key_list.KeyList(), rings, now=site.at - 5000)
    listed = key_list.sign(found, number=1, previous=None, key=site.coordinator, now=site.at + 50)
    layout.key_list(site.state).write_bytes(listed)
    site.countersign()
    export(collect(site.state), place / "export")
    for root in (site.state, place / "export"):
        assert _judged(root).report.ok, _judged(root).report.defects
    return _Kept(site, site.state, place / "export", listed)


def _judged(root: Path) -> Evidence:
    return judge(collect(root))


def _files(root: Path) -> list[Path]:
    """What a verifier reads."""
    skipped = {".key", ".lock", ".db"}
    return [p for p in sorted(root.rglob("*")) if p.is_file() and p.suffix not in skipped]


def _gone(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _elsewhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


SWAPS: tuple[Callable[[Path], None], ...] = (_gone, _folder, _pipe, _loop, _elsewhere)


@st.composite
def contents(draw: st.DrawFn, content: bytes) -> bytes:
    """Other bytes in the place of `content`."""
    kind = draw(st.integers(0, 4))
    if kind <= 1:
        return draw(damaged(content))
    if kind == 2:
        return draw(st.sampled_from(HOSTILE))
    if kind == 3:
        lines = content.splitlines(keepends=True) or [b"\n"]
        at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        lines[at], lines[other] = (
            lines[other],
            draw(st.sampled_from([lines[at], b"", b"\n", b"{}\n"])),
        )
        return b"".join(lines)
    return draw(st.binary(max_size=40))


@fuzzed(50, cost=2)
@given(change=st.data(), exported=st.booleans())
def test_one_bad_file_is_found_and_the_other_node_is_judged(
    place: Path, change: st.DataObject, *, exported: bool
) -> None:
    """E3, B20: whatever one file of a copy holds, it is found, and the rest is judged as before."""
    kept = _kept(place)
    root = place / "tried"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(kept.export if exported else kept.state, root)
    files = _files(root)
    path = files[change.draw(st.integers(0, len(files) - 1))]
    good = path.read_bytes()
    swap = change.draw(st.sampled_from([None, None, None, *SWAPS]))
    if swap is not None:
        swap(path)
    else:
        bad = change.draw(contents(good))
        path.write_bytes(bad)
        if bad == good:
            return
    with bounded():
        found = _judged(root)
    assert found.report.defects or _tells(found, path), path
    assert all(one.detail.strip() and str(one.place) for one in found.report.defects)
    if GOOD in str(path.relative_to(root)) or _speaks_of_all(path):
        return
    mine = [one for one in found.certificates if one.node == GOOD]
    assert len(mine) == 4
    assert all(one.sound for one in mine), [one.defects for one in mine]
    assert not found.of_nodes.get(GOOD)


def _speaks_of_all(path: Path) -> bool:
    """Whether the file is needed to find any node's evidence in an export, as its index is."""
    return path.name in ("index.json", SUMS)


def _tells(found: Evidence, path: Path) -> bool:
    """A file that is gone may be one that need not be there: then less is proven, and said."""
    return bool(found.report.notes) and not path.exists()


@cache
def _envelope(place: Path) -> tuple[bytes, PublicKey]:
    kept = _kept(place)
    first = kept.site.segment(GOOD).read_bytes().splitlines()[0]
    return first[first.index(b'"entry":') + 8 : first.rindex(b',"number"')], kept.site.key(
        GOOD
    ).public()


@fuzzed(150)
@given(change=st.data())
def test_a_changed_certificate_never_verifies(place: Path, change: st.DataObject) -> None:
    """E3: of a certificate only the very bytes that were signed verify, in one spelling."""
    good, key = _envelope(place)
    document = json.loads(good)
    statement = json.loads(base64.b64decode(document["payload"]))
    kind = change.draw(st.integers(0, 2))
    if kind == 0:
        content = change.draw(texts(document))
    elif kind == 1:
        content = change.draw(damaged(good))
    else:
        payload = change.draw(st.one_of(documents(statement).map(_canonical), texts(statement)))
        content = dsse.canonical({**document, "payload": base64.b64encode(payload).decode()})
    try:
        with bounded():
            found = parsed.read(content)
            list(parsed.contradictions(found))
    except errors.EvidenceInvalid as error:
        told(error, most=20_000)
        return
    assert content == good or not found.envelope.signed_by(key)


def _canonical(found: object) -> bytes:
    try:
        return dsse.canonical(found)
    except errors.InputInvalid:
        return spelled(found)


@fuzzed(80)
@given(change=st.data())
def test_a_changed_list_of_keys_is_never_taken(place: Path, change: st.DataObject) -> None:
    """E3: a list of keys is the coordinator's to the byte, or a damage that says what is wrong."""
    kept = _kept(place)
    document = json.loads(kept.list)
    content = change.draw(st.one_of(texts(document), damaged(kept.list)))
    damages: list[Damage] = []
    ring = KeyRing([kept.site.coordinator.public()])
    with bounded():
        found = key_list.checked(content, ring, Place("list.json"), damages)
    assert (found is None) == bool(damages)
    assert found is None or content == kept.list


@fuzzed(60)
@given(change=st.data())
def test_a_changed_public_key_is_another_key_or_none(place: Path, change: st.DataObject) -> None:
    """E3: the file of a public key is read as `save` writes it, or refused with its name."""
    key = _envelope(place)[1]
    content = change.draw(st.one_of(damaged(key.pem()), st.sampled_from(HOSTILE)))
    path = place / "k.pub"
    path.write_bytes(content)
    try:
        with bounded():
            found = PublicKey.load(path)
    except errors.KeyUnusable as error:
        told(error, str(path))
    else:
        assert found.pem() == content
        assert (found == key) == (content == key.pem())
