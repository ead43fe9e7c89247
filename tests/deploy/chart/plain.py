"""The manifests for clusters without Helm, made from the chart with its default values.

    python -m tests.deploy.chart.plain      # writes deploy/kubernetes/*.yaml

Labels that speak of a release are left out. Rights and classes exist once, in the chart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.deploy.chart import rendering
from tests.deploy.manifests import ROOT

DIRECTORY = ROOT / "kubernetes"
_LABELS = re.compile(r"^  labels:\n(?:    .*\n)+", re.MULTILINE)
_NAMESPACE = """\
apiVersion: v1
kind: Namespace
metadata:
  name: fleetscrub
"""
_CLASSES = """\
# Classes of devices. The agent device is in none of them: it reaches every accelerator of a node.
# Where the gate DRAConsumableCapacity is off (Kubernetes 1.34 and 1.35 by default), leave the
# selectors with allowMultipleAllocations out: without it no device can be allocated twice.
"""
_ACCOUNTS = """\
# Accounts beside those of the node plugin (rbac.yaml) and the coordinator (coordinator.yaml). None
# of them gets a token into its pod unless it is said here that it needs one.
#
"""
_COORDINATOR = """\
# Needs the namespace from rbac.yaml. `fleet coordinate` runs under this account as well.
"""
_NODE = """\
# To which node's slices and claims is said by the policies in deploy/helm/fleetscrub/accounts. What
# the pods need of the host: docs/privilege.md.
"""
_UNBOUND = """\
# Not bound; to bind it:
#   kubectl create clusterrolebinding fleet-unexposed --clusterrole=fleet-unexposed \\
#     --serviceaccount=fleetscrub:fleet-coordinator
"""


@dataclass(frozen=True, slots=True)
class Part:
    """The first objects of a template (None: all of them), after a comment of their own."""

    template: str
    first: int | None = None
    comment: str = ""


FILES: dict[str, tuple[str | Part, ...]] = {
    "accounts.yaml": (Part("rbac/accounts.yaml", None, _ACCOUNTS),),
    "claim-bind.yaml": (Part("rbac/claim-bind.yaml"),),
    "classes.yaml": (Part("classes.yaml", 2, _CLASSES),),
    "coordinator.yaml": (
        Part("rbac/coordinator.yaml", None, _COORDINATOR),
        Part("rbac/unexposed.yaml", 1, _UNBOUND),
    ),
    "rbac.yaml": (_NAMESPACE, Part("rbac/node-plugin.yaml", None, _NODE)),
}


def text(name: str) -> str:
    """What the file of this name has to contain."""
    documents: list[str] = []
    for part in FILES[name]:
        documents += [part] if isinstance(part, str) else _documents(part)
    return "---\n".join(documents)


def _documents(part: Part) -> list[str]:
    made = rendering.files({"rbac": {"unexposedDelete": True}})[f"templates/{part.template}"]
    found = [f"{one.strip()}\n" for one in re.split(r"^---\n", made, flags=re.MULTILINE)]
    chosen = [_LABELS.sub("", one) for one in found if one.strip()][: part.first]
    return [part.comment + chosen[0], *chosen[1:]]


def write() -> None:
    """Write all of them."""
    for name in FILES:
        (DIRECTORY / name).write_text(text(name))


if __name__ == "__main__":
    write()
