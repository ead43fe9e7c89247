"""Rules of what the plugin tells probes and scrapers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.core.messages import Right
from node_plugin.ports import Standing
from node_plugin.vitals import (
    SILENCE_MAX_S,
    UNCONFIRMED_MAX_S,
    UNPUBLISHED_MAX_S,
    VIEW_AGE_MAX_S,
    Vitals,
)
from tests.fleet.metrics import views
from tests.node_plugin.standins import dra_of, plugin, started, to_prepare, told, until

NOW = 1_000_000.0


WELL = Standing(owner="node actor", owner_reachable=True, published_at=NOW - 5)


@dataclass
class Around:
    """A node that stands as a test says."""

    found: Standing = WELL

    def standing(self) -> Standing:
        return self.found


def test_health_is_about_this_process_readiness_about_its_use(place: Path) -> None:
    """B82: a plugin kubelet refused is healthy (a restart cures nothing) and not ready, and says
    why; an owner that does not answer is named too."""

    async def story() -> None:
        around = Around()
        async with started(plugin(place)) as server:
            vitals = Vitals(server, around, node="n1", now=lambda: NOW)
            await until(lambda: server.silent_s < SILENCE_MAX_S, "the loop's first beat")
            assert vitals.healthz().status == 200
            assert "not registered" in vitals.readyz().text
            await told(server.paths.registration, registered=False, error="wrong version")
            assert "refused the registration: wrong version" in vitals.readyz().text
            assert vitals.readyz().status == 503
            assert vitals.healthz().status == 200
            await told(server.paths.registration, registered=True)
            assert (vitals.readyz().status, vitals.readyz().text) == (200, "ok\n")
            around.found = Standing()
            assert "no owner" in vitals.readyz().text
            assert vitals.healthz().status == 200

    asyncio.run(story())


def test_a_plugin_that_does_not_run_is_ill(place: Path) -> None:
    """Before its start, after its stop, and with a socket taken away, health fails."""

    async def story() -> None:
        server = plugin(place)
        vitals = Vitals(server, Around(), node="n1")
        assert vitals.healthz().status == 503
        async with started(server):
            await until(lambda: vitals.healthz().status == 200, "health")
            server.paths.dra.unlink()
            assert "a socket is missing" in vitals.healthz().text
        assert vitals.healthz().status == 503

    asyncio.run(story())


def test_metrics_tell_what_happened(place: Path) -> None:
    """B83: counts, registration, owner and the age of the slices are those of this moment."""

    async def story() -> str:
        async with started(plugin(place)) as server, dra_of(server.paths.dra) as stub:
            await stub.NodePrepareResources(to_prepare("a", "b"))
            await told(server.paths.registration, registered=True)
            return Vitals(server, Around(), node="n1", now=lambda: NOW).metrics().text

    page = asyncio.run(story())
    for line in (
        'fleet_plugin_claims_total{verb="prepare",result="done"} 2.0',
        'fleet_plugin_claim_seconds_count{verb="prepare",result="done"} 2.0',
        f'fleet_plugin_started_timestamp_seconds{{node="n1"}} {NOW!r}',
        "fleet_plugin_claims_in_work 0.0",
        "fleet_plugin_registered 1.0",
        'fleet_plugin_registrations_total{result="accepted"} 1.0',
        "fleet_plugin_owner_reachable 1.0",
        'fleet_plugin_journal_owner{owner="node actor"} 1.0',
        "fleet_plugin_slices_age_seconds 5.0",
        "fleet_plugin_health_streams 0.0",
    ):
        assert line in page.splitlines()


def test_a_node_that_can_prepare_nothing_is_not_ready(place: Path) -> None:
    """Every reason is named with its remedy; a restart cures none, so health does not fail."""

    async def story() -> None:
        around = Around(replace(WELL, degraded=("a worker lingers",)))
        async with started(plugin(place)) as server:
            vitals = Vitals(server, around, node="n1", now=lambda: NOW)
            await until(lambda: vitals.healthz().status == 200, "health")
            await told(server.paths.registration, registered=True)
            assert vitals.readyz().status == 200, "degraded is no reason"
            assert "fleet_plugin_node_blocked 0.0" in vitals.metrics().text.splitlines()
            around.found = replace(WELL, blocked=("no cgroups — mount them", "disk full"))
            assert vitals.readyz().status == 503
            for why in around.found.blocked:
                assert f"nothing can be prepared on this node: {why}\n" in vitals.readyz().text
            assert "fleet_plugin_node_blocked 1.0" in vitals.metrics().text.splitlines()
            assert vitals.healthz().status == 200

    asyncio.run(story())


def test_readiness_says_in_its_own_words_what_is_wrong(place: Path) -> None:
    """An operator without a shell on the node reads the cause itself, not where else to look."""

    async def story() -> None:
        around = Around(replace(WELL, unviewed="it speaks a newer version — update the plugin"))
        async with started(plugin(place)) as server:
            vitals = Vitals(server, around, node="n1", now=lambda: NOW)
            await until(lambda: vitals.healthz().status == 200, "health")
            await told(server.paths.registration, registered=True)
            assert "newer version — update the plugin" in vitals.readyz().text
            late = NOW - UNCONFIRMED_MAX_S - 1
            around.found = replace(WELL, published_at=late, troubles=("403: no patch — grant it",))
            assert "since 61 s: 403: no patch — grant it\n" in vitals.readyz().text

    asyncio.run(story())


def test_every_lack_has_a_reason_as_kubernetes_spells_them(place: Path) -> None:
    """Events are searched by their reason: one of a fixed list, whatever the text says."""

    async def story() -> None:
        bad = Standing(
            owner_reachable=True,
            unviewed="?",
            blocked=("disk full",),
            degraded=("disk full", "a worker lingers"),
            troubles=("403",),
            withdrawn={"gpu-0": "another driver offers it"},
        )
        async with started(plugin(place)) as server:
            vitals = Vitals(server, Around(bad), node="n1", now=lambda: NOW)
            await until(lambda: vitals.healthz().status == 200, "health")
            assert [one.reason for one in vitals.lacks()] == [
                "NotRegistered",
                "NodeSilent",
                "NodeBlocked",
                "NodeDegraded",
                "SlicesIncomplete",
                "DeviceWithheld",
            ]
            assert "gpu-0 is not in the ResourceSlices: another" in vitals.lacks()[-1].text

    asyncio.run(story())


def test_f77_a_right_that_is_missing_is_named(place: Path) -> None:
    """F77: verb, resource and account; one that the plugin can do without keeps it Ready."""
    account = "system:serviceaccount:fleetscrub:fleet-node-plugin"
    needed = Right(verb="get", resource="resourceclaims", group="resource.k8s.io", account=account)
    lesser = Right(verb="patch", resource="resourceclaims/binding", account=account)

    async def story() -> None:
        around = Around(replace(WELL, missing=(lesser,)))
        async with started(plugin(place)) as server:
            vitals = Vitals(server, around, node="n1", now=lambda: NOW)
            await until(lambda: vitals.healthz().status == 200, "health")
            await told(server.paths.registration, registered=True)
            page = vitals.readyz()
            assert page.status == 200
            said = f"a right is missing that need not be: {lesser}"
            assert page.text == f"ok\n{said}\n"
            around.found = replace(WELL, missing=(needed, lesser))
            page = vitals.readyz()
            assert page.status == 503
            assert page.text == f"a right is missing: {needed}\n{said}\n"
            assert str(needed) == f"get resourceclaims.resource.k8s.io (account {account})"

    asyncio.run(story())


def test_slices_that_nobody_keeps_make_it_unready(place: Path) -> None:
    """B83: never published since the start, or not confirmed of late; the other instance of an
    update keeps them meanwhile, and its age is its own to tell."""

    async def story() -> None:
        clock = [NOW]
        never = Standing(owner="node actor", owner_reachable=True)
        around = Around(never)
        async with started(plugin(place)) as server:
            vitals = Vitals(server, around, node="n1", now=lambda: clock[0])
            await until(lambda: vitals.healthz().status == 200, "health")
            await told(server.paths.registration, registered=True)
            clock[0] = NOW + UNPUBLISHED_MAX_S
            assert vitals.readyz().status == 200
            clock[0] += 1
            assert "never published since 31 s" in vitals.readyz().text
            around.found = replace(never, elsewhere="pid 7")
            assert vitals.readyz().status == 200
            assert "slices_age" not in vitals.metrics().text
            around.found = replace(never, published_at=NOW)
            clock[0] = NOW + UNCONFIRMED_MAX_S
            assert vitals.readyz().status == 200
            clock[0] += 1
            assert "not confirmed since 61 s" in vitals.readyz().text

    asyncio.run(story())


def test_what_was_never_published_ages_from_the_start(place: Path) -> None:
    """B83: an alert on the age of the slices must fire for a plugin that never published any."""
    clock = [NOW]
    vitals = Vitals(plugin(place), Around(Standing()), node="n1", now=lambda: clock[0])
    clock[0] += 90
    assert "fleet_plugin_slices_age_seconds 90.0" in vitals.metrics().text.splitlines()


def test_metrics_do_not_make_things_up(place: Path) -> None:
    """B83: what was never published has no time of it, and an unknown owner no series."""
    server = plugin(place)
    page = Vitals(server, Around(Standing()), node="n1").metrics().text
    assert "slices_confirmed" not in page
    assert "journal_owner" not in page
    assert "fleet_plugin_owner_reachable 0.0" in page


def test_the_node_s_figures_are_told_as_long_as_they_are_true(place: Path) -> None:
    """B83: from the owner's last view; of an old one only when it was taken, so that an alert on
    its age fires and nothing stale is read as now."""
    clock = [NOW]
    view = views.node(at=NOW)
    vitals = Vitals(
        plugin(place), Around(replace(WELL, view=view)), node="n1", now=lambda: clock[0]
    )
    quarantined = 'fleet_units{node="n1",state="QUARANTINED"} 1.0'
    taken = f'fleet_node_view_timestamp_seconds{{node="n1"}} {NOW!r}'
    clock[0] = NOW + VIEW_AGE_MAX_S
    assert {quarantined, taken} <= set(vitals.metrics().text.splitlines())
    clock[0] += 1
    page = vitals.metrics().text.splitlines()
    assert taken in page
    assert quarantined not in page


def test_there_is_a_page_for_each_question(place: Path) -> None:
    """Probes and scrapers find their pages at the usual paths."""
    pages = Vitals(plugin(place), Around(), node="n1").pages()
    assert set(pages) == {"/healthz", "/readyz", "/metrics"}
    assert pages["/metrics"]().content_type.startswith("text/plain; version=0.0.4")
