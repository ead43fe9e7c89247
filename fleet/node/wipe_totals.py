"""Keeps what the node's wipes have come to, in its journal.

A certified wipe is counted in the transaction that makes its device clean, so that the sum and the
state never differ. One that ends otherwise is counted just after: a crash between the two loses it
for the sum, and nothing is decided by that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from fleet.core import errors
from fleet.core.messages import ByteFigures, DeviceResult, Outcome, Tally
from fleet.core.model import State
from fleet.devices.wipe.result import WipeResult
from fleet.node import tallies
from fleet.node.journal.journal import Commit
from fleet.node.registry import Registry
from fleet.node.tasks import WipeTask

LOG = logging.getLogger(__name__)
KEY = "tally"
"""The journal's word for it."""


def read(meta: Mapping[str, str]) -> Tally:
    """The tally as the journal has it; one that cannot be read begins anew."""
    try:
        return Tally.model_validate_json(meta.get(KEY, "{}"))
    except ValidationError:
        LOG.warning("the tally of the wipes cannot be read: it begins anew")
        return Tally()


def certified(registry: Registry, task: WipeTask, wipe: WipeResult) -> Callable[[Commit], None]:
    """What counts this wipe, for the transaction that makes its device clean."""

    def count(commit: Commit) -> None:
        since = task.work.dirty_since
        dirty_s = None if since is None else registry.clock.now() - since
        figures = ByteFigures(
            total=wipe.coverage.total,
            reserved=wipe.coverage.reserved,
            covered=wipe.coverage.covered,
        )
        before = _before(commit)
        _put(commit, tallies.certified(before, figures, seconds=wipe.seconds, dirty_s=dirty_s))

    return count


def counted(
    registry: Registry, task: WipeTask, perform: Callable[[WipeTask], DeviceResult]
) -> DeviceResult:
    """The result of `perform`, counted if the wipe began to write and has no certificate."""
    dirty = [unit.since for unit in registry.units(task.device) if unit.state is State.DIRTY]
    task.work.dirty_since = min(dirty, default=None)
    result = perform(task)
    if not task.work.progress.started_at or result.outcome is Outcome.CERTIFIED:
        return result
    try:
        with registry.commit() as commit:
            _put(commit, tallies.ended(_before(commit), result.outcome))
    except errors.FleetError as error:
        LOG.warning("one wipe is missing in the tally: %s", error)
    return result


def _before(commit: Commit) -> Tally:
    return read({KEY: commit.kept(KEY) or "{}"})


def _put(commit: Commit, tally: Tally) -> None:
    commit.set_meta(KEY, tally.model_dump_json())
