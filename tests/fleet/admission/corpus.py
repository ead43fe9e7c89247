"""The corpus: manifests with what is expected of each, in tests/corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fleet.admission.documents import Document, documents
from fleet.admission.rules import LINT_ONLY
from fleet.kube.shapes import mapping, text

ROOT = Path(__file__).parent.parent.parent / "corpus"
EXPECT = "fleetscrub.dev/expect"
REQUESTER = "fleetscrub.dev/requester"
OFFLINE = "fleetscrub.dev/offline"
"""Why no server would take it as it is, whatever the policies say."""


@dataclass(frozen=True)
class Case:
    """One manifest."""

    file: str
    document: Document

    @property
    def name(self) -> str:
        """Kind and name, as test ids carry it."""
        metadata = mapping(self.document.value, "metadata")
        labels = text(mapping(metadata, "labels"), "corpus")
        suffix = f"-{labels}" if labels else ""
        return f"{self.file}-{self.document.value['kind']}-{text(metadata, 'name')}{suffix}"

    def said(self, annotation: str) -> str:
        """What an annotation of the corpus says, "" without it."""
        metadata = mapping(self.document.value, "metadata")
        return text(mapping(metadata, "annotations"), annotation)

    @property
    def expected(self) -> set[str]:
        """Ids of the rules it breaks."""
        return set(self.said(EXPECT).split())

    @property
    def refused(self) -> set[str]:
        """Those of them that admission can tell."""
        return self.expected - LINT_ONLY


def cases() -> list[Case]:
    """All of them, file by file."""
    found = []
    for path in sorted(ROOT.glob("*.yaml")):
        for document in documents(path.read_text()):
            assert isinstance(document, Document), f"{path}: {document}"
            found.append(Case(path.stem, document))
    return found
