"""`fleet evidence keys`: keys are listed under the coordinator's signature, replaced, revoked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.evidence import layout
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from fleet.journal.lock import OwnerLock
from tests.fleet.cli.test_evidence import Run, run_fixture
from tests.fleet.evidence.samples import Site

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
    found = listed(run, site, "keys", "revoke", old[:8], "--reason", "the disk was sold")
    (row,) = [row for row in found["keys"] if row["key_id"] == old]
    assert (row["reason"], row["revoked_at"] is None) == ("the disk was sold", False)
    assert verify(collect(site.state)).ok


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
