"""Who has device nodes open, on a fake /proc and on our own."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.devices.openers import Opener, openers, sees_all
from tests.drivers.pci_tree import PciTree
from tests.fleet.devices.hiding import WAYS, hiding

NODE = "/dev/vfio/7"
WANTED = {NODE: (510, 7)}


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> PciTree:
    """A machine with one process, its first."""
    return PciTree(tmp_path)


def test_a_bare_descriptor_is_a_holder(tree: PciTree) -> None:
    """gpus-8.17: an agent that only holds a descriptor is found, and only while it lives."""
    tree.process(42, "some-agent", "/dev/null", "socket:[12]", NODE)
    tree.process(43, "bystander", "/dev/vfio/70", "/dev/vfio/vfio")
    assert openers(tree.root, WANTED) == (Opener(42, "some-agent", frozenset({NODE})),)
    tree.end(42)
    assert openers(tree.root, WANTED) == ()


def test_a_mapping_without_a_descriptor_is_a_holder(tree: PciTree) -> None:
    """gpus-8.17: memory of a device stays mapped when the descriptor is closed."""
    maps = f"7f0000000000-7f0000001000 rw-s 00000000 00:06 99   {NODE}\n"
    tree.process(42, "mapper", maps=maps + "7f1000000000-7f1000001000 r--p 0 00:00 0\n")
    assert [found.pid for found in openers(tree.root, WANTED)] == [42]


def test_a_deleted_node_is_still_held(tree: PciTree) -> None:
    """gpus-8.17: whoever opened a node that was removed since has the device all the same."""
    tree.process(42, "late", f"{NODE} (deleted)")
    assert [found.pid for found in openers(tree.root, WANTED)] == [42]


def test_a_vfio_device_without_its_group_counts_for_every_group(tree: PciTree) -> None:
    """gpus-5.5: a device opened through VFIO does not tell which it is, so that none is idle."""
    tree.process(42, "machine", "anon_inode:[vfio-device]")
    tree.process(43, "machine", "anon_inode:[vfio-device]", "/dev/vfio/8")
    assert [found.pid for found in openers(tree.root, WANTED)] == [42]


@pytest.mark.parametrize("namespace", ["pid:[4026532001]", ""])
def test_a_view_that_is_not_the_hosts_is_no_proof(tree: PciTree, namespace: str) -> None:
    """gpus-8.17, issue 5: in a container's own PID namespace an empty list is not idle."""
    link = tree.root / "proc/1/ns/pid"
    link.unlink()
    if namespace:
        link.symlink_to(namespace)
    assert not sees_all(tree.root)
    with pytest.raises(BackendFailed, match=f"{NODE} open is unknown") as raised:
        openers(tree.root, WANTED)
    assert "hostPID" in raised.value.remedy


def test_a_process_that_may_not_be_looked_into_is_unknown(tree: PciTree) -> None:
    """gpus-8.17: what cannot be looked into is not idle; here its list is no directory at all."""
    tree.process(42, "closed")
    (tree.root / "proc/42/fd").rmdir()
    (tree.root / "proc/42/fd").touch()
    with pytest.raises(BackendFailed, match="process 42"):
        openers(tree.root, WANTED)


def test_a_process_that_ends_meanwhile_holds_nothing(tree: PciTree) -> None:
    """gpus-8.17: a process without its directory is gone and no trouble."""
    (tree.root / "proc/42").mkdir()
    assert openers(tree.root, WANTED) == ()


def test_names_are_made_readable(tree: PciTree) -> None:
    """gpus-8.17: a process chooses its name; control characters do not reach our records."""
    tree.process(42, "a\x1b[31mb", NODE)
    assert openers(tree.root, WANTED)[0].name == "a\N{REPLACEMENT CHARACTER}[31mb"


def test_numbers_find_what_another_name_hides(tmp_path: Path) -> None:
    """gpus-8.17: in the kernel's own /proc a node is known by its numbers, not by its path."""
    tree = PciTree(tmp_path)
    tree.process(42, "self")
    (tree.root / "proc/42/fd").rmdir()
    ours, theirs = pty.openpty()
    try:
        tree.link("proc/42/fd", f"/proc/{os.getpid()}/fd")
        device = os.fstat(theirs).st_rdev
        numbers = os.major(device), os.minor(device)
        found = openers(tree.root, {"/dev/hidden": numbers})
        assert found == (Opener(42, "self", frozenset({"/dev/hidden"})),)
        assert openers(tree.root, {"/dev/hidden": (numbers[0], numbers[1] + 100_000)}) == ()
    finally:
        os.close(ours)
        os.close(theirs)


def test_files_of_network_file_systems_are_not_asked(tree: PciTree) -> None:
    """gpus-8.17, B29: a descriptor on a server that is gone must not hold up the look for others.

    The name is that of our node, so that asking would show.
    """
    tree.process(42, "trainer", "/mnt/7")
    wanted = {"/mnt/7": None}
    assert [found.pid for found in openers(tree.root, wanted)] == [42]
    tree.put("proc/42/fdinfo/0", "pos:\t0\nflags:\t0100002\nmnt_id:\t55\n")
    tree.put("proc/42/mountinfo", "55 1 0:44 / /mnt rw - nfs4 server:/export rw\n")
    assert openers(tree.root, wanted) == ()
    tree.put("proc/42/mountinfo", "55 1 8:1 / /mnt rw - ext4 /dev/sda1 rw\n")
    assert [found.pid for found in openers(tree.root, wanted)] == [42]


@pytest.mark.parametrize("comparable", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_thread_hides_no_descriptor(tree: PciTree, way: str, *, comparable: bool) -> None:
    """gpus-8.17: neither a thread's own table of descriptors nor a dead first thread hides one."""
    if comparable:
        tree.link("proc/self", "/proc/self")
    with hiding(Path("/dev/full"), way) as pid:
        tree.link(f"proc/{pid}", f"/proc/{pid}")
        (found,) = openers(tree.root, {"/dev/hidden": (1, 7)})
        assert (found.pid, found.paths) == (pid, frozenset({"/dev/hidden"}))
        assert openers(tree.root, {"/dev/hidden": (1, 77)}) == ()


def test_a_window_of_a_dead_first_thread_is_seen(tree: PciTree) -> None:
    """gpus-8.17: the memory of a process is its living threads'."""
    maps = f"7f0000000000-7f0000001000 rw-s 00000000 00:06 99   {NODE}\n"
    tree.process(42, "mapper")
    tree.put("proc/42/task/42/maps", "")
    tree.put("proc/42/task/43/maps", maps)
    assert [found.pid for found in openers(tree.root, WANTED)] == [42]
