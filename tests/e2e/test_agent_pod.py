"""Our own node service in a pod without privilege: what it opens, and what it opens it by.

The pod has the image of the suite and, read-only, the directories of this machine that Python and
the product are in: those stand for the product's own image.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.core.privileges import WORKER
from fleet.kube.base import CLASSES, PODS, SLICES, Name, Object, name_of
from tests.drivers.host import Host
from tests.e2e import workloads
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DEVICES, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import AGENT_CLASS, STAY, Wish, agent_class, program

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
DRIVER_FILES = Path("/home/kubernetes/bin/nvidia")
"""One of the places where the driver's libraries are looked for."""
SYSTEM = ("/usr", "/lib", "/lib64", "/etc")
READ = 'head -c 1 /dev/kmsg > /dev/null 2>&1 && say "read" || say "not read"'
MAKE = 'mknod /tmp/kmsg c 1 11 2>/dev/null && say "made" || say "not made"'


@dataclass(frozen=True, slots=True)
class Rights:
    """What a container is given beyond nothing."""

    capabilities: Sequence[str] = ()
    writable: Sequence[str] = ()
    """Directories of the host under their own paths."""
    read_only: Sequence[str] = ()
    host_pid: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def body(
    ground: Ground, command: Sequence[str], source: Mapping[str, str], rights: Rights
) -> Object:
    """A pod with everything dropped but its rights, and with the claim of `source`, if any."""
    name = f"pod-{secrets.token_hex(4)}"
    found = workloads.pod(name, ground.namespace, command, image=ground.place.image, source=source)
    paths = [*rights.writable, *rights.read_only]
    found["spec"]["hostPID"] = rights.host_pid
    found["spec"]["volumes"] = [
        {"name": f"host-{number}", "hostPath": {"path": path}} for number, path in enumerate(paths)
    ]
    (container,) = found["spec"]["containers"]
    container["securityContext"] = {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "runAsUser": 0,
        "capabilities": {"drop": ["ALL"], "add": list(rights.capabilities)},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container["volumeMounts"] = [
        {"name": f"host-{number}", "mountPath": path, "readOnly": path in rights.read_only}
        for number, path in enumerate(paths)
    ]
    container["env"] = [{"name": k, "value": v} for k, v in rights.environment.items()]
    if not source:
        del found["spec"]["resourceClaims"]
        del container["resources"]
    return found


def start(
    ground: Ground, command: Sequence[str], source: Mapping[str, str], rights: Rights
) -> Name:
    """Create such a pod."""
    found = body(ground, command, source, rights)
    ground.cluster.create(PODS, found)
    return name_of(found)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Host]:
    """A machine with a stand-in GPU, whose driver's files are under the same path on this one: a
    real container runtime mounts them from here."""
    found = Host(tmp_path / "machine")
    found.add_gpu("h100")
    for at_host, name in ((DRIVER_FILES / "lib64", "usr/lib"), (DRIVER_FILES / "bin", "usr/bin")):
        moved = found.hardware_root / str(at_host).lstrip("/")
        moved.parent.mkdir(parents=True, exist_ok=True)
        (found.hardware_root / name).rename(moved)
    for place in (found.hardware_root / "home/kubernetes/bin/nvidia/lib64").glob("*-linux-gnu"):
        for file in place.iterdir():
            file.rename(place.parent / file.name)
    here = [one for one in (*DRIVER_FILES.parents, DRIVER_FILES) if not one.exists()]
    assert DRIVER_FILES in here, f"{DRIVER_FILES} is in use on this machine"
    DRIVER_FILES.parent.mkdir(parents=True, exist_ok=True)
    DRIVER_FILES.symlink_to(found.hardware_root / str(DRIVER_FILES).lstrip("/"))
    yield found
    DRIVER_FILES.unlink()
    for one in sorted(here, reverse=True):
        if one != DRIVER_FILES:
            one.rmdir()


@pytest.fixture
def agents(ground: Ground) -> Iterator[dict[str, str]]:
    """A claim on the agent device, as pods name it; its class is there meanwhile."""
    ground.cluster.apply(CLASSES, agent_class(), manager="fleet-e2e")
    assert ground.plugin.stop() == 0
    yield ground.claim_template(Wish(device_class=AGENT_CLASS))
    ground.cluster.delete(CLASSES, Name(AGENT_CLASS))


def published(ground: Ground, plugin: PluginProcess) -> None:
    """Wait until the agent device is offered."""
    ground.instances.append(plugin)
    plugin.start()
    eventually(
        "the agent device is published",
        lambda: "agent" in ground.published(),
        timeout_s=60,
        tell=plugin.told,
    )


@pytest.mark.timeout(300)
def test_the_agent_claim_opens_its_devices_without_privilege(
    ground: Ground, agents: dict[str, str], machine: Host, tmp_path: Path
) -> None:
    """DESIGN 7, A5: of a machine with NVIDIA GPUs (stand-ins) the claim alone brings all nodes into
    the pod, also of instances that do not exist, and the real kernel log opens by it: not without
    the claim, and not without CAP_SYSLOG."""
    kmsg = machine.tree.put("dev/kmsg", "")
    plugin = PluginProcess(
        ground.place,
        tmp_path / "state",
        ground.plugin.node,
        agent_namespace=ground.namespace,
        simulate="",
        hardware="".join(
            f"{name} = {json.dumps(str(value))}\n"
            for name, value in (
                ("root", machine.hardware_root),
                ("kernel_log", kmsg),
                ("run_directory", tmp_path / "run"),
            )
        ),
        environment=machine.environment(),
    )
    published(ground, plugin)
    count = "say $(ls /dev/nvidia-caps | wc -l)"
    privileged = Rights(capabilities=WORKER)
    service = start(
        ground, program("say $(ls /dev/nvidia0)", count, READ, MAKE), agents, privileged
    )
    node, capabilities, *opened = ground.ended(service)
    assert node == "/dev/nvidia0"
    assert int(capabilities) > 100
    assert opened == ["read", "not", "made"]
    unheard = start(ground, program(READ), agents, Rights())
    assert ground.ended(unheard) == ["not", "read"]
    without = start(ground, program(READ, MAKE), {}, privileged)
    assert ground.ended(without) == ["not", "read", "not", "made"]
    assert plugin.claims() == ()
    assert plugin.stop() == 0
    for one in ground.slices():  # this machine has that GPU no more
        ground.cluster.delete(SLICES, name_of(one))


@pytest.mark.timeout(300)
def test_a_node_is_served_by_a_pod_without_privilege(
    ground: Ground, agents: dict[str, str]
) -> None:
    """DESIGN 7, A5: the standby owns the node from a pod with the named capabilities only: it
    wipes, proves tenants gone and lets go when its pod ends."""
    plugin = PluginProcess(
        ground.place,
        ground.plugin.state,
        ground.plugin.node,
        agent_namespace=ground.namespace,
        standby_elsewhere=True,
    )
    rights = Rights(
        capabilities=WORKER,
        host_pid=True,
        writable=(str(plugin.state.parent), str(ground.place.cdi_directory)),
        read_only=(
            *(path for path in SYSTEM if Path(path).is_dir()),
            str(ROOT),
            *({sys.prefix, sys.base_prefix} - {str(ROOT)}),
            str(ground.place.cgroup_root),
            str(ground.place.kubelet_root),
        ),
    )
    assert plugin.view() is None
    published(ground, plugin)
    plan = plugin.directory / "plan.json"
    serve = f"cd {ROOT}; exec {sys.executable} -m fleet.cli.main node standby --plan {plan}"
    service = start(ground, ["sh", "-c", serve], agents, rights)
    ground.in_phase(service, "Running")
    eventually(
        "the pod's standby has every device clean",
        lambda: plugin.serves() and len(ground.clean_devices()) == DEVICES,
        timeout_s=60,
        tell=lambda: f"{plugin.told()}\n{ground.told(service)}",
    )
    tenant = ground.run(program(STAY), ground.claim_template())
    ground.in_phase(tenant, "Running")
    (record,) = plugin.claims() or ()
    ground.delete(tenant)
    eventually(
        "the device is clean again",
        lambda: len(ground.clean_devices()) == DEVICES,
        timeout_s=60,
        tell=plugin.told,
    )
    assert plugin.claims() == ()
    assert record.state == "PREPARED"
    ground.delete(service)
    assert plugin.view() is None
    assert plugin.stop() == 0
