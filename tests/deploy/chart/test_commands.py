"""Every command line of the chart is one that its program takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.identity import HOST_LABEL
from fleet.evidence import layout
from tests.deploy.chart import commands, rendering
from tests.deploy.chart.rendering import VARIANTS, Values, containers, pods

pytestmark = pytest.mark.chart
NODE = commands.STANDING_IN["NODE_NAME"]


def options(values: Values) -> dict[str, dict[str, Any]]:
    """What each container was asked, by its name."""
    return {
        container["name"]: commands.parsed(commands.line(container))
        for _, template in pods(rendering.objects(values))
        for container in containers(template)
        if container["name"] != "admission"
    }


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_command_line_is_taken(values: Values) -> None:
    """Each container's program exists and knows every option, also what is said by variables."""
    found = options(values)
    simulated = values.get("simulate", {}).get("enabled", False)
    assert bool(found["node-plugin"]["simulate"]) == simulated
    assert found["node-plugin"]["no_standby"]


def test_a_wrong_option_is_not_taken() -> None:
    """The check itself, for each parser."""
    with pytest.raises(AssertionError):
        commands.parsed(["fleet-node-plugin", "--simulat=3", "--kubconfig=x"])
    for words in (["fleet", "scrub", "--addres=x"], ["ray", "start", "--blok"]):
        with pytest.raises(Exception, match=r"[Nn]o such option"):
            commands.parsed(words)


def test_the_parts_find_each_other() -> None:
    """The plan the plugin writes is the one the owners read; one host label; one head."""
    found = options({})
    plugin, worker, head = found["node-plugin"], found["ray-worker"], found["ray-head"]
    plan = layout.node_directory(plugin["state"], NODE) / "plan.json"
    assert found["standby"]["plan"] == found["bridge"]["plan"] == plan
    assert worker["labels"] == f"{HOST_LABEL}={NODE}"
    where = "fleetscrub-ray-head.fleetscrub.svc"
    assert worker["address"] == found["bridge"]["address"] == f"{where}:{head['port']}"
    assert found["campaign"]["address"] == f"http://{where}:{head['dashboard_port']}"
    assert found["uninstall"]["address"] == worker["address"]
    assert found["uninstall"]["followed"], "plugins run while the hook does"
    assert found["uninstall"]["policy"] == found["campaign"]["policy"] == plugin["policy"]
    assert head["head"]
    assert head["block"]


def test_ray_ports_are_apart() -> None:
    """Ray refuses to start where two of its ports are one, or lie among the workers' ports."""
    for name in ("ray-head", "ray-worker", "raylet"):
        asked = options({})[name]
        ports = [
            int(value)
            for key, value in asked.items()
            if key.endswith("_port") and value and not key.startswith(("min", "max"))
        ]
        assert len(ports) == len(set(ports)), name
        low, high = asked["min_worker_port"], asked["max_worker_port"]
        assert not any(low <= port <= high for port in ports), name
        assert low > 10001, "Ray's client server listens there"


def test_the_policy_file_is_the_one_mounted() -> None:
    """A path that is named on a command line is inside a mount of that container."""
    for name, template in pods(rendering.objects()):
        for container in containers(template):
            paths = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
            for word in commands.line(container):
                text = word.rpartition("=")[2]
                if text.startswith("/"):
                    assert any(Path(text).is_relative_to(path) for path in paths), f"{name}: {word}"
