"""What is closed in the kernel log of this boot, by accelerator, kept in the journal (case B58).

A decision of a person closes what was logged up to where the node had looked, a reset of ours what
came before it. Both are kept for one boot: the next one begins a log of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from fleet.core.model import BootId, Uuid
from fleet.devices.health.closures import EVERYTHING, RESET, Closures
from fleet.devices.health.readings import LogPlace
from fleet.node.journal.journal import Commit, Journal

_KEY = "log-closures:"


def closed(journal: Journal, accelerator: Uuid, boot: BootId) -> Closures:
    """What is closed of an accelerator."""
    kept = _read(journal.meta.get(f"{_KEY}{accelerator}"), boot)
    return {word: LogPlace(*place) for word, place in kept.get("closed", {}).items()}


def close(
    commit: Commit, accelerator: Uuid, boot: BootId, codes: Iterable[str], place: LogPlace
) -> None:
    """Close what stands in the log up to `place`, for these reasons; no code: for all."""
    _close(commit, accelerator, boot, tuple(codes) or (EVERYTHING,), place)


def repair(commit: Commit, accelerator: Uuid, boot: BootId, place: LogPlace) -> None:
    """Close what a reset of the accelerator ends, up to `place`."""
    _close(commit, accelerator, boot, (RESET,), place)


def _close(
    commit: Commit, accelerator: Uuid, boot: BootId, words: Iterable[str], place: LogPlace
) -> None:
    kept = _read(commit.kept(f"{_KEY}{accelerator}"), boot).get("closed", {})
    told = {**kept, **dict.fromkeys(words, astuple(place))}
    value = json.dumps({"boot_id": boot, "closed": told})
    commit.set_meta(f"{_KEY}{accelerator}", value)


def _read(kept: str | None, boot: BootId) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(kept) if kept else {}
    return told if told.get("boot_id") == boot else {}
