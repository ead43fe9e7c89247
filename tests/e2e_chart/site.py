"""What an operator's night needs of the machine besides a cluster, as the environment names it.

FLEET_E2E_CONTAINERD      socket of the node's container runtime
FLEET_E2E_ARCHIVE         the image under test, an OCI archive
FLEET_E2E_NEW             command that starts a cluster with nothing in it
FLEET_E2E_STOP            command that ends all of it with its containers: the machine goes down
FLEET_E2E_START           command that starts it again with what it had
FLEET_E2E_ARCHIVE_BEFORE  an image of an older commit; without it no two versions meet

The programs helm, kubectl and ctr are found on the path.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.kube.base import Object
from tests.e2e import place as places
from tests.e2e.place import Component, Place

REPOSITORY = Path(__file__).parents[2]
CHART = Path("deploy/helm/fleetscrub")
IMAGE = "docker.io/fleetscrub/fleetscrub"
CHANGE_S = 120.0
"""Time, s, a command that starts or ends a cluster may take."""
CALL_S = 120.0
REVISION = "org.opencontainers.image.revision"


@dataclass(frozen=True, slots=True)
class Site:
    """The machine and its cluster."""

    place: Place
    containerd: str
    archive: Path
    new: str
    stop: str
    start: str
    before: Path | None = None
    """An image of an older commit."""

    def run(self, *words: str, timeout_s: float = CALL_S, good: Sequence[int] = (0,)) -> str:
        """What a program prints; an AssertionError with all of it when its exit code is not good.

        helm, kubectl and ctr are shown this cluster, whatever the user's own is.
        """
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "KUBECONFIG": str(self.place.kubeconfig),
                "CONTAINERD_ADDRESS": self.containerd,
                "CONTAINERD_NAMESPACE": "k8s.io",
            },
            check=False,
        )
        told = f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode in good, told
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    # --- the cluster ---

    def make_new(self) -> None:
        """A cluster with nothing in it; the one of before is gone."""
        self._change(self.stop)
        self._change(self.new)

    def go_down(self) -> None:
        """End everything, as a machine that loses its power."""
        self._change(self.stop)

    def come_up(self) -> None:
        """Start the cluster again."""
        self._change(self.start)

    def kubelet(self) -> Component:
        """The kubelet that runs."""
        return places.kubelet(self.place.kubelet_root)

    def scheduler(self) -> Component:
        """The scheduler that runs."""
        return Component.found("kube-scheduler", root=self.place.kubelet_root)

    def _change(self, command: str) -> None:
        # Its output goes to a file: what it starts keeps a pipe open.
        log = self.place.kubeconfig.parent / "cluster-change.log"
        with log.open("wb") as output:
            done = subprocess.run(
                ["bash", "-c", command],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                timeout=CHANGE_S,
                check=False,
            )
        assert done.returncode == 0, f"{command}\n{log.read_text(errors='replace')}"

    # --- images ---

    def bring(self, archive: Path, tag: str) -> None:
        """Import an archive, so that pods find it under our name with this tag."""
        name = f"{IMAGE}:{tag}"
        self.run("ctr", "images", "import", "--index-name", name, str(archive), timeout_s=300)


def named() -> Site:
    """The site of the environment. Raises KeyError for a part that is not named."""
    before = os.environ.get("FLEET_E2E_ARCHIVE_BEFORE")
    return Site(
        place=places.named(),
        containerd=os.environ["FLEET_E2E_CONTAINERD"],
        archive=Path(os.environ["FLEET_E2E_ARCHIVE"]),
        new=os.environ["FLEET_E2E_NEW"],
        stop=os.environ["FLEET_E2E_STOP"],
        start=os.environ["FLEET_E2E_START"],
        before=Path(before) if before else None,
    )


def revision(archive: Path) -> str:
    """Commit that an image archive was built from, as its label says."""
    with tarfile.open(archive) as whole:

        def blob(digest: str) -> Object:
            found = whole.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert found is not None
            content: Object = json.load(found)
            return content

        index = whole.extractfile("index.json")
        assert index is not None
        manifest = blob(json.load(index)["manifests"][0]["digest"])
        labels = blob(manifest["config"]["digest"])["config"].get("Labels") or {}
    return str(labels[REVISION])
