"""Rules of the sockets several instances meet on."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.core import errors
from node_plugin import sockets
from node_plugin.sockets import PATH_BYTES_MAX, socket_paths

POD = "01234567-89ab-cdef-0123-456789abcdef"


@contextmanager
def bound(path: Path) -> Iterator[socket.socket]:
    """A live listener at `path`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def stale(path: Path) -> None:
    """A socket whose process is gone."""
    with bound(path):
        pass
    assert stat.S_ISSOCK(path.lstat().st_mode)


def test_names_are_those_of_the_go_library() -> None:
    """One instance has the plain names; several have the pod's UID in both (B46)."""
    root = Path("/var/lib/kubelet")
    alone = socket_paths(kubelet_root=root, driver="gpu.example.com")
    assert str(alone.registration) == "/var/lib/kubelet/plugins_registry/gpu.example.com-reg.sock"
    assert str(alone.dra) == "/var/lib/kubelet/plugins/gpu.example.com/dra.sock"
    one = socket_paths(kubelet_root=root, driver="gpu.example.com", instance=POD)
    assert one.registration.name == f"gpu.example.com-{POD}-reg.sock"
    assert one.dra.name == f"dra-{POD}.sock"
    assert one.lock == alone.lock


@pytest.mark.parametrize(("length", "fits"), [(27, True), (28, False)])
def test_paths_stay_within_the_kernels_limit(length: int, *, fits: bool) -> None:
    """B46: with default directories and a pod's UID a driver name has 27 characters at most."""
    root = Path("/var/lib/kubelet")
    if fits:
        found = socket_paths(kubelet_root=root, driver="d" * length, instance=POD)
        assert len(str(found.registration)) == PATH_BYTES_MAX
    else:
        with pytest.raises(errors.SettingsInvalid, match=r"108 bytes, 107 are possible"):
            socket_paths(kubelet_root=root, driver="d" * length, instance=POD)


@pytest.mark.parametrize("instance", ["a/b", "..", "-a", "a b"])
def test_an_instance_is_a_plain_name(instance: str) -> None:
    """An instance name cannot lead out of the directory."""
    with pytest.raises(errors.SettingsInvalid):
        socket_paths(kubelet_root=Path("/k"), driver="d", instance=instance)


def test_the_root_is_absolute() -> None:
    """Kubelet dials the path we tell it, from its own working directory."""
    with pytest.raises(errors.SettingsInvalid):
        socket_paths(kubelet_root=Path("kubelet"), driver="d")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(place: Path, mask: int) -> None:
    """B47: the directory is 0700 and the socket 0600 under any umask."""
    before = os.umask(mask)
    try:
        directory = place / "plugins" / "driver"
        sockets.make_directory(directory)
        private, public = sockets.private_path(directory), directory / "dra.sock"
        with bound(private):
            sockets.publish(private, public, lock=directory / "lock")
            assert stat.S_IMODE(public.stat().st_mode) == 0o600
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_directory_of_kubelets_keeps_its_mode(place: Path) -> None:
    """A directory that exists belongs to whoever made it."""
    place.chmod(0o755)
    sockets.make_directory(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o755


def test_a_file_where_a_directory_is_due_is_named(place: Path) -> None:
    """B46: the error says what is in the way."""
    (place / "plugins").write_text("")
    with pytest.raises(errors.SocketTaken, match="plain file"):
        sockets.make_directory(place / "plugins")


def test_a_private_name_is_hidden_and_no_longer_than_a_public_one(place: Path) -> None:
    """Kubelet's watcher skips it, and a public path at the limit has room for the private one."""
    path = sockets.private_path(place)
    assert path.name.startswith(".")
    assert len(path.name) <= len("dra.sock")


def test_a_published_socket_is_reached_and_only_ours_is_removed(place: Path) -> None:
    """B46: the public name leads to the listener; at exit another's socket there is left."""
    private, public, lock = place / ".fsaaaaa", place / "dra.sock", place / "lock"
    with bound(private) as listener:
        published = sockets.publish(private, public, lock=lock)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(public))
        assert not private.exists()
        assert sockets.is_ours(published)
        public.unlink()
        assert not sockets.is_ours(published)
        with bound(public):
            assert not sockets.is_ours(published)
            assert not sockets.withdraw(published, lock=lock)
            assert public.exists()
        assert listener.fileno() >= 0
    public.unlink()
    assert not sockets.withdraw(published, lock=lock)


def test_a_dead_socket_is_replaced(place: Path) -> None:
    """B46, invariant 3: what a killed instance left at the path does not stop its successor."""
    private, public = place / ".fsaaaaa", place / "dra.sock"
    stale(public)
    with bound(private):
        published = sockets.publish(private, public, lock=place / "lock")
        assert sockets.is_ours(published)
        assert sockets.withdraw(published, lock=place / "lock")
    assert not public.exists()


def test_a_live_instance_is_not_robbed(place: Path) -> None:
    """B46: a path somebody serves at is refused, and its owner is still reached."""
    private, public = place / ".fsaaaaa", place / "dra.sock"
    with bound(private), bound(public):
        inode = public.lstat().st_ino
        with pytest.raises(errors.SocketTaken, match="another instance"):
            sockets.publish(private, public, lock=place / "lock")
        assert public.lstat().st_ino == inode


def test_a_listener_with_a_full_queue_is_alive(place: Path) -> None:
    """B46: an instance too busy to accept is not taken for dead."""
    private, public = place / ".fsaaaaa", place / "dra.sock"
    with bound(private), socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(public))
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(public))
            with pytest.raises(errors.SocketTaken, match="another instance"):
                sockets.publish(private, public, lock=place / "lock")


@pytest.mark.parametrize("kind", ["plain file", "directory", "symbolic link"])
def test_what_is_no_socket_stays(place: Path, kind: str) -> None:
    """B46: something else at the path gives an error that names it, and is left as it is."""
    private, public = place / ".fsaaaaa", place / "dra.sock"
    if kind == "plain file":
        public.write_text("precious")
    elif kind == "directory":
        public.mkdir()
    else:
        public.symlink_to(place / "nowhere")
    with bound(private), pytest.raises(errors.SocketTaken, match=kind):
        sockets.publish(private, public, lock=place / "lock")
    assert public.is_symlink() or public.exists()


def test_leftovers_of_dead_starters_are_swept(place: Path) -> None:
    """Old private sockets that nobody serves go; young, live and foreign files stay."""
    private, public = place / ".fsaaaaa", place / "dra.sock"
    old, young, foreign = (place / name for name in (".fs00000", ".fs11111", ".other"))
    for path in (old, young, foreign):
        stale(path)
    live = place / ".fs22222"
    with bound(private), bound(live):
        for path in (old, foreign, live):
            os.utime(path, (0, 0))
        sockets.publish(private, public, lock=place / "lock")
        assert not old.exists()
        assert young.exists()
        assert foreign.exists()
        assert live.exists()


def test_of_two_starters_on_a_dead_path_one_wins(place: Path) -> None:
    """B46: both find the old socket dead, and still exactly one serves there afterwards."""
    public, lock = place / "dra.sock", place / "lock"
    for round_number in range(20):
        public.unlink(missing_ok=True)
        stale(public)
        start = threading.Barrier(2)
        won: list[sockets.Published] = []

        def compete(private: Path, start: threading.Barrier, won: list[sockets.Published]) -> None:
            with bound(private):
                start.wait()
                try:
                    won.append(sockets.publish(private, public, lock=lock))
                except errors.SocketTaken:
                    private.unlink()
                start.wait()

        threads = [
            threading.Thread(target=compete, args=(place / f".fs{n}{round_number:04}", start, won))
            for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert sockets.is_ours(won[0])


def test_nobody_is_judged_dead_while_another_publishes(place: Path) -> None:
    """B46: between the judgement and the new name no other instance can come: both wait their turn
    for the lock."""
    private, public, lock = place / ".fsaaaaa", place / "dra.sock", place / "lock"
    stale(public)
    with bound(private):
        publishing = threading.Thread(
            target=sockets.publish, args=(private, public), kwargs={"lock": lock}
        )
        with sockets.locked(lock):
            before = public.lstat().st_ino
            publishing.start()
            publishing.join(0.1)
            assert publishing.is_alive()
            assert public.lstat().st_ino == before
        publishing.join()
        assert public.lstat().st_ino != before


def test_a_lock_that_is_kept_is_an_error_not_a_wait_for_ever(place: Path) -> None:
    """An instance stopped while it holds the lock makes the next one fail with the file's name."""
    lock = place / "lock"
    with (
        sockets.locked(lock),
        pytest.raises(errors.SocketTaken, match="locked"),
        sockets.locked(lock, wait_s=0.05),
    ):
        pass
    with sockets.locked(lock, wait_s=0.05):
        assert lock.exists()


def test_b47_a_directory_of_ours_that_is_open_is_closed(place: Path) -> None:
    """B47: the driver's own directory is closed to others before anything is bound in it."""
    ours = place / "plugins" / "driver"
    ours.mkdir(parents=True)
    ours.chmod(0o777)
    sockets.close_directory(ours)
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700


def test_f75_sockets_of_a_killed_instance_are_removed_and_no_others(place: Path) -> None:
    """F75: what a plugin that was killed left behind goes, in kubelet's registry and beside it;
    living instances, other drivers, whatever is no socket and names that are none of ours stay."""
    driver, other = "gpu.example.com", "01234567-89ab-cdef-0123-456789abcd00"
    dead = socket_paths(kubelet_root=place, driver=driver, instance=POD)
    alone = socket_paths(kubelet_root=place, driver=driver)
    alive = socket_paths(kubelet_root=place, driver=driver, instance=other)
    strange = place / "plugins_registry" / f"{driver}-x-reg.sock"
    file = place / "plugins" / driver / f"dra-{other.replace('0', '1')}.sock"
    for paths in (dead, alone, alive):
        sockets.make_directory(paths.registration.parent)
        sockets.make_directory(paths.dra.parent)
    for path in (dead.registration, dead.dra, alone.registration, alone.dra, strange):
        stale(path)
    file.write_text("")
    with bound(alive.registration), bound(alive.dra):
        removed = sockets.remove_dead(place, driver, lock=alive.lock)
        assert set(removed) == {dead.registration, dead.dra, alone.registration, alone.dra}
        assert alive.registration.exists()
        assert alive.dra.exists()
    assert strange.exists()
    assert file.exists()
