"""CDI directories: files of others, broken, huge, looping or no files, and ours beside them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.model import ClaimUid
from fleet.devices.base import Grant
from fleet.node.cdi import names, parser
from fleet.node.cdi.directory import SpecDirectory
from tests.fleet.node.cdi.conftest import FILE, OTHER, UID, UNSYNCED, claim, grants
from tests.fleet.node.cdi.writing import NULL
from tests.fuzz.mutations import DEPTH, HOSTILE, damaged, texts
from tests.fuzz.running import bounded, fuzzed, told

OURS = f"fleetscrub.dev-gpu_{OTHER}.json"
NAMES = (
    OURS,
    "vendor.yaml",
    "vendor.json",
    f".{FILE}.tmp",
    f"old-gpu_{OTHER}.yaml",
    f"fleetscrub.dev-gpu_{'x' * 63}.json",
    "fleetscrub.dev-gpu_.json",
    "fleetscrub.dev-gpu_..json",
    "fleetscrub.dev-gpu-agent_a.json",
    b"fleetscrub.dev-gpu_\xff.json".decode("utf-8", "surrogateescape"),
    "\n.json",
    "x" * 250 + ".json",
)
YAML = (
    b"a: &a [*a]\n",
    b"- " * DEPTH,
    b"{" * DEPTH,
    b"kind: fleetscrub.dev/gpu\nkind: fleetscrub.dev/gpu\n",
    b"? [a, b]\n: c\n",
    b"a: !!timestamp 2026-01-01\n",
    b"a: " + b"9" * 5000 + b"\n",
    b"a: 0x" + b"f" * 5000 + b"\n",
    b"a: 1:60:60\n",
    b"%YAML 9.9\n---\na: b\n",
    b"\t- x",
    b"--- !!python/object:os.system x\n",
    b"<<: {a: b}\n",
)


def _file(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _folder(path: Path, _: bytes) -> None:
    path.mkdir()


def _pipe(path: Path, _: bytes) -> None:
    os.mkfifo(path)


def _loop(path: Path, _: bytes) -> None:
    path.symlink_to(path.name)


def _endless(path: Path, _: bytes) -> None:
    path.symlink_to("/dev/zero")


def _link(path: Path, content: bytes) -> None:
    target = path.with_name("target")
    target.write_bytes(content)
    path.symlink_to(target.name)


MAKERS: tuple[Callable[[Path, bytes], None], ...] = (
    _file, _file, _file, _file, _folder, _pipe, _loop, _endless, _link,
)  # fmt: skip


def _written(place: Path) -> tuple[SpecDirectory, bytes]:
    """A directory with one spec of ours, and what is in it."""
    shutil.rmtree(place / "cdi", ignore_errors=True)
    specs = SpecDirectory(place / "cdi", prefixes=("old-gpu_",), calls=UNSYNCED)
    mine = claim()
    specs.write(mine, grants(mine))
    return specs, (place / "cdi" / FILE).read_bytes()


@fuzzed(80)
@given(name=st.sampled_from(NAMES), make=st.sampled_from(MAKERS), change=st.data())
def test_whatever_lies_there_our_claims_are_served(
    place: Path, name: str, make: Callable[[Path, bytes], None], change: st.DataObject
) -> None:
    """B20, B68, A3: any file beside ours is passed over, moved aside or told; ours stay ours."""
    specs, text = _written(place)
    content = change.draw(
        st.one_of(texts(json.loads(text)), damaged(text), st.sampled_from((*YAML, *HOSTILE)))
    )
    make(place / "cdi" / name, content)
    with bounded():
        _settled(specs)
        _asked(specs)
    assert (place / "cdi" / FILE).read_bytes() == text
    assert UID in specs.listed()
    other = claim(OTHER)
    if not (place / "cdi" / OURS).is_dir():
        specs.write(other, grants(other))
        assert set(specs.listed()) >= {UID, OTHER}
        specs.remove(OTHER)
        assert OTHER not in specs.listed()
    try:
        specs.remove(UID)
    except errors.SpecUnavailable as error:
        told(error, FILE)  # something is in the way of the temporary; the spec is gone first
    assert UID not in specs.listed()


def _settled(specs: SpecDirectory) -> None:
    try:
        found = specs.settle([UID])
    except errors.SpecUnavailable as error:
        told(error, str(specs.directory))
    else:
        assert all(line.strip() for line in found)


def _asked(specs: SpecDirectory) -> None:
    for ask in (specs.conflicts, lambda: specs.dangling(UID), lambda: specs.dangling(OTHER)):
        try:
            found = ask()
        except errors.SpecUnavailable as error:
            told(error, str(specs.directory))
        else:
            assert all(line.strip() for line in found)


@fuzzed(40)
@given(content=st.one_of(st.sampled_from((*YAML, *HOSTILE)), st.binary(max_size=100)))
def test_no_text_is_read_for_ever(content: bytes) -> None:
    """B20, B68: depth, aliases, doubled keys and long numbers are malformed, and at once."""
    for name in ("x.json", "x.yaml"):
        with bounded():
            try:
                found: dict[str, Any] = parser.tree(content, name)
            except parser.Malformed as error:
                said = str(error)
            else:
                said = type(found).__name__
        assert said.strip()
        assert len(said) < 100_000


@fuzzed(80)
@given(uid=st.text(max_size=80), device=st.text(max_size=80))
def test_no_name_of_a_claim_leads_out_of_the_directory(place: Path, uid: str, device: str) -> None:
    """A2, B20: whatever a claim or device is called, its file is in the directory, or none."""
    specs = SpecDirectory(place / "cdi", calls=UNSYNCED)
    try:
        name = specs.name(ClaimUid(uid))
        names.device_name(ClaimUid(uid), device)
    except errors.InputInvalid as error:
        told(error)
    else:
        assert Path(name).name == name
        assert "/" not in name
    grant = Grant((NULL,), (), {})
    if not names.is_uid(uid):
        with pytest.raises(errors.InputInvalid):
            specs.write_agent(ClaimUid(uid), grant)
