"""Plans: as asked for or as recorded, and once kubelet hands devices out nobody forgets it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.profiles import Profile
from fleet.core.settings import MIB, KubernetesSettings, Settings, WipePolicy
from fleet.wiring import adapters
from fleet.wiring import plans as wiring_plans
from fleet.wiring.adapters import NodePlan
from fleet.wiring.plans import PLAN_FILE, CoordinatorPlan, FleetPlan, plan_fleet

SIZE = 2 * MIB


def served(state: Path, name: str = "worker-1", **kubernetes: str) -> NodePlan:
    """The plan of the one node of a fleet that kubelet serves."""
    places = {
        "cdi_directory": str(state / "cdi"),
        "kubelet_root": str(state / "kubelet"),
        "cgroup_root": str(state / "cgroup"),
        **kubernetes,
    }
    settings = Settings(kubernetes=KubernetesSettings.model_validate(places))
    plan = plan_fleet(state, simulate="1x1", memory_bytes=SIZE, settings=settings, serve=name)
    (node,) = plan.nodes
    return node


def test_without_a_record_and_without_simulation_there_is_no_fleet(tmp_path: Path) -> None:
    """Promise 10: an absent driver is never an empty fleet, and nothing is written down."""
    with pytest.raises(errors.DriverAbsent):
        plan_fleet(tmp_path / "new", serve="worker-1")
    assert not (tmp_path / "new").exists()


def test_the_served_node_has_its_name_and_its_places(tmp_path: Path) -> None:
    """One name at the API, in the journal and in the plan; where pods and specs are is kept."""
    node = served(tmp_path)
    assert (node.node, node.kubernetes) == ("worker-1", True)
    assert node.settings.kubernetes.cgroup_root == str(tmp_path / "cgroup")
    assert NodePlan.model_validate_json(node.model_dump_json()) == node


def test_a_later_plan_without_serve_still_looks_for_pods(tmp_path: Path) -> None:
    """Promise 4: a command, an actor or a standby started otherwise sees the same tenants."""
    node = served(tmp_path)
    for plan in (
        plan_fleet(tmp_path),
        plan_fleet(tmp_path, simulate="1x1"),
        plan_fleet(tmp_path, settings=Settings(kubernetes=KubernetesSettings(cgroup_root="/x"))),
    ):
        (later,) = plan.nodes
        assert later == node
    (other,) = plan_fleet(tmp_path, profile="fast").nodes
    assert (other.kubernetes, other.settings.kubernetes) == (True, node.settings.kubernetes)


def test_serving_again_with_other_places_is_recorded(tmp_path: Path) -> None:
    """The plugin decides where things are; its last word counts for all."""
    served(tmp_path)
    served(tmp_path, cgroup_root="/elsewhere")
    (later,) = plan_fleet(tmp_path).nodes
    assert later.settings.kubernetes.cgroup_root == "/elsewhere"


def test_another_nodes_name_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Two Nodes over one state directory would publish the same hardware twice."""
    served(tmp_path)
    before = (tmp_path / PLAN_FILE).read_text()
    with pytest.raises(errors.InputInvalid, match="state of node worker-1, not of worker-2"):
        served(tmp_path, "worker-2")
    assert (tmp_path / PLAN_FILE).read_text() == before


def test_a_plugin_serves_one_node_only(tmp_path: Path) -> None:
    """A fleet of several simulated nodes has no one kubelet."""
    plan_fleet(tmp_path, simulate="2x1", memory_bytes=SIZE)
    with pytest.raises(errors.InputInvalid, match="a plugin serves one"):
        plan_fleet(tmp_path, serve="worker-1")
    assert not any(node.kubernetes for node in plan_fleet(tmp_path).nodes)


def test_another_shape_is_refused_also_when_served(tmp_path: Path) -> None:
    """Recorded hardware is not changed by the way."""
    served(tmp_path)
    with pytest.raises(errors.InputInvalid, match="another shape"):
        plan_fleet(tmp_path, simulate="1x2", memory_bytes=SIZE)
    with pytest.raises(errors.InputInvalid, match="another shape"):
        plan_fleet(tmp_path, simulate="1x1", memory_bytes=2 * SIZE, serve="worker-1")


def test_plugin_and_commands_that_start_at_once_agree(tmp_path: Path) -> None:
    """At first use several processes record the fleet together: one shape, one name, no error."""

    def start(number: int) -> FleetPlan:
        name = "worker-1" if number % 2 else ""
        return plan_fleet(tmp_path, simulate="1x1", memory_bytes=SIZE, serve=name)

    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(start, range(16)))
    assert {node.node for plan in plans for node in plan.nodes} <= {"worker-1", "node-01"}
    (later,) = plan_fleet(tmp_path).nodes
    assert (later.node, later.kubernetes) == ("worker-1", True)
    assert [path.name for path in tmp_path.iterdir()] == [PLAN_FILE]


def test_a_first_use_that_comes_second_takes_over_how_the_node_is_served(tmp_path: Path) -> None:
    """What another process has recorded in between is the fleet, with its Node and its places."""
    served(tmp_path)
    path = tmp_path / PLAN_FILE
    found = wiring_plans._write(path, wiring_plans._shape("1x1", SIZE))
    assert (found.name, found.served is not None) == ("worker-1", True)
    with pytest.raises(errors.InputInvalid, match="was just made"):
        wiring_plans._write(path, wiring_plans._shape("1x2", SIZE))
    assert [one.name for one in tmp_path.iterdir()] == [PLAN_FILE]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"nodes": 1, "colour": "red"}', "wrong in it: colour"),
        (b"{", "it is not JSON"),
        (b"\xff\xfe", "it is not text"),
    ],
)
def test_f59_a_broken_record_is_told_in_our_words(tmp_path: Path, content: bytes, why: str) -> None:
    """F59: what is wrong with fleet.json is one line with a remedy, no library's own report."""
    (tmp_path / PLAN_FILE).write_bytes(content)
    with pytest.raises(errors.InputInvalid) as caught:
        wiring_plans.plan_fleet(tmp_path)
    assert caught.value.detail.endswith(why)
    assert "\n" not in caught.value.detail
    assert "put its last good copy back" in caught.value.remedy


def test_a_record_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A torn or newer record is no reason to begin a fleet anew."""
    (tmp_path / PLAN_FILE).write_text('{"nodes": 1, "colour": "red"}')
    with pytest.raises(errors.InputInvalid, match="cannot be read"):
        plan_fleet(tmp_path, simulate="1x1")
    assert "red" in (tmp_path / PLAN_FILE).read_text()


def test_a_journal_once_served_by_kubelet_refuses_a_plan_that_knows_nothing_of_it(
    tmp_path: Path,
) -> None:
    """Promise 4: without pods to look for, a running pod's device would count as free."""
    node = served(tmp_path)
    adapters.open_node(node).close()
    forgetful = node.model_copy(update={"kubernetes": False})
    for _ in range(2):
        with pytest.raises(
            errors.SettingsInvalid, match="this plan knows nothing of it"
        ) as refused:
            adapters.open_node(forgetful)
        assert PLAN_FILE in refused.value.remedy
    (tmp_path / PLAN_FILE).unlink()
    (anew,) = plan_fleet(tmp_path, simulate="1x1", memory_bytes=SIZE).nodes
    assert anew.node == "node-01"
    adapters.open_node(node).close()


def test_a_journal_of_before_may_be_served_from_now_on(tmp_path: Path) -> None:
    """A node that was used without Kubernetes can join a cluster, once and for good."""
    (before,) = plan_fleet(tmp_path, simulate="1x1", memory_bytes=SIZE).nodes
    adapters.open_node(before).close()
    joined = before.model_copy(update={"kubernetes": True, "settings": served(tmp_path).settings})
    adapters.open_node(joined).close()
    with pytest.raises(errors.SettingsInvalid):
        adapters.open_node(before)


def test_a_later_command_wipes_by_the_policy_the_node_is_served_with(tmp_path: Path) -> None:
    """E1: a local scrub that takes the node over for a while demands no less than its plugin."""
    wipe = WipePolicy(coverage_floor=0.995)
    settings = Settings(profile=Profile.FAST, wipe=wipe)
    plan_fleet(tmp_path, simulate="1x1", memory_bytes=SIZE, settings=settings, serve="worker-1")
    (node,) = plan_fleet(tmp_path, profile="lab").nodes
    assert (node.settings.profile, node.settings.wipe) == (Profile.FAST, wipe)


def test_the_plugins_kubeconfig_is_kept_for_every_verb(tmp_path: Path) -> None:
    """Promise 7: whoever opens the fleet later asks the cluster that its plugin serves."""
    served(tmp_path / "s")
    wiring_plans.record_kubeconfig(tmp_path / "s", "a:/b")
    told = f"{Path('a').absolute()}:/b"
    for plan in (plan_fleet(tmp_path / "s"), plan_fleet(tmp_path / "s", simulate="1x1")):
        assert plan.nodes[0].kubeconfig == told
        assert plan.coordinator.kubeconfig == told
    served(tmp_path / "s")
    assert plan_fleet(tmp_path / "s").nodes[0].kubeconfig == told
    wiring_plans.record_kubeconfig(tmp_path / "s", "")
    assert plan_fleet(tmp_path / "s").nodes[0].kubeconfig == ""
    with pytest.raises(errors.InputInvalid, match="start the node plugin"):
        wiring_plans.record_kubeconfig(tmp_path / "none", "a")


def test_each_selection_of_nodes_has_a_coordinator_of_its_own() -> None:
    """DESIGN 5, Ray: what the settings ask for; one for all nodes where they ask for nothing."""
    plan = CoordinatorPlan(state="s")
    assert plan.shards() == (plan,)
    kubernetes = KubernetesSettings(coordinator_nodes=("pool=a", "!pool"))
    several = CoordinatorPlan(state="s", settings=Settings(kubernetes=kubernetes))
    assert [one.nodes for one in several.shards()] == ["pool=a", "!pool"]
    assert CoordinatorPlan.model_validate_json(several.shards()[0].model_dump_json()).nodes
