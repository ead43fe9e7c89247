"""CDI specs: complete or not visible, named from the claim, removed twice without trouble."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from fleet import errors
from fleet.cdi import SpecDirectory
from fleet.claims import Claim, ClaimState
from fleet.model import BootId, ClaimUid, Token, Uuid

UID = ClaimUid("0b1c2d3e-aaaa-bbbb-cccc-000000000001")
FILE = f"fleetscrub.dev-gpu_{UID}.json"
DEVICES = (Uuid("SIM-1"), Uuid("SIM-0"))


def claim(uid: ClaimUid = UID, devices: tuple[Uuid, ...] = DEVICES) -> Claim:
    return Claim(
        uid, ClaimState.PREPARING, devices, (), Token(1, 1), BootId("b"), namespace="n", name="pod"
    )


@pytest.fixture
def specs(tmp_path: Path) -> SpecDirectory:
    return SpecDirectory(tmp_path / "cdi")


def test_a_spec_is_named_after_the_claim_and_readable_by_all(specs: SpecDirectory) -> None:
    """A1: <vendor>-<class>_<claim uid>.json, mode 0644 whatever the umask."""
    umask = os.umask(0o077)
    try:
        specs.write(claim(), {})
    finally:
        os.umask(umask)
    (path,) = specs.directory.iterdir()
    assert path.name == FILE == specs.name(UID)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert specs.listed() == (UID,)


def test_device_names_are_qualified_and_say_nothing_of_the_tenant(specs: SpecDirectory) -> None:
    """A2: <vendor>/<class>=<uid>-<device>, never from namespace or name; sorted."""
    specs.write(claim(), {Uuid("SIM-0"): {"memory_file": "/memory/0"}})
    text = (specs.directory / FILE).read_text()
    found = json.loads(text)
    assert found["kind"] == "fleetscrub.dev/gpu"
    assert [d["name"] for d in found["devices"]] == [f"{UID}-SIM-0", f"{UID}-SIM-1"]
    assert all(re.fullmatch(r"[A-Za-z0-9][\w.:-]*[A-Za-z0-9]", d["name"]) for d in found["devices"])
    assert "pod" not in text
    mounts = [d["containerEdits"]["mounts"] for d in found["devices"]]
    assert mounts[0][0]["hostPath"] == "/memory/0"
    assert mounts[1] == []


def test_writing_again_changes_nothing_and_another_content_replaces(specs: SpecDirectory) -> None:
    """A4: the same claim leaves the same file, inode included; B79: a changed one is renewed."""
    specs.write(claim(), {})
    path = specs.directory / FILE
    before = path.stat().st_ino
    specs.write(claim(), {})
    assert path.stat().st_ino == before
    path.write_text("{")
    specs.write(claim(), {})
    assert len(json.loads(path.read_text())["devices"]) == 2


def test_removing_twice_is_fine_and_takes_leftovers_along(specs: SpecDirectory) -> None:
    """A3: absent is fine; a temporary file of a crash goes with its claim."""
    specs.remove(UID)
    specs.write(claim(), {})
    (specs.directory / f".{FILE}.tmp").write_text("{")
    specs.remove(UID)
    specs.remove(UID)
    assert list(specs.directory.iterdir()) == []


def test_a_reader_never_sees_a_partial_or_temporary_spec(specs: SpecDirectory) -> None:
    """A1: every file a runtime would scan is complete at every moment, during many writes."""
    stop, seen, broken = threading.Event(), [], []
    specs.directory.mkdir()

    def read() -> None:
        while not stop.is_set():
            for path in specs.directory.iterdir():
                if path.suffix not in (".json", ".yaml"):
                    continue
                try:
                    seen.append(len(json.loads(path.read_text())["devices"]))
                except FileNotFoundError:
                    continue
                except ValueError:
                    broken.append(path.name)

    reader = threading.Thread(target=read)
    reader.start()
    devices = tuple(Uuid(f"SIM-{n}") for n in range(200))
    for round_ in range(60):
        specs.write(claim(devices=devices[: 100 + round_]), {})
        if round_ % 7 == 0:
            specs.remove(UID)
    stop.set()
    reader.join()
    assert broken == []
    assert seen
    assert min(seen) >= 100


@pytest.mark.parametrize("uid", ["", "../evil", "a/b", "-x", "x" * 64, "a\n", "a b"])
def test_a_uid_that_is_no_name_is_refused(specs: SpecDirectory, uid: str) -> None:
    """A2: a claim uid cannot lead out of the directory."""
    with pytest.raises(errors.InputInvalid):
        specs.write(claim(ClaimUid(uid)), {})
    assert not specs.directory.exists()


def test_files_of_others_are_neither_listed_nor_touched(specs: SpecDirectory) -> None:
    """B68: another vendor's file, a YAML of our kind and an odd own name are left alone."""
    specs.write(claim(), {})
    for name in ("nvidia.com-gpu_x.json", "fleetscrub.dev-gpu_y.yaml", "fleetscrub.dev-gpu_.json"):
        (specs.directory / name).write_text("{")
    assert specs.listed() == (UID,)
    specs.remove(UID)
    assert len(list(specs.directory.iterdir())) == 3


def test_a_directory_that_cannot_be_used_is_a_retryable_error(
    specs: SpecDirectory,
) -> None:
    """B67: the error names the path and may be retried; nothing is left behind."""
    specs.directory.write_text("in the way")
    with pytest.raises(errors.SpecUnavailable, match="cdi"):
        specs.write(claim(), {})
    specs.remove(UID)
    assert list(specs.listed()) == []
    specs.directory.unlink()
    specs.write(claim(), {})
    assert specs.listed() == (UID,)


def test_a_write_that_fails_leaves_what_was_visible(specs: SpecDirectory) -> None:
    """A1, B67: no partial file and no temporary one after a failed write."""
    specs.write(claim(), {})
    path = specs.directory / FILE
    before = path.read_bytes()
    (specs.directory / f".{FILE}.tmp").mkdir()
    with pytest.raises(errors.SpecUnavailable):
        specs.write(claim(devices=DEVICES[:1]), {})
    assert path.read_bytes() == before


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_runtime_can_read_the_directory_and_nobody_else_write(
    specs: SpecDirectory, umask: int
) -> None:
    """A1: 0755 whatever the umask; a directory that was there keeps its maker's mode."""
    before = os.umask(umask)
    try:
        specs.write(claim(), {})
        assert stat.S_IMODE(specs.directory.stat().st_mode) == 0o755
        assert stat.S_IMODE((specs.directory / FILE).stat().st_mode) == 0o644
        specs.directory.chmod(0o750)
        specs.write(claim(devices=DEVICES[:1]), {})
        assert stat.S_IMODE(specs.directory.stat().st_mode) == 0o750
    finally:
        os.umask(before)
