"""The suite against a real cluster: not collected at all unless one is named.

make e2e        # with FLEET_E2E_KUBECONFIG, FLEET_E2E_KUBELET_ROOT, FLEET_E2E_CDI_DIR set
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from fleet.kube import client
from fleet.kube.base import CLASSES, NODES, Cluster, Name, Selection, name_of
from tests.deploy import manifests
from tests.e2e import place as places
from tests.e2e import workloads
from tests.e2e.ground import Ground
from tests.e2e.place import Component, Place
from tests.e2e.plugin_process import DEVICES, DRIVER, PluginProcess
from tests.e2e.polling import eventually

collect_ignore_glob = [] if places.KUBECONFIG else ["test_*.py"]
START_S = 60.0
FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Where figures are kept until they are shown."""
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    figures = terminalreporter.config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("measured on the real cluster")
    for line in figures:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> list[str]:
    """Lines to be shown at the end of the run."""
    return request.config.stash[FIGURES]


@pytest.fixture(scope="session")
def place() -> Place:
    """The cluster of the environment."""
    return places.named()


@pytest.fixture(scope="session")
def api(place: Place) -> Cluster:
    """Its API server."""
    found = client.connect(str(place.kubeconfig), qps=1000.0, timeout_s=10.0)
    found.require()
    return found


@pytest.fixture(scope="session")
def node(place: Place, api: Cluster) -> str:
    """The Node of this machine."""
    names = [name_of(one).name for one in api.list(NODES).items]
    assert place.node in names or len(names) == 1, "name this machine's Node: FLEET_E2E_NODE"
    return place.node or names[0]


@pytest.fixture(scope="session")
def kubelet(place: Place) -> Iterator[Component]:
    """The node's kubelet; it runs when the session ends."""
    found = places.kubelet(place.kubelet_root)
    yield found
    found.start()


@pytest.fixture(scope="session")
def plugin(
    place: Place, node: str, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PluginProcess]:
    """The plugin under test, with four simulated devices; stopped and looked after at the end."""
    state = tmp_path_factory.mktemp("fleet") / "state"
    found = PluginProcess(place, state, node, admin_namespaces=(namespace,))
    found.start()
    yield found
    if found.runs:
        assert found.stop() == 0, found.told()
    registered = list((place.kubelet_root / "plugins_registry").glob(f"{DRIVER}*"))
    assert registered == [], "a socket was left behind"


@pytest.fixture(scope="session")
def namespace(api: Cluster) -> Iterator[str]:
    """A namespace of the session's own, and the device classes as they are shipped."""
    name = f"fleet-e2e-{secrets.token_hex(3)}"
    api.create(workloads.NAMESPACES, workloads.namespace(name))
    classes = manifests.objects("classes.yaml")
    for one in classes:
        api.apply(CLASSES, one, manager="fleet-e2e")
    eventually(
        "the namespace has its service account", lambda: _has_account(api, name), timeout_s=30
    )
    yield name
    for one in classes:
        api.delete(CLASSES, name_of(one))
    api.delete(workloads.NAMESPACES, Name(name))


def _has_account(api: Cluster, namespace: str) -> bool:
    listed = api.list(workloads.ACCOUNTS, Selection(namespace=namespace))
    return any(name_of(one).name == "default" for one in listed.items)


@pytest.fixture
def ground(
    api: Cluster,
    kubelet: Component,
    plugin: PluginProcess,
    namespace: str,
    figures: list[str],
) -> Iterator[Ground]:
    """A plugin that serves, with every device clean; after the test nothing of it may be left."""
    found = Ground(
        place=plugin.place,
        cluster=api,
        kubelet=kubelet,
        plugin=plugin,
        namespace=namespace,
        figures=figures,
    )
    kubelet.start()
    if not plugin.runs:
        plugin.start()
    eventually(
        "the plugin serves and all devices are clean",
        lambda: plugin.serves() and not found.left() and len(found.published()) == DEVICES,
        timeout_s=START_S,
        tell=lambda: "\n".join((*found.left(), plugin.told())),
    )
    yield found
    for instance in found.instances:
        if instance.runs:
            instance.stop()
    kubelet.start()
    if not plugin.runs:
        plugin.start()
    found.clean()
