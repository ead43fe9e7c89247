"""Writes whose answer never came: they may still land, and must not undo what was confirmed. Pure.

An update is guarded by the resourceVersion it was made from, so it is settled as soon as the slice
has another one, or is gone. While the slice still has that version the update may land at any time,
with older content: the pool is then written above its generation, which moves every version on.
A creation needs no record here: the next plan finds the slice, or writes above its generation, and
readers ignore what lands late.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.kube.base import Object, name_of, version_of


class Outstanding:
    """Updates sent without an answer, by slice name and the version they were made from."""

    def __init__(self) -> None:
        self._sent: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._sent)

    def add(self, body: Object) -> None:
        """Note that the answer to the update `body` did not come."""
        self._sent.add((name_of(body).name, version_of(body)))

    def settle(self, listed: Iterable[Object]) -> None:
        """Forget what can no longer land, by a listing made after the writes."""
        current = {(name_of(found).name, version_of(found)) for found in listed}
        self._sent &= current
