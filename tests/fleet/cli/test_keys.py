"""`fleet evidence keys`: keys are listed under the coordinator's signature, replaced, revoked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.evidence import layout
from fleet.evidence.export import export
from fleet.evidence.heads import HeadsLog
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from fleet.node.journal.lock import OwnerLock
from tests.fleet.cli.test_evidence import Run, run_fixture
from tests.fleet.evidence.samples import START, Site

__all__ = ["run_fixture"]


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """A node with two certificates of 2023, and a coordinator."""
    site = Site(tmp_path)
    site.certify("node-1", rounds=1)
    site.countersign()
    return site


def listed(run: Run, site: Site, *words: str) -> dict[str, Any]:
    """A verb's list, by node."""
    code, out, complaint = run(*words, "--state", site.state, "--json")
    assert code == 0, complaint
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_key_is_replaced_and_the_old_one_ends(run: Run, site: Site) -> None:
    """E3: the old private key is destroyed, what it signed stays valid, the new one signs on."""
    old = site.key("node-1").key_id
    assert listed(run, site, "keys", "list")["number"] == 1
    assert listed(run, site, "keys", "list")["number"] == 1, "signed anew only when it changed"
    rows = {row["key_id"]: row for row in listed(run, site, "keys", "rotate", "node-1")["keys"]}
    assert [row["until"] is None for row in rows.values() if row["node"] == "node-1"].count(
        True
    ) == 1
    assert rows[old]["until"] is not None
    site.keys.clear()
    assert site.key("node-1").key_id != old
    site.certify("node-1", rounds=1)
    site.countersign()
    assert verify(collect(site.state)).ok
    code, out, _ = run("keys", "list", "--state", site.state)
    assert (code, old[:16] in out, "signed 20" in out) == (0, True, True)


def test_a_revoked_key_counts_for_what_is_older(run: Run, site: Site) -> None:
    """E3: certificates of 2023 stay valid when their key is revoked today."""
    old = site.key("node-1").key_id
    found = listed(run, site, "keys", "revoke", old[:8], "--reason", "sold", "--now")
    (row,) = [row for row in found["keys"] if row["key_id"] == old]
    assert (row["reason"], row["revoked_at"] is None) == ("sold", False)
    assert verify(collect(site.state)).ok


def test_a_stolen_key_is_replaced_before_it_is_revoked(run: Run, site: Site) -> None:
    """E3: a node signs on with a revoked key, so that one is refused, and --now says what follows.

    After `rotate` the same command is good, and so is all that the node signs then.
    """
    old = site.key("node-1").key_id
    asked = ("keys", "revoke", old, "--reason", "stolen")
    code, _, complaint = run(*asked, "--state", site.state)
    assert (code, "keys rotate node-1" in " ".join(complaint.split())) == (2, True)
    assert all(row["revoked_at"] is None for row in listed(run, site, "keys", "list")["keys"])
    code, out, _ = run(*asked, "--now", "--state", site.state)
    assert (code, "goes on signing with it" in " ".join(out.split())) == (0, True)
    listed(run, site, "keys", "rotate", "node-1")
    assert listed(run, site, *asked)["follows"] == ""
    site.keys.clear()
    site.certify("node-1", rounds=1)
    site.countersign()
    assert verify(collect(site.state)).ok


def test_a_key_of_another_host_is_revoked_by_its_id_or_file(
    run: Run, site: Site, tmp_path: Path
) -> None:
    """E3: state directories per host: the coordinator's has never seen the node's keys."""
    far = Site(tmp_path / "far")
    far.certify("far", rounds=1)
    key, file = far.key("far").key_id, layout.node_key(far.state, "far").with_suffix(".pub")
    code, _, complaint = run("keys", "revoke", key, "--reason", "x", "--state", site.state)
    assert (code, "--node NODE" in complaint) == (2, True)
    found = listed(run, site, "keys", "revoke", str(file), "--node", "far", "--reason", "leaked")
    (row,) = [row for row in found["keys"] if row["key_id"] == key]
    assert (row["node"], row["told"], row["revoked_at"] is None) == ("far", True, False)
    assert "keys rotate far` on its host" in found["follows"]
    again = listed(run, site, "keys", "revoke", key, "--reason", "again")
    assert [row["reason"] for row in again["keys"] if row["key_id"] == key] == ["leaked"]
    mine = site.key("node-1").key_id
    asked = ("keys", "revoke", mine, "--node", "far", "--reason", "x", "--state", site.state)
    code, _, complaint = run(*asked)
    assert (code, "key of node-1, not of far" in complaint) == (2, True)


def test_a_node_without_coordinator_gets_a_new_key_alone(
    run: Run, site: Site, tmp_path: Path
) -> None:
    """E3: its host lists no keys, and says what to run where they are listed."""
    far = Site(tmp_path / "far")
    far.certify("node-1", rounds=1)
    with HeadsLog(layout.heads_directory(far.state)) as log:  # as every host of a node begins one
        log.begin(key=far.coordinator, now=START)
    old = far.key("node-1").key_id
    found = listed(run, far, "keys", "rotate", "node-1")
    assert (found["old"], found["new"] != old) == (old, True)
    assert f"revoke {old} --node node-1" in found["at_the_coordinator"]
    assert not layout.key_list(far.state).exists()
    assert listed(run, site, *found["at_the_coordinator"].split()[2:])["number"] == 2
    far.keys.clear()
    far.certify("node-1", rounds=1)
    assert verify(collect(far.state)).certificates == 4
    code, out, _ = run("keys", "rotate", "node-1", "--state", far.state)
    assert (code, "on the coordinator's host" in out.replace("\n", " ")) == (0, True)


def test_a_node_that_is_not_there_is_not_made(run: Run, site: Site) -> None:
    """A name misspelled is told and leaves nothing behind."""
    code, _, complaint = run("keys", "rotate", "nod-1", "--state", site.state)
    assert (code, "no node nod-1" in complaint) == (2, True)
    assert not layout.node_directory(site.state, "nod-1").exists()


def test_keys_are_shown_while_the_coordinators_is_replaced(
    run: Run, site: Site, tmp_path: Path
) -> None:
    """E3: until the next start nothing is signed, and a copy has both keys after it."""
    listed(run, site, "keys", "list")
    layout.coordinator_key(site.state).unlink()
    assert listed(run, site, "keys", "list")["number"] == 1
    mine = site.key("node-1").key_id
    asked = ("keys", "revoke", mine, "--reason", "x", "--now", "--state", site.state)
    code, _, complaint = run(*asked)
    assert (code, "start the coordinator once" in complaint) == (2, True)
    assert site.coordinator.key_id  # the next start
    assert listed(run, site, "keys", "list")["number"] == 2
    export(collect(site.state), tmp_path / "copy")
    assert verify(collect(tmp_path / "copy")).ok
    assert len(list((tmp_path / "copy/keys/coordinator").iterdir())) == 2


def test_a_list_is_countersigned_at_once(run: Run, site: Site) -> None:
    """E3: an older list put back is a defect, and none is signed on top of it."""
    listed(run, site, "keys", "list")
    old = layout.key_list(site.state).read_bytes()
    listed(run, site, "keys", "revoke", site.key("node-1").key_id, "--reason", "x", "--now")
    assert verify(collect(site.state)).ok
    layout.key_list(site.state).write_bytes(old)
    assert [one.code for one in verify(collect(site.state)).defects] == ["old-key-list"]
    code, _, complaint = run("keys", "list", "--state", site.state)
    assert (code, "list 2 was countersigned already" in complaint) == (1, True)


def test_what_must_not_be_done_is_refused(run: Run, site: Site, tmp_path: Path) -> None:
    """A running node would sign on with the old key; the coordinator's signs the list itself."""
    lock = OwnerLock(layout.node_directory(site.state, "node-1") / "journal.lock")
    lock.acquire(owner="the node's service")
    code, _, complaint = run("keys", "rotate", "node-1", "--state", site.state)
    lock.release()
    assert (code, "the node's service" in complaint) == (2, True)
    mine = site.coordinator.key_id
    code, _, complaint = run("keys", "revoke", mine, "--reason", "x", "--state", site.state)
    assert (code, "coordinator's key" in complaint) == (2, True)
    bare = Site(tmp_path / "bare")
    bare.certify("node-1", rounds=1)
    code, _, complaint = run("keys", "list", "--state", bare.state)
    assert (code, "no coordinator has worked" in complaint) == (2, True)
    layout.key_list(site.state).write_bytes(b"{}")
    code, _, complaint = run("keys", "list", "--state", site.state)
    assert (code, "keep the file" in complaint) == (1, True)
