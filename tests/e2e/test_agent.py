"""The device `agent`, through which our own node service reaches the accelerators (DESIGN 7)."""

from __future__ import annotations

import pytest

from fleet.kube.base import CLASSES, Name, uid_of
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DEVICES, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import AGENT_CLASS, Wish, agent_class, program

pytestmark = pytest.mark.e2e


@pytest.mark.timeout(300)
def test_the_agent_device_reaches_every_accelerator(ground: Ground) -> None:
    """DESIGN 7: published beside the accelerators, prepared for our namespace by the plugin alone,
    no record, no lease; a tenant runs beside it; gone from the slice when it is not wanted."""
    ground.cluster.apply(CLASSES, agent_class(), manager="fleet-e2e")
    assert ground.plugin.stop() == 0
    other = PluginProcess(
        ground.place, ground.plugin.state, ground.plugin.node, agent_namespace=ground.namespace
    )
    ground.instances.append(other)
    other.start()
    eventually(
        "it is published", lambda: "agent" in ground.published(), timeout_s=60, tell=other.told
    )
    eventually(
        "all are clean",
        lambda: other.serves() and len(ground.clean_devices()) == DEVICES,
        timeout_s=60,
    )
    memory = ground.plugin.directory / "sim" / "memory"
    pod = ground.run(
        program(f"say $(ls /dev/fleetsim) $(ls {memory} | wc -l)", "sleep 5"),
        ground.claim_template(Wish(device_class=AGENT_CLASS)),
    )
    ground.in_phase(pod, "Running")
    uid = uid_of(ground.claim_of(pod))
    assert any(uid in name for name in ground.plugin.specs())
    assert ground.plugin.claims() == ()
    assert ground.plugin.leases() == []
    tenant = ground.run(program("say $FLEETSIM_DEVICE"), ground.claim_template())
    assert ground.ended(tenant)[0].startswith("gpu-")
    assert ground.ended(pod) == ["agent.node", str(DEVICES)]
    ground.cluster.delete(CLASSES, Name(AGENT_CLASS))
    assert other.stop() == 0
    ground.plugin.start()
    eventually(
        "it is not published any more",
        lambda: "agent" not in ground.published(),
        timeout_s=60,
        tell=ground.plugin.told,
    )
