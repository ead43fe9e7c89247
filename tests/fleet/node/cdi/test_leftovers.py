"""Leftovers of earlier versions and crashes: today's form after one start, nothing lost (B68)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.model import ClaimUid, Uuid
from fleet.node.cdi import files
from fleet.node.cdi.directory import SpecDirectory
from fleet.node.cdi.scan import scan
from tests.fleet.node.cdi.conftest import DEVICES, FILE, OTHER, UID, UNSYNCED, claim, grants
from tests.fleet.node.cdi.test_scan import text

A = ClaimUid("aaaaaaaa-0000-4000-8000-000000000001")
B = ClaimUid("bbbbbbbb-0000-4000-8000-000000000002")
C = ClaimUid("cccccccc-0000-4000-8000-000000000003")
OLD = f"scrub.example.com/gpu=claim-{A}-0"
KIND = "fleetscrub.dev/gpu"
YAML = f"""\
cdiVersion: 0.5.0
kind: scrub.example.com/gpu
devices:
- name: claim-{C}-0
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
      hostPath: /dev/nvidia1
"""


class Watch:
    """Looks at the directory as a runtime does after every rename and around every removal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seen: list[tuple[frozenset[str], tuple[str, ...]]] = []

    def look(self) -> None:
        found = scan(self.directory)
        self.seen.append((found.resolvable, found.conflicts))

    def replace(self, source: Path, target: Path) -> None:
        self.look()
        source.replace(target)
        self.look()


def planted(tmp_path: Path) -> Path:
    """The directory of case B68, with the files it plants."""
    directory = tmp_path / "cdi"
    directory.mkdir(parents=True)
    old = text(f"claim-{A}-0", kind="scrub.example.com/gpu")
    (directory / f"gpu.scrub.example.com-{A}.json").write_text(old)
    (directory / "gpu.scrub.example.com-broken.json").write_text(old[:60])
    (directory / f"gpu.scrub.example.com-{C}.yaml").write_text(YAML)
    (directory / "other-vendor.json").write_text(text("n0", kind="vendor.example.com/nic"))
    (directory / "scrub-claim-a.json").write_text(old)
    return directory


def made(directory: Path, calls: files.Calls = UNSYNCED) -> SpecDirectory:
    return SpecDirectory(
        directory, "scrub.example.com", "gpu", prefixes=("gpu.scrub.example.com-",), calls=calls
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_planted_leftovers_are_settled(tmp_path: Path) -> None:
    """B68: one definition for the live claim, broken file aside and told, others untouched."""
    directory = planted(tmp_path)
    other = (directory / "other-vendor.json").read_bytes()
    specs = made(directory)
    assert specs.conflicts()
    found = specs.settle([A])
    assert names(directory) == [
        "gpu.scrub.example.com-broken.json.aside",
        "other-vendor.json",
        f"scrub.example.com-gpu_{A}.json",
        f"scrub.example.com-gpu_{C}.json",
    ]
    assert specs.conflicts() == ()
    assert (directory / "other-vendor.json").read_bytes() == other
    assert {OLD, f"scrub.example.com/gpu=claim-{C}-0"} < scan(directory).resolvable
    assert any("broken.json is moved aside" in line for line in found)
    assert len(found) == 4


def test_a_dead_claims_file_goes_only_when_its_teardown_says_so(tmp_path: Path) -> None:
    """B68: it is listed under its claim after settling, and removed by nothing but `remove`."""
    directory = planted(tmp_path)
    specs = made(directory)
    specs.settle([A])
    assert specs.listed() == (A, C)
    specs.remove(C)
    specs.write(claim(B), grants(claim(B)))
    assert specs.listed() == (A, B)
    assert specs.conflicts() == ()
    assert specs.settle([A, B]) == ()


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_a_running_pods_device_is_defined_once_at_every_moment(tmp_path: Path, suffix: str) -> None:
    """B68: from the old name to today's no moment with zero or two definitions."""
    directory = tmp_path / "cdi"
    directory.mkdir()
    content = text(f"claim-{A}-0", kind="scrub.example.com/gpu")
    (directory / f"scrub-claim-a{suffix}").write_text(content)
    watch = Watch(directory)
    specs = made(directory, replace(UNSYNCED, replace=watch.replace))
    specs.settle([A])
    watch.look()
    assert len(watch.seen) >= 3
    assert set(watch.seen) == {(frozenset({OLD}), ())}
    specs.write(claim(A), grants(claim(A)))
    assert names(directory) == [f"scrub.example.com-gpu_{A}.json"]
    assert scan(directory).resolvable == {
        id_ for device in DEVICES for id_ in specs.ids(claim(A), device)
    }


@pytest.mark.parametrize("step", range(8))
def test_settling_goes_on_after_a_crash_at_any_step(tmp_path: Path, step: int) -> None:
    """Promise 7: killed between any two renames, the next start comes to the same end."""
    whole, torn = planted(tmp_path / "whole"), planted(tmp_path / "torn")
    made(whole).settle([A])
    left = step

    def stopping(source: Path, target: Path) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        source.replace(target)

    stopped = False
    try:
        made(torn, replace(UNSYNCED, replace=stopping)).settle([A])
    except KeyboardInterrupt:
        stopped = True
    assert stopped is (step < 4)
    made(torn).settle([A])
    assert {n: (torn / n).read_bytes() for n in names(torn)} == {
        n: (whole / n).read_bytes() for n in names(whole)
    }


@pytest.fixture
def specs(tmp_path: Path) -> SpecDirectory:
    directory = tmp_path / "cdi"
    directory.mkdir()
    return SpecDirectory(directory, calls=UNSYNCED)


def settled(specs: SpecDirectory, live: Collection[ClaimUid] = (UID,)) -> list[str]:
    """Names after settling; settling again finds nothing more to do but what must wait."""
    specs.settle(live)
    found = names(specs.directory)
    specs.settle(live)
    assert names(specs.directory) == found
    return found


def test_our_unfinished_files_go_and_those_of_others_stay(specs: SpecDirectory) -> None:
    """B56: own stale temporary files are removed at start, foreign ones left."""
    ours = (f".{FILE}.tmp", f".fleetscrub.dev-gpu-agent_{UID}.json.tmp")
    foreign = (".scrub-tmp-123", ".fleetscrub.dev-gpu_a b.json.tmp", "x.json.tmp")
    for name in (*ours, *foreign):
        (specs.directory / name).write_text("{")
    assert specs.settle([]) == ()
    assert names(specs.directory) == sorted(foreign)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "fleetscrub.dev/gpu"}', "\0"])
def test_a_broken_file_of_ours_is_moved_aside_unless_its_claim_will_write_it_anew(
    specs: SpecDirectory, content: str
) -> None:
    """B68: reported either way; a live claim's file is replaced by its next write in one step."""
    (specs.directory / FILE).write_text(content)
    assert "waits to be written anew" in specs.settle([UID])[0]
    specs.write(claim(), grants(claim()))
    assert specs.settle([UID]) == ()
    (specs.directory / FILE).write_text(content)
    assert "moved aside" in specs.settle([])[0]
    assert names(specs.directory) == [f"{FILE}.aside"]
    assert specs.listed() == ()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nvidia.json", text("x", kind="nvidia.com/gpu")),
        (FILE, text("x", kind="fleetscrub.dev-gpu/x")),
        ("nvidia.yaml", "kind: ["),
        ("fleetscrub.dev-gpu2_x.json", "{"),
        ("fleetscrub.dev-gpu_x.yml", "{"),
        ("README", "{"),
        ("x.json.tmp", "{"),
    ],
)
def test_files_of_others_are_not_touched(specs: SpecDirectory, name: str, content: str) -> None:
    """B68: another kind, and the unreadable under another name, are nobody's business of ours."""
    path = specs.directory / name
    path.write_text(content)
    before = path.stat()
    assert specs.settle([]) == ()
    assert path.stat() == before
    assert specs.listed() == ()


@pytest.mark.parametrize(
    ("devices", "owner"),
    [
        ([f"{UID}_SIM-0"], UID),
        ([f"{UID}_SIM-0", f"{UID}_SIM-1"], UID),
        ([f"{UID}-SIM-0"], UID),
        ([f"gpu.{UID}.0"], UID),
        ([f"{OTHER}_GPU-{UID}"], OTHER),
        ([f"{OTHER}-GPU-{UID}"], UID),
        ([f"{UID}_SIM-0", f"{OTHER}_SIM-1"], None),
        (["gpu0"], None),
    ],
)
def test_a_files_claim_is_read_from_its_devices(
    specs: SpecDirectory, devices: list[str], owner: ClaimUid | None
) -> None:
    """B68, promise 3: each file gets its claim's name; whose claim nobody can say goes aside."""
    (specs.directory / "odd.json").write_text(text(*devices, kind=KIND))
    expected = specs.name(owner) if owner else "odd.json.aside"
    assert settled(specs) == [expected]


def test_today_s_file_wins_over_an_older_one(specs: SpecDirectory) -> None:
    """B68: where both are there already, two definitions become one, today's."""
    specs.write(claim(), grants(claim()))
    before = (specs.directory / FILE).read_bytes()
    for name in ("a-older.json", "z-older.yaml"):
        (specs.directory / name).write_bytes(before)
    assert settled(specs) == [FILE]
    assert (specs.directory / FILE).read_bytes() == before


def test_an_older_file_wins_over_a_broken_one_of_today(specs: SpecDirectory) -> None:
    """B68: the one a runtime can read becomes today's, in one step."""
    (specs.directory / FILE).write_text("{")
    older = text(f"{UID}-SIM-0", kind=KIND)
    (specs.directory / "older.json").write_text(older)
    assert settled(specs) == [FILE]
    assert (specs.directory / FILE).read_text() == older


def test_links_and_pipes_under_our_names_are_settled_without_following(
    specs: SpecDirectory, tmp_path: Path
) -> None:
    """B56: a link, a dangling one and a pipe never hang the start, and targets are untouched."""
    target = tmp_path / "target"
    target.write_text("secret")
    (specs.directory / "fleetscrub.dev-gpu_a.json").symlink_to(target)
    (specs.directory / "fleetscrub.dev-gpu_b.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(specs.directory / "fleetscrub.dev-gpu_c.json")
    (specs.directory / "fleetscrub.dev-gpu_d.json").mkdir()
    found = settled(specs, ())
    assert [name for name in found if not name.endswith(".aside")] == ["fleetscrub.dev-gpu_d.json"]
    assert len(found) == 4
    assert target.read_text() == "secret"


def test_an_agents_older_file_is_settled_among_agents(specs: SpecDirectory) -> None:
    """DESIGN 7: the agent's class has its own files; its leftovers never become a tenant's."""
    old = text(f"{UID}_agent", kind=f"{KIND}-agent")
    (specs.directory / "agent.yaml").write_text(old)
    (specs.directory / "fleetscrub.dev-gpu-agent_x.json").write_text("{")
    assert settled(specs, ()) == [
        f"fleetscrub.dev-gpu-agent_{UID}.json", "fleetscrub.dev-gpu-agent_x.json.aside",
    ]  # fmt: skip
    assert specs.listed_agents() == (UID,)
    assert specs.listed() == ()


def test_what_cannot_be_settled_is_told_and_the_rest_is_done(specs: SpecDirectory) -> None:
    """B67: a read-only moment leaves the old files as they are; calling again settles them."""

    def refused(source: Path, target: Path) -> None:
        if source.name == "a.json":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        source.replace(target)

    for name, uid in (("a.json", UID), ("b.json", OTHER)):
        (specs.directory / name).write_text(text(f"{uid}_SIM-0", kind=KIND))
    hampered = replace(specs, calls=replace(UNSYNCED, replace=refused))
    with pytest.raises(errors.SpecUnavailable, match=r"a\.json cannot be settled.*Read-only"):
        hampered.settle([UID])
    assert names(specs.directory) == ["a.json", specs.name(OTHER)]
    specs.settle([UID])
    assert specs.listed() == (UID, OTHER)


def test_without_a_directory_there_is_nothing_to_settle(specs: SpecDirectory) -> None:
    """B67: a directory that is missing, or something else, holds no leftovers."""
    shutil.rmtree(specs.directory)
    assert specs.settle([UID]) == ()
    specs.directory.touch()
    assert specs.settle([UID]) == ()
    assert specs.ids(claim(), Uuid("SIM-0"))
