"""What the pods of the chart may do: nothing that DESIGN 7 does not name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.core import privileges
from fleet.kube.base import Object
from tests.deploy.chart import rendering
from tests.deploy.chart.rendering import VARIANTS, Values, containers, pods

pytestmark = pytest.mark.chart
ALL = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
OWNERS = {"ray-worker", "standby"}
ON_HOST = {"DaemonSet/fleetscrub-node-plugin", "DaemonSet/fleetscrub-worker"}
WRITTEN = {
    "/var/lib/fleetscrub",
    "/run/fleetscrub",
    "/var/run/cdi",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/sys/devices",
    "/sys/bus/pci",
}
"""Directories of the host that anybody of ours writes to."""
READ = {
    "/etc/machine-id",
    "/var/lib/kubelet",
    "/sys",
    "/sys/fs/cgroup",
    "/proc",
    "/proc/driver",
    "/proc/devices",
    "/usr",
}
TOKENS = {
    "node-plugin": True,
    "worker": True,
    "ray-head": True,
    "store": True,
    "uninstall": True,
    "campaign": False,
    "admission": False,
}
"""Which pods ask the API server for something."""


def part(template: Object) -> str:
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])


def security(container: Object) -> Any:
    return container.get("securityContext", {})


@ALL
def test_nobody_is_privileged(values: Values) -> None:
    """A5: no privileged container, no CAP_SYS_ADMIN, no way to become more, nothing writable."""
    for name, template in pods(rendering.objects(values)):
        for container in containers(template):
            found, where = security(container), f"{name} {container['name']}"
            assert "privileged" not in found, where
            assert found["allowPrivilegeEscalation"] is False, where
            assert found["readOnlyRootFilesystem"] is True, where
            assert found["capabilities"]["drop"] == ["ALL"], where
            added = set(found["capabilities"].get("add", ()))
            given = privileges.WORKER if container["name"] in OWNERS else privileges.PLUGIN
            assert added == set(given), where
            assert "procMount" not in found, where


@ALL
def test_host_namespaces_are_the_stated_ones(values: Values) -> None:
    """hostPID for the worker, which looks for holders; no host network, no host IPC for anybody."""
    for name, template in pods(rendering.objects(values)):
        spec = template["spec"]
        assert bool(spec.get("hostPID")) == (part(template) == "worker"), name
        assert not spec.get("hostNetwork"), name
        assert not spec.get("hostIPC"), name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert all(
            "hostPort" not in port for c in containers(template) for port in c.get("ports", ())
        )


@ALL
def test_only_the_two_daemon_sets_run_as_root(values: Values) -> None:
    """Who touches no host runs as an ordinary user."""
    for name, template in pods(rendering.objects(values)):
        found = template["spec"]["securityContext"]
        if name in ON_HOST:
            assert found["runAsUser"] == 0, name
        else:
            assert found["runAsNonRoot"] is True, name
            assert found["runAsUser"] > 0, name
        for container in containers(template):
            assert not {"runAsUser", "runAsNonRoot"} & set(security(container)), name


@ALL
def test_f70_no_mount_changes_what_has_its_group(values: Values) -> None:
    """F70: kubelet sets the group of a volume once, and does not open private files anew."""
    for name, template in pods(rendering.objects(values)):
        found = template["spec"]["securityContext"]
        if "fsGroup" in found:
            assert found["fsGroupChangePolicy"] == "OnRootMismatch", name


def mounts(container: Object, volumes: dict[str, Object]) -> list[tuple[str, bool]]:
    """(path on the host, whether it is written to) of a container's mounts of the host."""
    return [
        (volumes[mount["name"]]["hostPath"]["path"], not mount.get("readOnly", False))
        for mount in container["volumeMounts"]
        if "hostPath" in volumes[mount["name"]]
    ]


@ALL
def test_of_the_host_is_seen_what_is_stated(values: Values) -> None:
    """A5: devices come through CDI, never from a mount of /dev; every directory is listed here."""
    for name, template in pods(rendering.objects(values)):
        volumes = {one["name"]: one for one in template["spec"].get("volumes", ())}
        used = set()
        for container in containers(template):
            used |= {mount["name"] for mount in container["volumeMounts"]}
            for path, written in mounts(container, volumes):
                assert name in ON_HOST, name
                assert path in (WRITTEN if written else WRITTEN | READ), f"{name}: {path}"
                assert not f"{path}/".startswith("/dev/"), name
        assert used == set(volumes), f"{name}: {set(volumes) - used} is mounted by nobody"


def test_the_plugin_writes_no_device_file() -> None:
    """DESIGN 7: the plugin's pod opens no device, claims none and resets none."""
    (template,) = [t for n, t in pods(rendering.objects()) if n.endswith("node-plugin")]
    assert "resourceClaims" not in template["spec"]
    (container,) = template["spec"]["containers"]
    volumes = {one["name"]: one for one in template["spec"]["volumes"]}
    written = {path for path, write in mounts(container, volumes) if write}
    assert not any(path.startswith("/sys") for path in written)
    assert "claims" not in container["resources"]


def test_devices_come_by_the_agent_claim() -> None:
    """DESIGN 7: both owners use the request of the pod's one claim, the bridge has no device."""
    (template,) = [t for n, t in pods(rendering.objects()) if n == "DaemonSet/fleetscrub-worker"]
    (claim,) = template["spec"]["resourceClaims"]
    made = rendering.one("ResourceClaimTemplate", claim["resourceClaimTemplateName"])
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "agent.gpu.fleetscrub.dev"
    wanted = [{"name": claim["name"], "request": request["name"]}]
    for container in template["spec"]["containers"]:
        asked = container["resources"].get("claims")
        assert asked == (wanted if container["name"] in OWNERS else None)


@ALL
def test_secrets_and_tokens_go_where_they_are_needed(values: Values) -> None:
    """Ray's token to Ray's processes alone; the API server's to who asks it something."""
    for name, template in pods(rendering.objects(values)):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is TOKENS[part(template)], name
        assert spec["enableServiceLinks"] is False, name
        secrets = {
            one["name"]: one["secret"]["secretName"]
            for one in spec.get("volumes", ())
            if "secret" in one
        }
        for container in containers(template):
            mounted = {m["name"] for m in container["volumeMounts"]} & set(secrets)
            command = container["command"][0]
            talks = container["name"] in ("ray-worker", "bridge", "ray-head", "raylet") or (
                part(template) in ("campaign", "uninstall")
            )
            expected = (
                {"ray-token"} if talks else ({"tls"} if part(template) == "admission" else set())
            )
            assert mounted == expected, f"{name} {container['name']} {command}"
            for variable in container.get("env", ()):
                assert variable["name"] != "RAY_AUTH_TOKEN", "a token in the environment is shown"


@ALL
def test_every_container_is_limited(values: Values) -> None:
    """A container without a memory limit takes its node with it."""
    for name, template in pods(rendering.objects(values)):
        for container in containers(template):
            resources = container["resources"]
            assert resources["limits"]["memory"], name
            assert resources["requests"]["cpu"], name
            assert resources["requests"]["memory"], name


def test_ray_is_reached_from_inside_only() -> None:
    """Token authentication, a Service without an address outside, policies for every port."""
    found = rendering.objects()
    (service,) = [one for one in found if one["kind"] == "Service"]
    assert service["spec"]["type"] == "ClusterIP"
    assert not [one for one in found if one["kind"] in ("Ingress", "HTTPRoute", "Route")]
    for name, template in pods(found):
        for container in containers(template):
            names = {one["name"]: one.get("value") for one in container.get("env", ())}
            if container["command"][0] == "ray" or part(template) == "campaign":
                assert names["RAY_AUTH_MODE"] == "token", name
                paths = [mount["mountPath"] for mount in container["volumeMounts"]]
                assert str(Path(names["RAY_AUTH_TOKEN_PATH"]).parent) in paths, name
    policies = {
        one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "NetworkPolicy"
    }
    (dashboard,) = policies["fleetscrub-dashboard"]["ingress"]
    peers = [one["podSelector"]["matchLabels"] for one in dashboard["from"]]
    assert [one["app.kubernetes.io/component"] for one in peers] == ["campaign"]
