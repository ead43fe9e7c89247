"""Stories of claims on a whole cluster: a real one where the environment names it, else a stand-in.

make e2e     # with FLEET_E2E_KUBECONFIG, FLEET_E2E_KUBELET_ROOT, FLEET_E2E_CDI_DIR set
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import place as places
from tests.e2e.plugin_process import DEVICES, PluginProcess
from tests.e2e.polling import eventually
from tests.stories.stage import CoordinatorProcess, Stage
from tests.stories.worlds import RealWorld, StandInWorld, World

HERE = Path(__file__).parent
START_S = 60.0
FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Where figures are kept until they are shown."""
    config.stash[FIGURES] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Told on a real cluster, the stories are part of that suite."""
    for item in items:
        if places.KUBECONFIG and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured."""
    figures = terminalreporter.config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("measured in the stories")
    for line in figures:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The cluster."""
    found: World = (
        RealWorld() if places.KUBECONFIG else StandInWorld(tmp_path_factory.mktemp("world"))
    )
    yield found
    found.close()


@pytest.fixture(scope="module")
def home(
    world: World, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Plugin and coordinator, for the module's `PROFILE`, with a namespace of their own."""
    state = tmp_path_factory.mktemp("fleet") / "state"
    plugin = PluginProcess(world.place, state, world.node, profile=request.module.PROFILE)
    coordinator = CoordinatorProcess(world.place, state)
    namespace = f"fleet-stories-{secrets.token_hex(3)}"
    plugin.start()
    world.open_namespace(namespace)
    eventually("the plugin serves", plugin.serves, timeout_s=START_S, tell=plugin.told)
    if request.module.COORDINATED:
        coordinator.start()
    yield Stage(
        place=world.place,
        cluster=world.cluster,
        plugin=plugin,
        namespace=namespace,
        figures=request.config.stash[FIGURES],
        world=world,
        coordinator=coordinator,
    )
    world.end_namespace(namespace)
    if request.module.COORDINATED:
        assert coordinator.stop() == 0, coordinator.told()
    assert plugin.stop() == 0, plugin.told()


@pytest.fixture
def stage(home: Stage) -> Iterator[Stage]:
    """A plugin that serves, with every device clean; after the test nothing of it may be left."""
    eventually(
        "all devices are clean and published",
        lambda: not home.left() and len(home.published()) == DEVICES,
        timeout_s=START_S,
        tell=lambda: "\n".join((*home.left(), home.plugin.told())),
    )
    yield home
    home.mend()
    home.clean()
