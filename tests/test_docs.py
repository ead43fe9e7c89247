"""Documents that are generated are fresh."""

from __future__ import annotations

from tests.docs import generated


def test_generated_documents_are_fresh() -> None:
    """Diagrams, verbs and settings in the documents are those of the code; `make docs` mends it."""
    stale = [path.name for path, text in generated().items() if path.read_text() != text]
    assert stale == []
