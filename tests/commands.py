"""Which commands of the pages for operators are typed by which test, and which by none, and why."""

from __future__ import annotations

from collections.abc import Iterator

from tests import document
from tests.document import Typed

PAGES = (
    "docs/quick-start.md",
    "docs/install.md",
    "docs/operations.md",
    "docs/offboarding.md",
    "README.md",
)
TYPED = {
    "laptop": "tests/test_docs_laptop.py",
    "cluster": "tests/e2e_chart/test_documents.py",
}
"""Places whose commands are typed, by the test that does it."""
NOT_TYPED = {
    "gpu-box": "as root of a machine with accelerators and systemd, which no test has",
    "image": "as root, for minutes: tests/deploy/image/test_build.py builds the same",
    "docker": "with Docker's builder, which no test has; `make image` goes the same way without it",
}
"""Places whose commands are not, with the reason."""
ELSEWHERE = {
    "make test": "it is what runs the tests",
    "make kubelet-demo": "tests/lab/kubelet/test_demo.py",
    "make demo-nvidia": "tests/drivers/test_demo.py",
    "helm install fleetscrub deploy/helm/fleetscrub --namespace fleetscrub"
    " --set image.repository=REGISTRY/fleetscrub": "needs accelerators; else the quick start's",
}
"""Commands that are typed elsewhere or not at all: the test that runs the same, or the reason."""
NAMED = {
    "fleet ...": "any of them",
    "fleet coordinate": "tests/fleet/cli/test_coordinate.py",
    "fleet evidence export": "tests/fleet/cli/test_evidence.py",
    "fleet evidence keys revoke": "tests/fleet/cli/test_keys.py",
    "fleet evidence losses": "tests/fleet/cli/test_losses.py",
    "fleet schema": "tests/fleet/cli/test_schema.py",
    "fleet store init": "tests/fleet/cli/test_store.py",
    "fleet tag": "tests/fleet/cli/test_tag.py",
    "fleet uninstall --apply": "tests/fleet/cli/test_uninstall.py",
    "helm rollback": "the failed release that it is for is not made",
    "make bench": "a benchmark",
    "make chaos": "tests/chaos",
    "make image": "tests/deploy/image/test_build.py",
    "make test-image": "tests/deploy/image/test_build.py",
    "make clean": "it takes away what runs the tests",
    "kubectl apply -f deploy/helm/fleetscrub/spelling/": "tests/e2e/test_spelling.py",
    "kubectl delete validating": "tests/e2e/test_account_policies.py",
    "kubectl explain raycluster": "no KubeRay here",
    "kubectl label namespace NAME fleetscrub.dev/governed-": "tests/e2e/test_admission.py",
    "kubectl --namespace fleetscrub port-forward": "it does not end by itself",
    "kubectl --namespace fleetscrub logs job/fleetscrub-uninstall": "a hook that failed",
    "kubectl describe pod": "a word of Kubernetes alone",
    "kubectl get node NODE": "a word of Kubernetes alone",
    "kubectl logs": "a word of Kubernetes alone",
}
"""Commands that a page names in a sentence alone, by how they begin, as in `ELSEWHERE`."""


def plain(command: str) -> str:
    """A command without its comment, with single blanks."""
    return " ".join(command.partition(" #")[0].split())


def typed(page: str, place: str) -> Iterator[Typed]:
    """What of a page is typed in a place, without what is typed elsewhere."""
    for block in document.typed(page):
        if block.place == place:
            left = tuple(one for one in block.commands if plain(one) not in ELSEWHERE)
            if left:
                yield Typed(block.page, place, left, block.output)
