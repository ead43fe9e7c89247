"""`helm uninstall`: refused while a device is in use, then to the end, and installed once more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fleet.kube.base import NODES, Name
from tests.e2e.plugin_process import DRIVER
from tests.e2e.polling import eventually
from tests.e2e_chart.changes import FIT, revision, runs_one, status, tenant
from tests.e2e_chart.installation import (
    DEVICES,
    NAMESPACE,
    RELEASE,
    STORAGE_CLASS,
    Installation,
    conditions,
)

pytestmark = pytest.mark.timeout(600)
OURS = ("fleet", DRIVER)
"""What the names of all our objects have one of."""
STAYS = (
    f"namespace/{NAMESPACE}",
    f"persistentvolumeclaim/{RELEASE}-coordinator",
    f"job.batch/{RELEASE}-store",
    f"pod/{RELEASE}-store-",
    "configmap/fleetscrub-leases",
    "configmap/fleetscrub-run-",
    f"storageclass.storage.k8s.io/{STORAGE_CLASS}",
)
"""Beginnings of the names of what docs/install.md says stays, and the class of our volumes."""
PASSING = ("event", "endpointslice")
"""Kinds of what the cluster itself makes and takes away."""


def test_a_claim_in_use_keeps_the_release(installation: Installation) -> None:
    """While a tenant has a device `helm uninstall` fails, the hook's log names the claim and what
    to do, and nothing was changed; `helm rollback` to the last good revision keeps the release."""
    last = revision(installation)
    with tenant(installation, "gpu-1") as pod:
        claim = installation.claim_of(pod)["metadata"]["name"]
        said = installation.uninstall(good=(1,))
        assert "fleetscrub-uninstall" in said or "pre-delete" in said, said
        log = installation.kubectl("logs", f"job/{RELEASE}-uninstall", "--container", "uninstall")
        assert claim in log
        assert "nothing was changed" in log
        assert not installation.unready()
        installation.helm("rollback", RELEASE, str(last))
        assert revision(installation) == last + 1
        assert FIT in status(installation)
        runs_one(installation, "gpu-2")


def test_uninstalled_to_the_end(release: Installation, figures: list[str]) -> None:
    """Nothing of ours is left in the cluster, nor with kubelet, nor in the CDI directory, but what
    docs/offboarding.md names; the evidence is there as it was."""
    release.serve()
    before = evidence(release)
    began = time.monotonic()
    release.uninstall()
    eventually(
        "nothing is left in the cluster",
        lambda: not left(release),
        timeout_s=180,
        period_s=1.0,
        tell=lambda: "\n".join(left(release)),
    )
    figures.append(f"helm uninstall, to nothing left: {time.monotonic() - began:.1f} s")
    assert left_on_host(release) == []
    node = release.cluster.get(NODES, Name(release.plugin.node))
    assert not [kind for kind in conditions(node) if kind.startswith(OURS)]
    assert not [one for one in node["spec"].get("taints") or [] if one["key"].startswith(OURS)]
    assert evidence(release) == before


def test_installed_again_on_what_was_kept(release: Installation, figures: list[str]) -> None:
    """The same release once more: the store is left as it is, the node goes on with its journal and
    keys, the coordinator with its own, and all evidence is whole."""
    before = evidence(release)
    began = time.monotonic()
    release.install()
    release.serve()
    figures.append(f"installed again: {time.monotonic() - began:.1f} s")
    assert '"made": false' in release.kubectl("logs", f"job/{RELEASE}-store")
    after = evidence(release)
    for name, digests in before.items():
        assert after[name][: len(digests)] == digests, name
    runs_one(release, "gpu-1")
    assert FIT in status(release)
    assert "is whole" in release.fleet("evidence", "verify")


def evidence(release: Installation) -> dict[str, list[str]]:
    """What is kept of each device, and the public keys of node and coordinator."""
    found = {
        name: [str(one.digest) for one in release.plugin.certificates(name)]
        for name in (f"gpu-{number}" for number in range(DEVICES))
    }
    keys = sorted(release.scratch.rglob("*.pub"))
    assert len(keys) >= 2, keys
    return {**found, **{str(path): [path.read_text()] for path in keys}}


def left(release: Installation) -> list[str]:
    """Objects of any kind that are ours by name and not among those that stay."""
    kinds = release.kubectl("api-resources", "--verbs=list", "--output", "name").split()
    asked = ",".join(one for one in kinds if not one.startswith(PASSING))
    listed = release.kubectl("get", asked, "--all-namespaces", "--output", "name").split()
    return [
        one for one in listed if any(word in one for word in OURS) and not one.startswith(STAYS)
    ]


def left_on_host(release: Installation) -> list[str]:
    """Sockets and CDI specs of ours, and claims that kubelet remembers."""
    root = release.place.kubelet_root
    found: list[Path] = list((root / "plugins_registry").glob(f"{DRIVER}*"))
    found += [path for path in (root / "plugins" / DRIVER).rglob("*") if path.is_socket()]
    found += list(release.place.cdi_directory.glob("fleetscrub*"))
    return [*map(str, found), *release.remembered()]
