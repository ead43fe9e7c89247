"""A release is changed, and changed back, while a tenant runs: its settings, then its version."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from fleet.core.profiles import Profile
from fleet.node.journal.schema import SCHEMA
from tests.e2e import workloads
from tests.e2e.polling import eventually
from tests.e2e_chart.changes import FIT, replace_worker, revision, rolling, runs_one, status, tenant
from tests.e2e_chart.installation import HEAD, PLUGIN, RELEASE, WORKER, Installation
from tests.e2e_chart.site import CHART, REPOSITORY
from tests.e2e_chart.site import revision as commit
from tests.e2e_chart.tenants import AWAY_S, heir
from tests.e2e_chart.tenants import tenant as secretive

pytestmark = pytest.mark.timeout(1200)


def profiles(installation: Installation) -> set[str]:
    """Profiles that the devices are published with."""
    return {
        one["attributes"]["sanitizationProfile"]["string"]
        for name, one in installation.published().items()
        if name.startswith("gpu-")
    }


def serves(installation: Installation, profile: Profile) -> None:
    """The node serves by this profile, and the fleet is fit."""
    eventually(
        f"the node serves as {profile}",
        lambda: profiles(installation) == {profile} and FIT in status(installation),
        timeout_s=AWAY_S,
        period_s=1.0,
        tell=lambda: f"{profiles(installation)} {status(installation)}",
    )


def test_a_setting_is_changed_and_changed_back(installation: Installation) -> None:
    """docs/operations.md: `helm upgrade` with another profile, then the worker's pod: the next
    tenant is served by it; `helm rollback` and the worker's pod: as before. A tenant runs on."""
    last = revision(installation)
    installation.extra = {"settings": {"profile": str(Profile.FAST)}}
    with tenant(installation, "gpu-1"):
        try:
            with rolling(installation, PLUGIN):
                installation.upgrade()
            replace_worker(installation)
            serves(installation, Profile.FAST)
            runs_one(installation, "gpu-2")
        finally:
            installation.extra = {}
            with rolling(installation, PLUGIN):
                installation.helm("rollback", RELEASE, str(last))
        replace_worker(installation)
        serves(installation, Profile.STRICT)
        runs_one(installation, "gpu-2")
    assert revision(installation) == last + 2


# --- two versions ---


@dataclass(frozen=True, slots=True)
class Older:
    """A release that was installed in an older version."""

    release: Installation
    form: int
    """Version of the form its journal had then."""


def form(installation: Installation) -> int:
    """Version of the form that the node's journal has."""
    place = f"file:{installation.plugin.directory / 'journal.db'}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as journal:
        (found,) = journal.execute("PRAGMA user_version").fetchone()
    return int(found)


@pytest.fixture(scope="module")
def older(release: Installation) -> Iterator[Older]:
    """An older version, chart and image, on a cluster that remembers nothing of this one. It is
    this version again once a test has upgraded it."""
    before = release.site.before
    if before is None:
        pytest.skip("FLEET_E2E_ARCHIVE_BEFORE names no image of an older commit")
    chart = release.scratch / "before"
    chart.mkdir(exist_ok=True)
    unpack = f"git -C {REPOSITORY} archive {commit(before)} {CHART} | tar -x -C {chart}"
    release.site.run("sh", "-c", unpack)
    release.site.bring(before, "before")
    release.serve()
    release.uninstall()
    release.forget()
    release.volume()
    release.chart, release.tag = chart / CHART, "before"
    release.install()
    release.serve()
    yield Older(release, form(release))
    release.clean()


def upgraded(release: Installation) -> None:
    """To the version under test, in the order of docs/operations.md: plugins and head, then the
    worker; between the two a tenant comes and goes."""
    release.chart, release.tag = REPOSITORY / CHART, "now"
    with rolling(release, PLUGIN, HEAD):
        release.upgrade()
    runs_one(release, "gpu-2")
    replace_worker(release)
    fit(release)


def fit(release: Installation) -> None:
    """The fleet is fit, and everybody Ready."""
    eventually(
        "the fleet is fit",
        lambda: FIT in status(release) and not release.unready(),
        timeout_s=AWAY_S,
        period_s=1.0,
        tell=lambda: "\n".join((status(release), release.told_parts())),
    )


def test_an_older_version_is_upgraded_under_a_tenant(older: Older) -> None:
    """docs/operations.md: installed in an older version and upgraded to this one: the tenant runs
    on, the journal has the form of this version, all evidence is whole, and the next tenant finds
    zeros."""
    release, secret = older.release, secrets.token_hex(16)
    pod, memory = secretive(release, secret, release.uuid("gpu-1"))
    before = workloads.container(release.pod(pod))
    upgraded(release)
    assert workloads.container(release.pod(pod))["containerID"] == before["containerID"]
    assert secret.encode() in memory.read_bytes()
    assert form(release) == SCHEMA.version
    release.delete(pod)
    heir(release, secret, release.uuid("gpu-1"))
    assert "is whole" in release.fleet("evidence", "verify")


def test_the_way_back(older: Older) -> None:
    """docs/operations.md: `helm rollback` and the worker's pod right after: the older version takes
    the node over; where the journal has a newer form it refuses it, named and unchanged. A tenant
    runs on either way, and the way forward is the same again."""
    release, secret = older.release, secrets.token_hex(16)
    pod, memory = secretive(release, secret, release.uuid("gpu-1"))
    before = workloads.container(release.pod(pod))
    last = revision(release) - 1
    with rolling(release, PLUGIN, HEAD, WORKER):
        release.helm("rollback", RELEASE, str(last))
        release.delete_part(WORKER)
    if older.form == SCHEMA.version:
        fit(release)
    else:
        eventually(
            "the journal is refused",
            lambda: f"we know up to {older.form}" in release.log(WORKER, "standby"),
            timeout_s=AWAY_S,
            tell=release.told_parts,
        )
    assert form(release) == SCHEMA.version
    upgraded(release)
    assert workloads.container(release.pod(pod))["containerID"] == before["containerID"]
    assert secret.encode() in memory.read_bytes()
    release.delete(pod)
    heir(release, secret, release.uuid("gpu-1"))
