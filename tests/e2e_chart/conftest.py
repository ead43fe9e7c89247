"""An operator's night with the chart: not collected at all unless a site is named.

make e2e-chart      # with the variables of tests/e2e/place.py and tests/e2e_chart/site.py set

FLEET_E2E_KEEP names a directory: the release of the last run over the same directory is used as it
is, which saves the whole beginning to whoever writes one more test.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.kube import client
from fleet.kube.base import NODES, Cluster, Name, Selection, name_of
from tests.e2e import workloads
from tests.e2e.polling import eventually
from tests.e2e_chart import site as sites
from tests.e2e_chart.installation import Installation, InstalledNode
from tests.e2e_chart.site import Site

HERE = Path(__file__).parent
FIRST = ("test_documents", "test_install")
LAST = ("test_rights", "test_upgrade", "test_uninstall", "test_scale")
"""Modules before and after all others: what comes last takes the release away or replaces it."""
FIGURES = pytest.StashKey[list[str]]()
SCENARIOS = pytest.StashKey[dict[str, str]]()
NAMED = bool(os.environ.get("FLEET_E2E_CONTAINERD"))
KEEP = os.environ.get("FLEET_E2E_KEEP", "")

collect_ignore_glob = [] if NAMED else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Where figures and names of scenarios are kept until they are shown."""
    config.stash[FIGURES], config.stash[SCENARIOS] = [], {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of the night."""

    def place(item: pytest.Item) -> int:
        name = item.path.stem
        order = (*FIRST, "", *LAST)
        return order.index(name if name in order else "")

    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        item.add_marker(pytest.mark.e2e)
        lines = str(getattr(getattr(item, "obj", None), "__doc__", "")).split("\n\n")[0]
        config.stash[SCENARIOS][item.nodeid] = " ".join(lines.split())
    items[:] = [item for item in items if item not in ours] + sorted(ours, key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The night as a table: how each scenario ended, how long it took, what was measured."""
    config = terminalreporter.config
    scenarios = config.stash.get(SCENARIOS, {})
    spent: dict[str, float] = {}
    ended: dict[str, str] = {}
    for category, reports in terminalreporter.stats.items():
        for one in reports:
            if getattr(one, "nodeid", "") in scenarios and hasattr(one, "duration"):
                spent[one.nodeid] = spent.get(one.nodeid, 0.0) + one.duration
                if category:
                    ended[one.nodeid] = category
    if ended:
        terminalreporter.section("the night")
    for node, text in scenarios.items():
        if node in ended:
            name = node.rpartition("::")[2]
            terminalreporter.write_line(f"{ended[node]:8} {spent[node]:6.1f} s  {name}: {text}")
    for line in config.stash.get(FIGURES, []):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines to be shown at the end of the run."""
    return request.config.stash[FIGURES]


@pytest.fixture(scope="session")
def site() -> Site:
    """The machine, with a cluster that has nothing in it but our image."""
    found = sites.named()
    if not KEEP or not Path(KEEP).exists():
        found.make_new()
        found.bring(found.archive, "now")
    return found


@pytest.fixture(scope="session")
def api(site: Site) -> Cluster:
    """The API server, asked as the administrator."""
    found = client.connect(str(site.place.kubeconfig), qps=1000.0, timeout_s=10.0)
    found.require()
    return found


@pytest.fixture(scope="session")
def tenants(api: Cluster) -> str:
    """A namespace of tenants."""
    name = f"tenants-{secrets.token_hex(3)}"
    api.create(workloads.NAMESPACES, workloads.namespace(name))
    eventually("it has its service account", lambda: _has_account(api, name), timeout_s=30)
    return name


def _has_account(api: Cluster, namespace: str) -> bool:
    listed = api.list(workloads.ACCOUNTS, Selection(namespace=namespace))
    return any(name_of(one).name == "default" for one in listed.items)


@pytest.fixture(scope="session")
def release(
    site: Site,
    api: Cluster,
    tenants: str,
    figures: list[str],
) -> Iterator[Installation]:
    """The chart, installed by Helm as docs/install.md has it, serving."""
    scratch = Path(KEEP or tempfile.mkdtemp(prefix="fleet-night-", dir="/var/tmp"))
    kept = scratch.exists() and (scratch / "values.json").exists()
    scratch.mkdir(parents=True, exist_ok=True)
    (node,) = (name_of(one).name for one in api.list(NODES).items)
    found = Installation(
        place=site.place,
        cluster=api,
        plugin=InstalledNode(site.place, scratch / "state", node),
        namespace=tenants,
        figures=figures,
        site=site,
        scratch=scratch,
        kubelet=site.kubelet(),
        scheduler=site.scheduler(),
    )
    if not kept:
        found.volume()
        began = time.monotonic()
        found.install()
        said = time.monotonic() - began
        found.serve()
        figures.append(
            f"helm install: {said:.1f} s; every pod ready, every device clean after"
            f" {time.monotonic() - began:.1f} s"
        )
    yield found
    found.kubelet.start()
    found.scheduler.start()
    api.delete(workloads.NAMESPACES, Name(tenants))
    if not KEEP and scratch.exists():  # a module that installs anew has removed it
        shutil.rmtree(scratch)


@pytest.fixture
def installation(release: Installation) -> Iterator[Installation]:
    """A release that serves, with every device clean; after the test nothing of it may be left."""
    release.serve()
    yield release
    release.kubelet.start()
    release.scheduler.start()
    release.clean()
