"""What keeps a node from preparing anything is told before a pod meets it, and ends by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fleet.core import errors
from fleet.core.messages import Published, Right
from fleet.core.model import Token
from fleet.node.condition import LOOK_PERIOD_S, Condition, _shortage
from fleet.stores.base import Release
from tests.fleet.node.conftest import Lab

LOGGER = "fleet.node.condition"


@dataclass
class Watched:
    """The condition of a lab's node, looked at when the test says so."""

    lab: Lab
    _now: float = field(default=0.0)

    @property
    def condition(self) -> Condition:
        return self.lab.node._condition

    def look(self) -> tuple[str, ...]:
        """A look, and what the node's view says then."""
        self._now += LOOK_PERIOD_S
        self.condition.step(self._now)
        view = self.lab.node.view()
        assert set(view.blocked) <= set(view.degraded)
        return view.blocked


@pytest.fixture
def watched(lab: Lab) -> Watched:
    """A node that nothing keeps from preparing."""
    found = Watched(lab)
    assert found.look() == ()
    return found


def test_cgroups_that_cannot_be_read_block_the_node(watched: Watched) -> None:
    """Promise 4: no tenant can be proven gone there; told from the start of the service on."""
    root = watched.lab.serve().root
    assert watched.look() == ()
    hidden = root.rename(root.with_name("hidden"))
    (text,) = watched.look()
    assert str(root) in text
    assert "show the process the host's cgroups" in text
    watched.lab.restart()
    assert watched.lab.node.view().blocked == (text,)
    hidden.rename(root)
    assert watched.look() == ()


def test_a_checkpoint_that_cannot_be_read_blocks_the_node(watched: Watched) -> None:
    """Promise 4: who uses a claim is unknown; a checkpoint kubelet has not made yet is fine."""
    watched.lab.serve()
    checkpoint = watched.lab.state / "dra_manager_state"
    assert watched.look() == ()
    checkpoint.write_text("{")
    (text,) = watched.look()
    assert str(checkpoint) in text
    checkpoint.unlink()
    assert watched.look() == ()


def test_a_lease_store_that_is_away_blocks_the_node(watched: Watched) -> None:
    """No claim gets a lease; asked about only every LOOK_PERIOD_S, it may answer slowly."""
    with watched.lab.store_away():
        (text,) = watched.look()
        assert "is not there" in text
        assert "fleet store adopt" in text
    watched.condition.step(watched._now + LOOK_PERIOD_S / 2)
    assert watched.lab.node.view().blocked == (text,)
    assert watched.look() == ()


def test_a_store_of_another_epoch_blocks_the_node(watched: Watched) -> None:
    """V5: its tokens are all refused, so that no claim can be exposed under one."""
    parts = watched.lab.node._parts
    ours, store = parts.registry.journal.epoch, parts.store

    class Foreign:
        def release(self, releases: Sequence[Release]) -> Sequence[bool]:
            return [True for _ in releases]

        def newest(self) -> Token:
            return Token(ours + 1, 7)

    parts.store = Foreign()  # type: ignore[assignment] # what is used of it
    (text,) = watched.look()
    assert f"epoch {ours}, the lease store issues epoch {ours + 1}" in text
    assert "fleet store adopt" in text
    parts.store = store
    assert watched.look() == ()


def test_a_journal_that_takes_no_commit_blocks_the_node(watched: Watched) -> None:
    """A full disk: told from the first failure on, and tried again while nobody else does."""
    database = watched.lab.node._registry.journal._database
    database.execute("PRAGMA query_only = ON")
    with pytest.raises(errors.FleetError):
        watched.lab.node.quarantine_add("gpu-0", detail="x", operator="ada")
    (text,) = watched.lab.node.view().blocked
    assert "journal.db" in text
    assert watched.look() == (text,)
    database.execute("PRAGMA query_only = OFF")
    assert watched.look() == ()


def test_a_journal_without_room_stays_blocked_until_there_is(watched: Watched) -> None:
    """A commit of nothing may fit on a full disk: that alone must not offer the devices again."""
    lab = watched.lab
    lab.node._registry.commit_trouble = "there is no room"
    probe = lab.directory / ".fleetscrub-probe"
    probe.mkdir()
    first, second = watched.look()
    assert first == "there is no room"
    assert f"cannot be kept in {lab.directory}" in second
    assert "free space" in second
    probe.rmdir()
    assert watched.look() == ()
    assert not probe.exists()


def test_a_directory_of_specs_that_is_none_blocks_the_node(watched: Watched) -> None:
    """B79: the look finds it, and a prepare that fails for it does at once."""
    lab = watched.lab
    directory = lab.directory / "cdi"
    lab.scrub("gpu-0")
    lab.let_go()
    if directory.is_dir():
        directory.rmdir()
    assert watched.look() == (), "the first spec makes it"
    directory.write_text("")
    with pytest.raises(errors.SpecUnavailable):
        lab.node.prepare(lab.claim("c", "gpu-0"))
    (text,) = lab.node.view().blocked
    assert f"no spec can be written to {directory}" in text
    assert "repair access" in text
    assert watched.look() == (text,)
    directory.unlink()
    assert watched.look() == ()


def test_what_only_a_write_shows_is_written_again_until_it_works(watched: Watched) -> None:
    """A quota, an I/O error: after a spec that failed, a look from outside is not enough."""
    probe = watched.lab.directory / "cdi" / ".fleetscrub-probe"
    probe.mkdir(parents=True)
    assert watched.look() == ()
    watched.condition.unwritten()
    (text,) = watched.lab.node.view().blocked
    assert "no spec can be written" in text
    assert watched.look() == (text,)
    probe.rmdir()
    assert watched.look() == ()


def test_a_spec_that_fails_for_itself_blocks_nobody_else(watched: Watched) -> None:
    """Promise 9: a path one device needs is no trouble of the node; nothing is left behind."""
    watched.condition.unwritten()
    assert watched.lab.node.view().blocked == ()
    assert watched.lab.specs == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"flag": os.ST_RDONLY}, ["its file system is read-only"]),
        ({"free": 0}, ["its file system is full"]),
        ({"names": 0}, ["its file system has no room for another file"]),
        ({"blocks": 0, "free": 0, "files": 0, "names": 0}, []),
    ],
)
def test_what_a_file_system_has_none_of(changes: dict[str, int], found: list[str]) -> None:
    """Read-only and full are seen without a write; one that counts nothing has no limit."""
    room = {"blocks": 10, "free": 5, "files": 10, "names": 5, "flag": 0, **changes}
    result = os.statvfs_result(
        (4096, 4096, room["blocks"], room["free"], room["free"], room["files"], room["names"],
         room["names"], room["flag"], 255)
    )  # fmt: skip
    assert list(_shortage(result)) == found


def test_trouble_is_logged_when_it_begins_and_when_it_ends(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """At three in the morning the log says what is wrong, once, and that it is over."""
    with watched.lab.store_away():
        for _ in range(3):
            watched.lab.node.tick(watched._now)
            watched.look()
    (begun,) = [record for record in caplog.records if record.name == LOGGER]
    assert begun.levelname == "WARNING"
    assert "nothing can be prepared on node n1: " in begun.getMessage()
    assert "is not there" in begun.getMessage()
    watched.look()
    (_, ended) = [record for record in caplog.records if record.name == LOGGER]
    assert ended.getMessage() == "node n1 can prepare claims again"


def test_a_lesser_trouble_is_logged_and_blocks_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that serves in a degraded way still prepares claims."""
    watched.lab.node._registry.copies.witness_trouble = "the witness cannot be written: x"
    assert watched.look() == ()
    assert "node n1 serves degraded: the witness cannot be written: x" in caplog.text
    watched.lab.node._registry.copies.witness_trouble = ""
    watched.look()
    assert "node n1 serves undegraded again" in caplog.text


def test_b39_leftovers_and_strays_are_notes_and_degrade_nothing(lab: Lab) -> None:
    """B39, B70, gpus-8.29: what concerns no device is told of the node, and blocks nobody."""
    assert lab.node.view().notes == ()
    health = lab.node._parts.sweep
    health.strays = ("the kernel log has fault 79 of slot 0000:99:00",)
    health.validator.partitions.troubles = ("the instance of PART-1 is not removed: in use",)
    view = lab.node.view()
    assert view.notes == (*health.validator.partitions.troubles, *health.strays)
    assert (view.blocked, view.degraded) == ((), ())


def test_f71_a_right_that_the_plugin_lacks_is_told_of_the_node(lab: Lab) -> None:
    """F71: whoever asks the node's owner hears of it, as long as the plugin says so; one it can do
    without degrades nothing."""
    account = "system:serviceaccount:fleetscrub:fleet-node-plugin"
    needed = Right(verb="list", resource="resourceslices", group="resource.k8s.io", account=account)
    lesser = Right(verb="create", resource="events", account=account)
    lab.node.published(Published(missing=(needed, lesser)))
    view = lab.node.view()
    (told,) = view.degraded
    assert told.startswith("the plugin lacks a right: list resourceslices.resource.k8s.io (account")
    assert [note for note in view.notes if "create events" in note]
    assert view.blocked == ()
    lab.node.published(Published())
    assert lab.node.view().degraded == ()
