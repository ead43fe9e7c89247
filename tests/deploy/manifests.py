"""The manifests under deploy/, read."""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped] # ships no types

from fleet.kube.base import Object

ROOT = Path(__file__).parent.parent.parent / "deploy"
FILES = sorted((ROOT / "kubernetes").glob("*.yaml"))


def objects(*names: str) -> list[Object]:
    """All objects of these files, or of every file."""
    chosen = [path for path in FILES if not names or path.name in names]
    return [found for path in chosen for found in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> list[Object]:
    """All objects of one kind."""
    return [found for found in objects() if found["kind"] == kind]
