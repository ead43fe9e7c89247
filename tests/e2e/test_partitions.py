"""An accelerator and its partitions on a real cluster: who may be given what beside whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.kube.base import PODS, SLICES, Name, Object, Selection, name_of, uid_of, version_of
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DRIVER, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import NOT_ZERO, STAY, Wish, phase, program

pytestmark = pytest.mark.e2e

DEVICES = 14
"""Of two accelerators, one of them with twelve partitions."""
COUNTERS = {"m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "rest"}
NO_PLACE = "cannot allocate all claims"


@pytest.fixture
def partitioned(ground: Ground, tmp_path: Path) -> Iterator[Ground]:
    """The node served by a plugin with partitions, all clean, in place of the usual one."""
    assert ground.plugin.stop() == 0
    _forget(ground)
    other = PluginProcess(ground.place, tmp_path / "state", ground.plugin.node, simulate="2p1")
    ground.instances.append(other)
    other.start()
    eventually(
        "all devices are published clean",
        lambda: other.serves() and _free(ground) == DEVICES,
        timeout_s=60,
        tell=other.told,
    )
    yield ground
    for pod in ground.cluster.list(PODS, Selection(namespace=ground.namespace)).items:
        ground.cluster.delete(PODS, name_of(pod))
    eventually(
        "it holds no claim any more", lambda: not ground.claims(), timeout_s=60, tell=other.told
    )
    assert other.stop() == 0
    _forget(ground)


@pytest.mark.timeout(300)
def test_the_scheduler_never_gives_memory_twice(partitioned: Ground) -> None:
    """E1, KEP-4815: devices that share memory consume the same counters: the second of two is not
    allocated, whatever taints it tolerates; devices that share none are, side by side."""
    ground = partitioned
    (sets,) = [one for one in ground.slices() if "sharedCounters" in one["spec"]]
    (found,) = sets["spec"]["sharedCounters"]
    assert (found["name"], found["counters"].keys()) == ("gpu-1-memory", COUNTERS)
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in ground.slices()} == {2}
    assert "consumesCounters" not in ground.published()["gpu-0"]

    tenant = _claiming(ground, "gpu-1-1g-0")
    ground.in_phase(tenant, "Running")
    beside = _claiming(ground, "gpu-1-1g-1")
    ground.in_phase(beside, "Running")
    waiting = [_claiming(ground, name) for name in ("gpu-1-2g-0", "gpu-1")]
    for pod in waiting:
        _unplaced(ground, pod)
    ground.delete(tenant)
    assert [phase(ground.pod(pod)) for pod in waiting] == ["Pending", "Pending"]
    ground.delete(beside)
    ground.in_phase(waiting[0], "Running")
    assert phase(ground.pod(waiting[1])) == "Pending"
    ground.delete(waiting[0])
    ground.in_phase(waiting[1], "Running")
    ground.delete(waiting[1])
    now = [one for one in ground.slices() if uid_of(one) == uid_of(sets)]
    assert [version_of(one) for one in now] == [version_of(sets)], "the sets were written again"
    assert now[0]["spec"]["pool"]["generation"] == sets["spec"]["pool"]["generation"]


def _claiming(ground: Ground, device: str) -> Name:
    """A pod that stays, and that no `not-clean` keeps off the device: only counters do."""
    wish = Wish(tolerated=(f"{DRIVER}/not-clean",))
    return ground.run(
        program(NOT_ZERO, STAY), ground.claim_template(wish, uuid=ground.uuid(device))
    )


def _unplaced(ground: Ground, pod: Name) -> None:
    """Wait until the scheduler says that it has nothing for the pod."""
    eventually(
        "the scheduler has no place for it",
        lambda: NO_PLACE in ground.unscheduled(pod),
        timeout_s=20,
        tell=lambda: ground.told(pod),
    )


def _free(ground: Ground) -> int:
    """Devices published without a taint."""
    return sum("taints" not in one for one in ground.published().values())


def _forget(ground: Ground) -> None:
    """Delete the slices: the devices of another set of simulated ones would count as lost."""
    slices: list[Object] = ground.slices()
    for one in slices:
        ground.cluster.delete(SLICES, name_of(one))
