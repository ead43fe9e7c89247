"""The commands that the pages for operators have for a cluster, typed one after the other.

From a cluster with nothing in it to the uninstallation: quick start, install, operations,
offboarding and README, each in a shell of its own, where `kubectl` and `helm` reach the cluster.
The only thing that is not as typed is what this machine needs: `helm` is given the values of
`Installation.values` besides, for directories of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core.settings import KubernetesSettings
from fleet.kube.base import CLAIMS, NODES, Cluster, name_of
from tests import commands
from tests.document import Typed
from tests.e2e.polling import eventually
from tests.e2e_chart.installation import (
    HEAD,
    NAMESPACE,
    PARTS,
    PLUGIN,
    READY_S,
    STORAGE_CLASS,
    VOLUMES,
    WORKER,
    Installation,
    InstalledNode,
)
from tests.e2e_chart.site import IMAGE, REPOSITORY, Site
from tests.shell import Shell, environment

pytestmark = pytest.mark.timeout(1200)
DRIVER = KubernetesSettings().driver
TENANT = "tenant-a"
EXAMPLE = REPOSITORY / "deploy" / "kubernetes" / "example-pod.yaml"
POD = "docker.io/library/busybox"
HELM = """helm() {
  case $1 in
    install|upgrade|template) command helm "$@" --values "$VALUES" ;;
    *) command helm "$@" ;;
  esac
}"""
"""What this machine needs is added to what is typed."""
LAST = "helm uninstall"
"""A block that begins so ends what the others need."""


class Pages:
    """An operator who types the pages."""

    def __init__(self, installation: Installation, directory: Path) -> None:
        """`directory`: a clone, as far as a command can tell."""
        self.installation = installation
        self._directory = directory
        self._typed: set[str] = set()

    def shell(self) -> Shell:
        """A fresh shell, where `kubectl` and `helm` reach the cluster."""
        place, values = self.installation.place, self._directory.parent / "values.json"
        values.write_text(json.dumps(self.installation.values()))
        found = Shell(
            self._directory,
            self._directory.parent,
            environment(
                KUBECONFIG=str(place.kubeconfig),
                VALUES=str(values),
                USER="the-operator",
                PATH=os.environ["PATH"],
            ),
        )
        found.run(HELM)
        return found

    def type(self, page: str, *, last: bool = False) -> None:
        """All blocks of a page, but those that end it all; with `last` only these."""
        with self.shell() as shell:
            for block in commands.typed(page, "cluster"):
                if block.commands[0].startswith(LAST) is not last:
                    continue
                self._block(shell, block)

    def _block(self, shell: Shell, block: Typed) -> None:
        # A namespace is made once, and one release is installed on a cluster.
        once = ("kubectl create namespace", "helm install")
        again = [one for one in block.commands if one.startswith(once) and one in self._typed]
        left = tuple(one for one in block.commands if one not in again)
        self._typed |= set(block.commands)
        output = block.output if not again else None
        shell.type(Typed(block.page, block.place, left, output), self.values())
        if not block.commands[0].startswith(LAST):
            self.settle()

    def values(self) -> dict[str, str]:
        """What stands for the words in capitals now."""
        found = self.installation
        told = {"REGISTRY": IMAGE.rpartition("/")[0], "NODE": found.plugin.node}
        told |= {"DEVICE": "gpu-0", "REVISION": "1"}
        for word, part in (("WORKER-POD", WORKER), ("PLUGIN-POD", PLUGIN)):
            if pods := found.pods(part):
                told |= {word: name_of(pods[0]).name, "ROOT": self.root()}
        return told

    def root(self) -> str:
        """The root of a list of tag keys that the cluster has as a ConfigMap."""
        keys = self._directory / "keys"
        known, run = keys.exists(), self.installation.site.run
        tag = (str(REPOSITORY / ".venv" / "bin" / "fleet"), "tag", "key")
        told = run(*tag, "list" if known else "new", "--authority", str(keys), "--json")
        if not known:
            source = f"--from-file=keys.json={keys / 'tag-keys.json'}"
            self.installation.kubectl("create", "configmap", "tag-keys", source)
        return str(json.loads(told)["root"])

    def settle(self) -> None:
        """Everything serves again before the next block, as an operator would see to."""
        found = self.installation
        eventually(
            "all pods are ready",
            lambda: not found.unready(),
            timeout_s=READY_S,
            period_s=0.5,
            tell=lambda: "\n".join((*found.unready(), found.told_parts())),
        )
        eventually(
            "the fleet is fit",
            self._is_fit,
            timeout_s=READY_S,
            period_s=1.0,
            tell=lambda: self.head("status"),
        )

    def _is_fit(self) -> bool:
        """Whether it is; devices that a page has taken out of service are given back."""
        told = self.head("status")
        if "QUARANTINED" in told:
            for one in json.loads(self.head("quarantine", "list", "--json"))["devices"]:
                self.head("quarantine", "clear", one["uuid"], "--reason", "the next block")
        return "\nFIT: " in told

    def head(self, *words: str) -> str:
        """What a command says in the head, whatever it found."""
        where = ("service/fleetscrub-ray-head", "--container", "ray-head")
        return self.installation.kubectl("exec", *where, "--", "fleet", *words, good=(0, 1, 2))


@pytest.fixture(scope="module")
def pages(site: Site, api: Cluster, figures: list[str]) -> Iterator[Pages]:
    """An operator before a cluster with nothing in it; afterwards there is nothing again."""
    scratch = Path(tempfile.mkdtemp(prefix="fleet-documents-", dir="/var/tmp"))
    directory = scratch / "clone"
    directory.mkdir()
    (directory / "deploy").symlink_to(REPOSITORY / "deploy")
    (node,) = (name_of(one).name for one in api.list(NODES).items)
    installation = Installation(
        place=site.place,
        cluster=api,
        plugin=InstalledNode(site.place, scratch / "state", node),
        namespace="default",
        figures=figures,
        site=site,
        scratch=scratch,
        kubelet=site.kubelet(),
        scheduler=site.scheduler(),
    )
    if installation.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"):
        pytest.skip("a release is kept: the pages begin with a cluster that has nothing in it")
    installation.volume("documents")
    site.run("ctr", "images", "tag", "--force", f"{POD}:local", f"{POD}:1.36")
    site.run("kubectl", "create", "namespace", TENANT)
    yield Pages(installation, directory)
    site.run("kubectl", "delete", "namespace", NAMESPACE, TENANT, timeout_s=300)
    site.run("kubectl", "delete", "persistentvolume", "--all")
    shutil.rmtree(scratch, ignore_errors=True)


def test_the_quick_start_s_cluster(pages: Pages) -> None:
    """F72, F77: from nothing to a pod with a device, its receipt and the fleet's status."""
    pages.type("docs/quick-start.md")


def test_the_commands_of_the_installation(pages: Pages) -> None:
    """F72: the store made by hand, tags that are verified, the token, a campaign, an update."""
    pages.type("docs/install.md")


def test_the_commands_of_every_day(pages: Pages) -> None:
    """F72: every verb of the operator's day works in the one place that the page names."""
    pages.type("docs/operations.md")


def test_the_commands_of_leaving(pages: Pages) -> None:
    """F72: a node is drained and comes back, a device retires and comes back, what is there is
    listed."""
    pages.type("docs/offboarding.md")


def test_the_commands_of_the_first_page(pages: Pages) -> None:
    """F77: what README shows of a cluster is what the pages do."""
    pages.type("README.md")
    pages.installation.site.run("kubectl", "delete", "-f", str(EXAMPLE), timeout_s=180)


def test_simulated_devices_stay_as_they_are(pages: Pages) -> None:
    """F77: an upgrade that changes them is refused by Helm with what to do, and changes nothing."""
    with pages.shell() as shell:
        code, told = shell.run(
            "command helm upgrade fleetscrub deploy/helm/fleetscrub --namespace fleetscrub"
            " --reset-then-reuse-values --set simulate.devices=7"
        )
    assert code == 1
    assert "simulate.devices and simulate.memory stay as they were installed" in told


def test_the_commands_of_the_end(pages: Pages) -> None:
    """E7: the example goes, then the release, by its hook; no mark of ours is left on anything."""
    pages.type("docs/quick-start.md", last=True)
    assert not [one for part in PARTS for one in pages.installation.pods(part)]
    claims = pages.installation.cluster.list(CLAIMS).items
    assert not [one for one in claims if DRIVER in str(one["metadata"].get("finalizers"))]


def test_f74_a_volume_that_ignores_fsgroup_is_named_and_mended(pages: Pages) -> None:
    """F74: on a directory of the host the head's pod says whose it is and what to do, before Ray is
    started; done as it says, everything serves."""
    found = pages.installation
    found.kubectl("delete", "persistentvolumeclaim", "--all")
    found.site.run("kubectl", "delete", "persistentvolume", "--all")
    volume = found.scratch / "of-root"
    volume.mkdir(mode=0o755)
    found.cluster.apply(
        VOLUMES,
        {
            "apiVersion": VOLUMES.api_version,
            "kind": VOLUMES.kind,
            "metadata": {"name": "of-root"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "2Gi"},
                "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(volume)},
            },
        },
        manager="fleet-e2e",
    )
    found.install()

    def said() -> str:
        listed = found.part(HEAD)["status"].get("initContainerStatuses") or [{}]
        ended = [listed[0].get(key, {}).get("terminated") or {} for key in ("state", "lastState")]
        return "".join(str(one.get("message", "")) for one in ended)

    told = eventually("the volume is named", said, timeout_s=READY_S, tell=found.told_parts)
    assert f"belongs to user {os.geteuid()}" in told
    assert "chown -R 65532:65532" in told
    for path in (volume, *volume.rglob("*")):
        os.chown(path, 65532, 65532)
        path.chmod(0o700)
    found.serve()
    found.uninstall()
