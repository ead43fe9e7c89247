"""The directory of specs: complete or not visible, named from the claim, removed twice."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fleet.core import errors
from fleet.core.model import ClaimUid, Uuid
from fleet.devices.base import DeviceNode, Grant, Mount
from fleet.node.cdi import files, rules
from fleet.node.cdi.directory import SpecDirectory
from fleet.node.cdi.scan import scan
from tests.fleet.node.cdi.conftest import DEVICES, FILE, OTHER, UID, UNSYNCED, claim, grants
from tests.fleet.node.cdi.writing import NULL, grow

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[4]
CASES = ROOT / "tests/corpus/B69-cdi-invalid-spec"
WRITES = 3_000
WRITES_SYNCED = 300
KILLS = 6
ODD = ("nvidia.com-gpu_x.json", "fleetscrub.dev-gpu_y.yaml", "fleetscrub.dev-gpu_.json")


@contextmanager
def polled(directory: Path) -> Iterator[dict[str, Any]]:
    """A reader process that polls meanwhile; what it saw is in the dictionary afterwards."""
    seen: dict[str, Any] = {}
    reader = subprocess.Popen(
        [sys.executable, str(HERE / "polling.py"), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with reader:
        yield seen
        output, _ = reader.communicate(timeout=60)
    seen.update(json.loads(output))


def test_a_spec_is_named_after_the_claim_and_readable_by_all(specs: SpecDirectory) -> None:
    """A1: <vendor>-<class>_<claim uid>.json, mode 0644 whatever the umask."""
    umask = os.umask(0o077)
    try:
        specs.write(claim(), grants(claim()))
    finally:
        os.umask(umask)
    (path,) = specs.directory.iterdir()
    assert path.name == FILE == specs.name(UID)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(specs.directory.stat().st_mode) == 0o755
    assert specs.listed() == (UID,)
    assert rules.check(path.read_bytes(), path.name) == []


def test_ids_resolve_and_say_nothing_of_the_tenant(specs: SpecDirectory) -> None:
    """A2, invariants 22 and 27: every id answered is in the file; no namespace or name is."""
    specs.write(claim(), grants(claim()))
    answered = [specs.ids(claim(), device) for device in DEVICES]
    assert len({ids[0] for ids in answered}) == len(DEVICES)
    assert scan(specs.directory).resolvable == {id_ for ids in answered for id_ in ids}
    assert "pod" not in (specs.directory / FILE).read_text()
    renamed = replace(claim(), namespace="other", name="x")
    assert [specs.ids(renamed, device) for device in DEVICES] == answered


def test_every_container_learns_its_device(specs: SpecDirectory) -> None:
    """A6: FLEETSCRUB_DEVICE for each device, beside the back end's own variables."""
    specs.write(claim(), grants(claim()))
    devices = json.loads((specs.directory / FILE).read_text())["devices"]
    assert [device["containerEdits"]["env"] for device in devices] == [
        ["DRIVER=1", "FLEETSCRUB_DEVICE=SIM-0"],
        ["DRIVER=1", "FLEETSCRUB_DEVICE=SIM-1"],
    ]


def test_attached_devices_are_in_the_spec_and_none_may_be_forgotten(specs: SpecDirectory) -> None:
    """B35, invariant 27: a device without a grant is an error, never an id that resolves not."""
    attached = replace(claim(), attached=(Uuid("SIM-7"),))
    with pytest.raises(errors.SpecUnavailable, match="SIM-7"):
        specs.write(attached, grants(claim()))
    assert not specs.directory.exists()
    specs.write(attached, {**grants(claim()), Uuid("SIM-7"): Grant()})
    assert specs.ids(attached, Uuid("SIM-7"))[0] in scan(specs.directory).resolvable


def test_writing_again_changes_nothing_and_another_content_replaces(specs: SpecDirectory) -> None:
    """A4, B79: the same grants leave the same file, inode included; others renew it."""
    specs.write(claim(), grants(claim()))
    path = specs.directory / FILE
    before = path.stat().st_ino
    specs.write(claim(), grants(claim()))
    assert path.stat().st_ino == before
    specs.write(claim(), grants(claim(), version="2"))
    assert "DRIVER=2" in path.read_text()
    path.write_text("{")
    specs.write(claim(), grants(claim(), version="2"))
    assert "DRIVER=2" in path.read_text()


@pytest.mark.parametrize("loss", ["file", "directory"])
def test_a_spec_lost_in_a_reboot_is_back_with_the_next_write(
    specs: SpecDirectory, loss: str
) -> None:
    """B10, invariant 8: an empty or missing directory is filled before the answer."""
    specs.write(claim(), grants(claim()))
    before = (specs.directory / FILE).read_bytes()
    if loss == "file":
        (specs.directory / FILE).unlink()
    else:
        shutil.rmtree(specs.directory)
    specs.write(claim(), grants(claim()))
    assert (specs.directory / FILE).read_bytes() == before


def test_a_link_at_the_path_is_replaced_and_its_target_untouched(specs: SpecDirectory) -> None:
    """B56: whatever the link points to, even at the very content, a file takes its place."""
    specs.write(claim(), grants(claim()))
    path, target = specs.directory / FILE, specs.directory / "target"
    path.rename(target)
    path.symlink_to(target)
    before = target.stat()
    specs.write(claim(), grants(claim(), version="1"))
    assert not path.is_symlink()
    assert target.stat() == before


def test_dead_paths_of_an_older_driver_are_replaced_or_named(tmp_path: Path) -> None:
    """B79: every mounted path is checked under the host's root; a missing one is in the error."""
    root = tmp_path / "host"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/libgpu.so.2.0").touch()
    specs = SpecDirectory(tmp_path / "cdi", host_root=root)
    old, new = (Mount(f"/usr/lib/libgpu.so.{v}.0", "/usr/lib/libgpu.so") for v in (1, 2))
    with pytest.raises(errors.SpecUnavailable, match=r"/usr/lib/libgpu\.so\.1\.0"):
        specs.write(claim(), grants(claim(), old))
    assert not specs.directory.exists()
    (root / "usr/lib/libgpu.so.1.0").touch()
    specs.write(claim(), grants(claim(), old))
    (root / "usr/lib/libgpu.so.1.0").unlink()
    before = (specs.directory / FILE).read_bytes()
    with pytest.raises(errors.SpecUnavailable, match=r"/usr/lib/libgpu\.so\.1\.0"):
        specs.write(claim(), grants(claim(), old))
    assert (specs.directory / FILE).read_bytes() == before
    specs.write(claim(), grants(claim(), new))
    assert "libgpu.so.2.0" in (specs.directory / FILE).read_text()
    assert "libgpu.so.1.0" not in (specs.directory / FILE).read_text()


def test_b79_dangling_paths_of_a_spec_are_told(tmp_path: Path) -> None:
    """B79: a file that a driver's update removed is found in the specs that mount it."""
    root = tmp_path / "host"
    (root / "usr/lib").mkdir(parents=True)
    library = root / "usr/lib/libgpu.so.1.0"
    library.touch()
    specs = SpecDirectory(tmp_path / "cdi", host_root=root)
    assert specs.dangling(UID) == ()
    mount = Mount("/usr/lib/libgpu.so.1.0", "/usr/lib/libgpu.so")
    specs.write(claim(), grants(claim(), mount))
    assert specs.dangling(UID) == ()
    library.unlink()
    assert specs.dangling(UID) == ("/usr/lib/libgpu.so.1.0",)
    (specs.directory / FILE).write_text("{")
    assert specs.dangling(UID) == ()


def test_device_nodes_need_not_exist_yet(tmp_path: Path) -> None:
    """DESIGN 7: type and numbers are enough; only what is mounted must be there."""
    specs = SpecDirectory(tmp_path / "cdi", host_root=tmp_path)
    specs.write(claim(), grants(claim()))
    assert specs.listed() == (UID,)


def test_removing_twice_is_fine_and_takes_leftovers_along(specs: SpecDirectory) -> None:
    """A3: absent is fine; a temporary file of a crash goes with its claim, nobody else's does."""
    specs.remove(UID)
    specs.write(claim(), grants(claim()))
    specs.write(claim(OTHER), grants(claim()))
    (specs.directory / f".{FILE}.tmp").write_text("{")
    specs.remove(UID)
    specs.remove(UID)
    assert [path.name for path in specs.directory.iterdir()] == [specs.name(OTHER)]


@pytest.mark.parametrize("uid", ["", "../evil", "a/b", "-x", "x" * 64, "a\n", "a b"])
def test_a_uid_that_is_no_name_is_refused(specs: SpecDirectory, uid: str) -> None:
    """A2: a claim uid cannot lead out of the directory."""
    with pytest.raises(errors.InputInvalid):
        specs.write(claim(ClaimUid(uid)), grants(claim()))
    with pytest.raises(errors.InputInvalid):
        specs.remove(ClaimUid(uid))
    assert not specs.directory.exists()


def test_files_of_others_are_neither_listed_nor_touched(specs: SpecDirectory) -> None:
    """B68: another vendor's file, a YAML of our kind and an odd own name are left alone."""
    specs.write(claim(), grants(claim()))
    for name in ODD:
        (specs.directory / name).write_text("{")
    foreign = {"kind": "fleetscrub.dev-gpu/x", "devices": []}
    (specs.directory / "fleetscrub.dev-gpu_z.json").write_text(json.dumps(foreign))
    assert specs.listed() == (UID,)
    specs.remove(UID)
    assert len(list(specs.directory.iterdir())) == len(ODD) + 1


def test_a_directory_that_is_a_file_is_a_retryable_error(specs: SpecDirectory) -> None:
    """B67: the error names the path and may be retried; nothing is left behind."""
    specs.directory.write_text("in the way")
    with pytest.raises(errors.SpecUnavailable, match="cdi"):
        specs.write(claim(), grants(claim()))
    specs.remove(UID)
    assert list(specs.listed()) == []
    specs.directory.unlink()
    specs.write(claim(), grants(claim()))
    assert specs.listed() == (UID,)


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.ENOENT, errno.ENOTDIR])
def test_a_directory_that_cannot_be_written_is_a_retryable_error(
    specs: SpecDirectory, call: str, number: int
) -> None:
    """B67: no temporary file, the old spec still there, and the retry succeeds."""

    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    specs.write(claim(), grants(claim()))
    before = (specs.directory / FILE).read_bytes()
    broken = replace(specs, calls=replace(files.Calls(), **{call: fail}))
    with pytest.raises(errors.SpecUnavailable, match=FILE):
        broken.write(claim(), grants(claim(), version="2"))
    assert [path.name for path in specs.directory.iterdir()] == [FILE]
    assert (specs.directory / FILE).read_bytes() == before
    specs.write(claim(), grants(claim(), version="2"))
    specs.write(claim(OTHER), grants(claim()))
    assert specs.listed() == (UID, OTHER)


def test_something_in_the_way_is_an_error_and_stays(specs: SpecDirectory) -> None:
    """B67: a directory at the file's or the temporary file's name is nobody's to delete."""
    for name in (FILE, f".{FILE}.tmp"):
        (specs.directory / name).mkdir(parents=True)
        with pytest.raises(errors.SpecUnavailable):
            specs.write(claim(), grants(claim()))
        with pytest.raises(errors.SpecUnavailable):
            specs.remove(UID)
        assert [path.name for path in specs.directory.iterdir()] == [name]
        (specs.directory / name).rmdir()


def test_the_agents_spec_is_of_a_class_of_its_own(specs: SpecDirectory) -> None:
    """DESIGN 7: no tenant's class selects it, and claims' specs and the agent's never mix."""
    specs.write(claim(), grants(claim()))
    specs.write_agent(UID, Grant((NULL,)))
    assert specs.agent_ids(UID) == (f"fleetscrub.dev/gpu-agent={UID}_agent",)
    assert specs.agent_ids(UID)[0] in scan(specs.directory).resolvable
    assert (specs.listed(), specs.listed_agents()) == ((UID,), (UID,))
    specs.remove(UID)
    assert (specs.listed(), specs.listed_agents()) == ((), (UID,))
    specs.remove_agent(UID)
    specs.remove_agent(UID)
    assert list(specs.directory.iterdir()) == []
    with pytest.raises(errors.SpecUnavailable, match="/nowhere"):
        specs.write_agent(UID, Grant(mounts=(Mount("/nowhere", "/x"),)))


def test_settings_that_make_no_names_are_refused_at_once(tmp_path: Path) -> None:
    """Invariant 26: a vendor or class no runtime accepts never comes to a write."""
    with pytest.raises(errors.SettingsInvalid):
        SpecDirectory(tmp_path, "4vendor.com")


@pytest.mark.parametrize(
    ("calls", "writes"),
    [(UNSYNCED, WRITES), (files.Calls(), WRITES_SYNCED)],
    ids=["unsynced", "synced"],
)
def test_a_reader_never_sees_a_partial_or_double_definition(
    tmp_path: Path, calls: files.Calls, writes: int
) -> None:
    """A1, B56, invariant 25: a polling process sees only whole files through all writes."""
    specs = SpecDirectory(tmp_path, calls=calls)
    with polled(tmp_path) as seen:
        for number in range(writes):
            grow(specs, number)
    assert seen["broken"] == []
    assert seen["rounds"] > 50
    assert seen["read"] > 50


def test_a_writer_killed_anywhere_leaves_nothing_half_written(tmp_path: Path) -> None:
    """B56, promise 7: SIGKILL at random points; what runtimes scan is whole, the rest goes."""
    directory = tmp_path / "cdi"
    directory.mkdir()
    chance = random.Random(56)
    with polled(directory) as seen:
        for _ in range(KILLS):
            writer = subprocess.Popen(
                [sys.executable, "-m", "tests.fleet.node.cdi.writing", str(directory)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
            )
            with writer:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"begun\n"
                deadline = time.monotonic() + chance.uniform(0, 0.05)
                while time.monotonic() < deadline:
                    pass
                writer.kill()
            found = scan(directory)
            assert (found.problems, found.conflicts) == ({}, ())
            assert len(list(directory.iterdir())) <= 4
    assert seen["broken"] == []
    specs = SpecDirectory(directory)
    specs.settle([UID, OTHER])
    assert {path.name for path in directory.iterdir()} <= {specs.name(UID), specs.name(OTHER)}


def test_a3_what_is_in_the_temporarys_way_keeps_no_spec_visible(specs: SpecDirectory) -> None:
    """A3, B20: somebody's directory under the temporary name is told, and the spec is gone."""
    mine = claim()
    specs.write(mine, grants(mine))
    (specs.directory / f".{FILE}.tmp").mkdir()
    with pytest.raises(errors.SpecUnavailable):
        specs.remove(UID)
    assert specs.listed() == ()


def test_b69_a_device_node_the_host_does_not_have_is_refused(tmp_path: Path) -> None:
    """B69: a node that is missing on the host is named and nothing is written; where the host's
    /dev cannot be seen from here, its numbers suffice.
    """
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    specs = SpecDirectory(tmp_path / "cdi", host_root=root)
    one = replace(claim(), devices=(Uuid("SIM-0"),), attached=())
    grant = Grant((DeviceNode("/dev/gpu0", "c", 195, 0),))
    with pytest.raises(errors.SpecUnavailable, match="/dev/gpu0, which SIM-0 needs, is missing"):
        specs.write(one, {Uuid("SIM-0"): grant})
    assert specs.listed() == ()
    elsewhere = Grant((replace(grant.nodes[0], host_path="/dev/other"),))
    (root / "dev/gpu0").touch()
    with pytest.raises(errors.SpecUnavailable, match="/dev/other"):
        specs.write(one, {Uuid("SIM-0"): elsewhere})
    specs.write(one, {Uuid("SIM-0"): grant})
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    SpecDirectory(tmp_path / "cdi-2", host_root=hidden).write(one, {Uuid("SIM-0"): elsewhere})


def test_b69_a_node_that_the_host_makes_late_is_not_missing(tmp_path: Path) -> None:
    """B69: a capability of a partition has no node on the host until somebody there needs it, and
    the agent has nodes of what there may ever be: neither keeps a container from starting.
    """
    root = tmp_path / "host"
    (root / "dev").mkdir(parents=True)
    (root / "dev/gpu0").touch()
    specs = SpecDirectory(tmp_path / "cdi", host_root=root)
    one = replace(claim(), devices=(Uuid("SIM-0"),), attached=())
    own = DeviceNode("/dev/gpu0", "c", 195, 0)
    late = DeviceNode("/dev/caps/cap3", "c", 508, 3, permissions="r", made_late=True)
    specs.write(one, {Uuid("SIM-0"): Grant((own, late))})
    specs.write_agent(UID, Grant((own, late, DeviceNode("/dev/gpu1", "c", 195, 1))))
    assert (specs.listed(), specs.listed_agents()) == ((UID,), (UID,))


@pytest.mark.parametrize("path", sorted(CASES.glob("specs/*.json")), ids=lambda path: path.stem)
def test_b69_the_specs_of_the_case_are_judged_as_runtimes_do(path: Path) -> None:
    """B69: each bad spec of the case is refused with a reason, and the good one is not."""
    assert bool(rules.check(path.read_bytes(), path.name)) is (path.stem != "good")
