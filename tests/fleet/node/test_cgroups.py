"""A pod's cgroups are found by its whole UID in every layout, and emptiness is never assumed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fleet.core.errors import CgroupsUnreadable, InputInvalid
from fleet.node.cgroups import DEEPEST, MOST, CgroupTree
from tests.fleet.devices.wipe.orders import eventually
from tests.fleet.node.trees import LAYOUTS, OTHER, POD, Tree

CASES = json.loads(
    (Path(__file__).parents[2] / "corpus/F10-nested-kubelet-cgroups/trees.json").read_text()
)
NOBODY = 65534
STATIC = "0123456789abcdef0123456789abcdef"


@pytest.fixture(params=LAYOUTS)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    """A node's cgroups in each layout."""
    return Tree(tmp_path / "cgroup", request.param)


def test_a_pods_cgroups_are_found_in_every_hierarchy(tree: Tree) -> None:
    """Promise 4: v1, v2 and hybrid, cgroupfs and systemd names, any quality of service."""
    for uid, quality in ((POD, "burstable"), (OTHER, ""), (STATIC, "besteffort")):
        paths = tree.pod(uid, quality)
        assert CgroupTree(tree.root).pods(uid) == sorted(paths)
        assert CgroupTree(tree.root).pods(uid.upper()) == sorted(paths)


def test_a_process_in_any_container_occupies_the_pod(tree: Tree) -> None:
    """Promise 4: the pod is looked through to its last container, and is free when all are."""
    pod, cgroups = tree.pod(POD), CgroupTree(tree.root)
    assert not any(cgroups.occupied(path) for path in pod)
    tree.enter(pod, container=1)
    assert all(cgroups.occupied(path) for path in pod)
    tree.leave(pod, container=1)
    assert not any(cgroups.occupied(path) for path in pod)
    tree.remove(pod)
    assert cgroups.pods(POD) == []
    assert not cgroups.occupied(pod[0]), "one removed after it was found is empty"


def test_several_pods_are_found_in_one_walk(tree: Tree) -> None:
    """Every UID asked for is answered, also those that have no cgroup."""
    pod = tree.pod(POD)
    assert CgroupTree(tree.root).find([POD, OTHER]) == {POD: sorted(pod), OTHER: []}


@pytest.mark.parametrize(
    "name",
    [
        f"pod{POD}0",
        f"pod{POD}-x",
        f"xpod{POD}",
        f"pod{POD[:-1]}",
        f"pod{POD[1:]}",
        POD,
        f"kubepods-pod{POD.replace('-', '_')}_1.slice",
    ],
)
def test_a_uid_matches_whole_or_not_at_all(tmp_path: Path, name: str) -> None:
    """Promise 9: a longer, shorter or embedded UID is somebody else."""
    tree = Tree(tmp_path, "v2-cgroupfs")
    (tree.root / "kubepods" / "burstable" / name).mkdir()
    assert CgroupTree(tree.root).pods(POD) == []


@pytest.mark.parametrize(
    "place",
    [
        f"system.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice:cri-containerd:ab",
        f"kubelet/kubepods/burstable/pod{POD}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{POD.replace('-', '_')}.slice",
        f"init.scope/deep/er/pod{POD}",
        f"docker/{'ab' * 32}/kubelet.slice/kubelet-kubepods.slice/pod{POD}",
        f"system.slice/docker-ab.scope/user.slice/pod{POD}",
    ],
)
def test_unusual_places_are_searched_too(tmp_path: Path, place: str) -> None:
    """A nested kubelet, or a runtime whose driver differs from kubelet's, hides no pod."""
    tree = Tree(tmp_path, "v1-systemd")
    path = tree.root / "pids" / place
    path.mkdir(parents=True)
    (path / "cgroup.procs").write_text("77\n")
    assert CgroupTree(tree.root).pods(POD) == [path]
    assert CgroupTree(tree.root).occupied(path)


@pytest.mark.parametrize("text", ["", "../x", "a b", "*", "Ä"])
def test_what_is_no_uid_is_refused(tmp_path: Path, text: str) -> None:
    """Nobody is proven gone under a name no pod can have."""
    with pytest.raises(InputInvalid):
        CgroupTree(Tree(tmp_path, "v2-cgroupfs").root).pods(text)


def test_a_tree_without_pods_directory_is_unknown(tmp_path: Path) -> None:
    """Promise 5: a container's own cgroup view shows no pod at all, which proves nothing."""
    (tmp_path / "pids" / "own").mkdir(parents=True)
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CgroupsUnreadable):
            CgroupTree(root).pods(POD)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_f10_a_pod_that_runs_is_never_gone(tmp_path: Path, case: dict[str, Any]) -> None:
    """F10: a pod of a kubelet that is itself in a pod, or a container, runs as long as it does."""
    for place, pids in case["tree"].items():
        path = tmp_path / place.lstrip("/")
        path.mkdir(parents=True)
        for above in (path, *path.parents):
            if above.is_relative_to(tmp_path) and not (above / "cgroup.procs").exists():
                (above / "cgroup.procs").write_text("")
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    cgroups = CgroupTree(tmp_path)
    told = {
        uid: "runs" if any(cgroups.occupied(path) for path in paths) else "gone"
        for uid, paths in cgroups.find(case["ask"]).items()
    }
    assert told == case["ask"]


def test_f10_a_kubelet_in_a_pod_that_cannot_be_searched_leaves_its_pods_unknown(
    tmp_path: Path,
) -> None:
    """F10: absence from where nobody could look is unknown; a pod without a kubelet hinders no
    search, however many cgroups it has."""
    tree = Tree(tmp_path, "v2-cgroupfs")
    (pod,) = tree.pod(POD)
    _nest(pod, "d", DEEPEST + 2)
    assert CgroupTree(tree.root).find([OTHER]) == {OTHER: []}
    (pod / "kubepods").mkdir()
    with pytest.raises(CgroupsUnreadable, match="the kubelet inside"):
        CgroupTree(tree.root).find([OTHER])
    assert CgroupTree(tree.root).find([POD]) == {POD: [pod]}


def test_f10_containers_of_a_kubelet_in_a_pod_are_listed(tmp_path: Path) -> None:
    """F10: who may open a device is asked of containers of a kubelet inside a pod, too."""
    tree = Tree(tmp_path, "v2-cgroupfs")
    (pod,) = tree.pod(POD, containers=1)
    inner = pod / "kubepods" / "burstable" / f"pod{OTHER}" / "ab12"
    inner.mkdir(parents=True)
    assert inner in CgroupTree.containers(tree.root)


def test_a_user_cannot_pass_for_a_pod(tree: Tree) -> None:
    """Promise 9: cgroups below what systemd delegates to users are nobody's pods."""
    for top in {tree.root, *tree.hierarchies}:
        session = top / "user.slice" / "user-1000.slice" / "session-1.scope"
        service = _delegated(top, top / "system.slice" / "of-a-user")
        for fake in (one / "kubepods" / f"pod{POD}" for one in (session, service)):
            fake.mkdir(parents=True)
            (fake / "cgroup.procs").write_text("777\n")
    assert CgroupTree(tree.root).pods(POD) == []
    pod = tree.pod(POD)
    assert CgroupTree(tree.root).pods(POD) == sorted(pod)


def test_a_user_cannot_hinder_the_search(tree: Tree) -> None:
    """Promise 5: a user's cgroups, deeper than a path can say, leave every pod's answer."""
    pod, top = tree.pod(POD), tree.hierarchies[-1]
    home = _delegated(top, top / "system.slice" / "of-a-user")
    _nest(home, "d" * 250, 18)
    assert CgroupTree(tree.root).find([POD, OTHER]) == {POD: sorted(pod), OTHER: []}
    shutil.rmtree(home)


@pytest.mark.parametrize("processes", ["", "4321\n"])
def test_a_pod_is_looked_through_to_any_depth_a_name_can_have(
    tmp_path: Path, processes: str
) -> None:
    """Promise 4: in a pod everything counts, also what no path can name; and who owns it."""
    tree = Tree(tmp_path, "v2-cgroupfs")
    (pod,) = tree.pod(POD)
    inner = _delegated(pod, pod / "inner")
    (inner / "cgroup.procs").write_text("")
    _nest(inner, "d" * 250, 18, processes)
    assert CgroupTree(tree.root).occupied(pod) == bool(processes)
    shutil.rmtree(inner)


@pytest.mark.parametrize(("levels", "width"), [(DEEPEST + 1, 0), (1, MOST)])
def test_a_pod_beyond_all_measure_is_unknown_alone(tmp_path: Path, levels: int, width: int) -> None:
    """Promise 5: what is too much to look through is not empty, and is one pod's own trouble."""
    tree = Tree(tmp_path, "v2-cgroupfs")
    (pod,), (other,) = tree.pod(POD), tree.pod(OTHER)
    _nest(pod, "d", levels)
    for number in range(width):
        (pod / "d" / str(number)).mkdir()
        (pod / "d" / str(number) / "cgroup.procs").touch()
    cgroups = CgroupTree(tree.root)
    assert cgroups.find([POD, OTHER]) == {POD: [pod], OTHER: [other]}
    assert not cgroups.occupied(other)
    with pytest.raises(CgroupsUnreadable, match="more than"):
        cgroups.occupied(pod)


def test_pods_of_nobody_known_are_unknown(tmp_path: Path) -> None:
    """Promise 5: kubepods that are neither root's nor ours are not searched, nor taken for empty.

    Only root can give them away; where we are not root they stay ours, and are searched.
    """
    tree = Tree(tmp_path, "v2-cgroupfs")
    pod, kubepods = tree.pod(POD), tree.root / "kubepods"
    with suppress(PermissionError):
        os.chown(kubepods, NOBODY, NOBODY)
    if kubepods.stat().st_uid == NOBODY:
        with pytest.raises(CgroupsUnreadable, match="neither"):
            CgroupTree(tree.root).pods(POD)
    else:
        assert CgroupTree(tree.root).pods(POD) == pod


def test_a_cgroup_that_does_not_list_processes_is_unknown(tree: Tree) -> None:
    """Promise 5: an error while a cgroup exists is not emptiness."""
    pod = tree.pod(POD)
    listed = pod[0] / next(path.name for path in pod[0].iterdir() if path.is_dir())
    (listed / "cgroup.procs").unlink()
    with pytest.raises(CgroupsUnreadable):
        CgroupTree(tree.root).occupied(pod[0])
    (listed / "cgroup.procs").mkdir()
    with pytest.raises(CgroupsUnreadable):
        CgroupTree(tree.root).occupied(pod[0])


@pytest.mark.parametrize(
    ("file", "empty", "occupied"),
    [("cgroup.events", "populated 0\nfrozen 0\n", "populated 1\n"), ("pids.current", "0\n", "1\n")],
)
def test_the_kernels_own_count_is_a_second_witness(
    tmp_path: Path, file: str, empty: str, occupied: str
) -> None:
    """Without the host's pids v1 lists nobody; the counters still know that somebody is there."""
    tree = Tree(tmp_path, "v1-cgroupfs")
    (pod, *_) = tree.pod(POD)
    (pod / file).write_text(empty)
    assert not CgroupTree(tree.root).occupied(pod)
    (pod / file).write_text(occupied)
    assert CgroupTree(tree.root).occupied(pod)


def test_a_count_of_nobody_is_not_believed_against_a_list(tmp_path: Path) -> None:
    """Processes decide: `populated 0` is no shortcut to "gone"."""
    tree = Tree(tmp_path, "v2-cgroupfs")
    pod = tree.pod(POD)
    (pod[0] / "cgroup.events").write_text("populated 0\n")
    tree.enter(pod)
    assert CgroupTree(tree.root).occupied(pod[0])


def test_a_node_full_of_pods_is_looked_through_quickly(tmp_path: Path) -> None:
    """250 pods in 8 controllers, 3 containers each, one walk: far below a prepare's budget."""
    tree = Tree(tmp_path, "v1-systemd")
    for number in range(250):
        for path in tree.pod(f"00000000-0000-4000-8000-{number:012x}", containers=0):
            for container in range(3):
                (path / f"cri-containerd-{container:064x}.scope").mkdir(parents=True)
    pod = tree.pod(POD)
    started = time.perf_counter()
    found = CgroupTree(tree.root).pods(POD)
    assert time.perf_counter() - started < 2.0
    assert found == sorted(pod)


def test_a_real_process_is_seen_until_it_is_killed(tmp_path: Path) -> None:
    """Promise 4: by this machine's kernel where it lets us make a cgroup, else by files alone."""
    uid = str(uuid.uuid4())
    with subprocess.Popen((sys.executable, "-c", "import time; time.sleep(60)")) as child:
        pod = _kernel_pod(uid, child.pid) or _file_pod(uid, child.pid, tmp_path / "top")
        cgroups = CgroupTree(pod.parents[1])
        try:
            assert cgroups.pods(uid) == [pod]
            assert cgroups.occupied(pod)
            child.kill()
            child.wait()
            if pod.is_relative_to(tmp_path):
                (pod / "container" / "cgroup.procs").write_text("")
            assert eventually(lambda: not cgroups.occupied(pod))
        finally:
            child.kill()
            child.wait()
            if not pod.is_relative_to(tmp_path):
                _remove(pod)
    assert pod.is_relative_to(tmp_path) or not pod.parent.exists()


def _kernel_pod(uid: str, pid: int) -> Path | None:
    """A real cgroup of a pod with this process in its container; None where that is not allowed."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    tops = [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]
    for top in sorted(tops, key=lambda path: path.name != "pids"):
        pod = top / f"kubepods-fleet-{os.getpid()}" / f"pod{uid}"
        try:
            (pod / "container").mkdir(parents=True)
            (pod / "container" / "cgroup.procs").write_text(f"{pid}\n")
        except OSError:
            _remove(pod)
        else:
            return pod
    return None


def _file_pod(uid: str, pid: int, top: Path) -> Path:
    pod = top / "kubepods" / f"pod{uid}"
    (pod / "container").mkdir(parents=True)
    (pod / "cgroup.procs").write_text("")
    (pod / "container" / "cgroup.procs").write_text(f"{pid}\n")
    return pod


def _remove(pod: Path) -> None:
    for path in (pod / "container", pod, pod.parent):
        with suppress(OSError):
            path.rmdir()


def _delegated(top: Path, path: Path) -> Path:
    """A directory given to a user; where we may not, the user's own below `top`."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        os.chown(path, NOBODY, NOBODY)
    except PermissionError:
        path = top / "user.slice" / path.name
        path.mkdir(parents=True, exist_ok=True)
    return path


def _nest(top: Path, name: str, levels: int, processes: str = "") -> None:
    """Cgroups in each other, made as a user would: from inside; processes are in the last."""
    within = os.open(top, os.O_RDONLY)
    for level in range(levels):
        os.mkdir(name, dir_fd=within)
        child = os.open(name, os.O_RDONLY, dir_fd=within)
        os.close(within)
        within = child
        listed = os.open("cgroup.procs", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=within)
        os.write(listed, processes.encode() if level == levels - 1 else b"")
        os.close(listed)
    os.close(within)
