"""Runs one wipe over a back end's memory and tells the whole story.

Order of work: readings, holders, allocate all, fill, verify with one seeded error in it, put the
word back and read it again, zero, verify zero, holders, readings. The seeded error makes the full
verify pass its own self-test: it proves that this pass reports a word that differs. That nothing
was skipped is shown by the verifier's own count of what it compared, where it has one (F85). That
reads come from memory and not from a cache follows from the size of both, and is proven for no
single word.

Where a back end cannot reach memory (`CanScrubByReset`) a reset takes the place of the passes, and
nothing is written or read back; the result says which it was.

Trouble with the device is a result, never an exception: the caller is a process of its own whose
death means something else. The session is closed whatever happens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fleet.core.clock import Clock
from fleet.core.errors import DeviceLost, FleetError
from fleet.core.model import Accelerator, Process, ProcessKind
from fleet.devices.base import (
    Backend,
    CanScrubByReset,
    CountsCompared,
    Coverage,
    FindsOne,
    MemorySession,
    Mismatch,
    Progress,
    ResetScrub,
    TellsMore,
    TimesItself,
)
from fleet.devices.health.readings import Readings, risen
from fleet.devices.wipe import plan
from fleet.devices.wipe.plan import PASSES_OVER_MEMORY, WORD_BYTES, WipeOrder
from fleet.devices.wipe.result import Failure, Kind, Pass, WipeResult

HOLDERS_EVERY_S = 0.5
SHOWN_MISMATCHES = 16
Report = Callable[[str, int, int], None]
"""Called often with (phase, bytes done over all passes, bytes of all passes)."""


class _Failed(Exception):
    """Ends the run; carries what the result says."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail


@dataclass(slots=True)
class _Story:
    """What is known so far; becomes the result."""

    order: WipeOrder
    started_at: float
    coverage: Coverage = field(default_factory=lambda: Coverage(0, 0, 0))
    passes: list[Pass] = field(default_factory=list)
    self_test_passed: bool = False
    pattern: str = ""
    mismatches: list[Mismatch] = field(default_factory=list)
    before: Readings | None = None
    under_load: Readings | None = None
    after: Readings | None = None
    holders: dict[int, Process] = field(default_factory=dict)
    kind: Kind = Kind.MEMORY
    scrub: ResetScrub | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """What the session says of itself."""


def run(order: WipeOrder, backend: Backend, clock: Clock, report: Report) -> WipeResult:
    """Wipe as ordered. Never raises for device trouble; `WipeResult.verified` is the verdict."""
    engine = _Engine(order, backend, clock, report)
    failure, detail = engine.failure()
    story = engine.story
    return WipeResult(
        accelerator=order.accelerator,
        units=order.units,
        started_at=story.started_at,
        ended_at=clock.now(),
        failure=failure,
        detail=detail,
        coverage=story.coverage,
        passes=tuple(story.passes),
        self_test_passed=story.self_test_passed,
        pattern=story.pattern,
        nonce_sha256=hashlib.sha256(bytes.fromhex(order.nonce)).hexdigest(),
        mismatches=tuple(story.mismatches[:SHOWN_MISMATCHES]),
        mismatched_bytes=sum(found.length_bytes for found in story.mismatches),
        before=story.before,
        under_load=story.under_load,
        after=story.after,
        holders=tuple(story.holders[pid] for pid in sorted(story.holders)),
        extra={
            **story.extra,
            **order.extra,
            "device": order.device,
            "worker": order.worker_id,
        },
        kind=story.kind,
        scrub=story.scrub,
    )


class _Engine:
    """One run."""

    def __init__(self, order: WipeOrder, backend: Backend, clock: Clock, report: Report) -> None:
        self.story = _Story(order, clock.now())
        if isinstance(backend, CanScrubByReset):
            self.story.kind = Kind.RESET
        self._order = order
        self._backend = backend
        self._clock = clock
        self._report = report
        self._nonce = bytes.fromhex(order.nonce)
        self._looked = 0.0
        self._aside_s = 0.0
        self._session: MemorySession | None = None

    def failure(self) -> tuple[Failure | None, str]:
        """Run to the end; (None, "") when every step succeeded."""
        try:
            self._wipe()
        except _Failed as failed:
            self._look_again()
            return failed.failure, failed.detail
        except DeviceLost as error:
            return Failure.LOST, error.detail
        except FleetError as error:
            self._look_again()
            return Failure.BACKEND, error.detail
        except (OSError, MemoryError, ValueError, ArithmeticError) as error:
            self._look_again()
            return Failure.BACKEND, f"{type(error).__name__}: {error}"
        return None, ""

    def _wipe(self) -> None:
        self._check_identity()
        self.story.before = self._readings()
        self._look_at_holders()
        if isinstance(self._backend, CanScrubByReset):
            self._scrub_by_reset(self._backend)
        else:
            session = self._backend.session(self._order.accelerator, self._order.units)
            self._session = session
            try:
                self._passes(session)
            finally:
                if isinstance(session, TellsMore):
                    self.story.extra = dict(session.extra())
                session.close()
        self._look_at_holders()
        self.story.after = self._readings()
        self._compare_counters(self.story.before, self.story.after)

    def _check_identity(self) -> None:
        """The device opened must be the device ordered, by UUID and units (case B13)."""
        order = self._order
        for accelerator in self._looked_up():
            if accelerator.uuid != order.accelerator:
                continue
            for device in accelerator.devices:
                if device.uuid == order.device and set(device.units) == set(order.units):
                    return
        raise _Failed(
            Failure.BACKEND,
            f"{order.device} with units {', '.join(order.units)} is not on {order.accelerator};"
            " nothing was written",
        )

    def _looked_up(self) -> Sequence[Accelerator]:
        """The accelerator, and the others only where the back end knows no other way (B29)."""
        if isinstance(self._backend, FindsOne):
            return (self._backend.accelerator(self._order.accelerator),)
        return self._backend.inventory()

    def _scrub_by_reset(self, backend: CanScrubByReset) -> None:
        """All that can be done where memory cannot be reached."""
        total = sum(
            unit.size_bytes
            for accelerator in self._backend.inventory()
            for unit in accelerator.units
            if unit.id in self._order.units
        )
        self.story.coverage = Coverage(total, 0, 0)
        self._report("reset", 0, 0)
        scrub = backend.scrub_by_reset(self._order.accelerator)
        self.story.scrub = scrub
        for process in (*scrub.before, *scrub.after):
            self.story.holders[process.pid] = process
        if scrub.problem or not scrub.performed:
            raise _Failed(Failure.BACKEND, scrub.problem or "the device was not reset")

    def _passes(self, session: MemorySession) -> None:
        story, order = self.story, self._order
        story.pattern = session.pattern_name
        self._report("allocate", 0, 0)
        story.coverage = session.allocate(
            largest_bytes=order.chunk_largest_bytes, smallest_bytes=order.chunk_smallest_bytes
        )
        problem = plan.coverage_problem(story.coverage, order.coverage_floor)
        if problem:
            raise _Failed(Failure.COVERAGE, problem)
        self._judge_slow(self._timed("fill", lambda step: session.fill(self._nonce, step)))
        self._verify(session)
        self._judge_slow(self._timed("zero", session.zero))
        left: list[Mismatch] = []
        slow = self._timed("verify-zero", lambda step: left.extend(session.verify_zero(step)))
        self._require_compared(session)
        self._refuse(left, "memory was not zero after zeros were written")
        self._judge_slow(slow)

    def _verify(self, session: MemorySession) -> None:
        """The full verify pass, with one seeded error that it must find, and nothing else."""
        offset = _seeded_offset(self._nonce, self.story.coverage.covered)
        stretch = (offset, WORD_BYTES)
        put_back = session.disturb(offset)
        found: list[Mismatch] = []
        own_clock = isinstance(session, TimesItself)
        slow = self._timed(
            "verify",
            lambda step: found.extend(session.verify(self._nonce, step)),
            None if own_clock else session,
        )
        if own_clock:
            self.story.under_load = session.readings()
        self._require_compared(session)
        seeded = session.verify(self._nonce, _silent, within=stretch)
        put_back()
        if any(not seen.located for seen in found):
            # More than can be listed, so the seeded word may be among the rest: not the verifier's.
            self._refuse(found, "memory did not read back as the pattern written")
        if len(seeded) != 1 or not any(_contains(seen, seeded[0]) for seen in found):
            raise _Failed(
                Failure.VERIFIER,
                f"the word disturbed at offset {offset} was not found by the verifier"
                f" ({len(found)} mismatches in all, {len(seeded)} at that word)",
            )
        self.story.self_test_passed = True
        others = [seen for seen in found if seen != seeded[0]]
        again = session.verify(self._nonce, _silent, within=stretch)
        self._refuse([*others, *again], "memory did not read back as the pattern written")
        self._judge_slow(slow)

    def _require_compared(self, session: MemorySession) -> None:
        """The pass looked at all that is covered, by the verifier's own count where it has one."""
        covered = self.story.coverage.covered
        if isinstance(session, CountsCompared) and session.compared_bytes() != covered:
            raise _Failed(
                Failure.VERIFIER,
                f"the verifier looked at {session.compared_bytes()} of {covered} B",
            )

    def _refuse(self, mismatches: Sequence[Mismatch], text: str) -> None:
        if not mismatches:
            return
        self.story.mismatches = list(mismatches)
        first = mismatches[0]
        raise _Failed(
            Failure.MISMATCH,
            f"{text}: {sum(found.length_bytes for found in mismatches)} B in {len(mismatches)}"
            f" places, the first at offset {first.offset_bytes} of {first.unit}",
        )

    def _timed(
        self, name: str, act: Callable[[Progress], None], loaded: MemorySession | None = None
    ) -> str:
        """One pass; why it was too slow, or "": judged by the caller, after what the pass found (to
        count differences takes time, so memory that is all wrong is slow as well).

        With `loaded`, readings are taken once half of it is done. Sessions with a clock of their
        own are read after the pass: the device would wait for us, and its clock would run on.
        """
        covered = self.story.coverage.covered
        earlier = len(self.story.passes) * covered
        total = PASSES_OVER_MEMORY * covered
        started, aside = self._clock.monotonic(), self._aside_s

        def took() -> float:
            return self._clock.monotonic() - started - (self._aside_s - aside)

        def step(done: int) -> None:
            self._judge_slow(self._slow(name, done, took()))
            if loaded and self.story.under_load is None and done * 2 >= covered:
                with self._aside():
                    self.story.under_load = loaded.readings()
            if self._clock.monotonic() - self._looked >= HOLDERS_EVERY_S:
                self._look_at_holders()
            self._report(name, earlier + done, total)

        self._report(name, earlier, total)
        act(step)
        seconds, on_device = took(), self._device_seconds()
        self.story.passes.append(Pass(name, covered, on_device or seconds))
        problem = plan.slow_on_device(self._order, covered, on_device) if on_device else ""
        return self._slow(name, covered, seconds) or (f"{name}: {problem}" if problem else "")

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """What is done in here is no part of a pass, though it is done during one."""
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._aside_s += self._clock.monotonic() - began

    def _device_seconds(self) -> float | None:
        """Time of the pass by the device's own clock, which is the one to be certified."""
        session: object = self._session
        return session.device_seconds() if isinstance(session, TimesItself) else None

    def _slow(self, name: str, done: int, seconds: float) -> str:
        """Why a pass is too slow by the host's clock, or ""."""
        problem = plan.slow_problem(self._order, done, seconds)
        return f"{name}: {problem}" if problem else ""

    def _judge_slow(self, problem: str) -> None:
        if problem:
            raise _Failed(Failure.SLOW, problem)

    def _look_at_holders(self) -> None:
        """Every other process on the device; infrastructure may stay, nobody else."""
        with self._aside():
            seen = self._backend.processes(self._order.device)
        self._looked = self._clock.monotonic()
        strangers = []
        for process in seen:
            if process.pid == os.getpid():
                continue
            self.story.holders[process.pid] = process
            if process.kind is not ProcessKind.INFRASTRUCTURE:
                strangers.append(process)
        if strangers:
            names = ", ".join(
                f"{found.name} (pid {found.pid or 'unknown'}, {found.kind})" for found in strangers
            )
            raise _Failed(Failure.HOLDER, f"the device was opened by {names}")

    def _readings(self) -> Readings:
        found = self._backend.readings(self._order.accelerator)
        problem = plan.unread(found)
        if problem:
            raise _Failed(Failure.BACKEND, f"counters could not be read: {problem}")
        return found

    def _compare_counters(self, before: Readings, after: Readings) -> None:
        problem = plan.shrunk(before, after)
        if problem:
            raise _Failed(
                Failure.BACKEND, f"counters got smaller, so one of the readings is wrong: {problem}"
            )
        rose = {
            name: change
            for name, change in risen(before, after).items()
            if name not in plan.JUDGED_BY_POLICY
        }
        if rose:
            text = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in rose.items())
            raise _Failed(Failure.COUNTERS, f"fault counters rose during the wipe: {text}")

    def _look_again(self) -> None:
        """After a failure: readings for the record, as far as the device still answers."""
        if self.story.before is None or self.story.after is not None:
            return
        try:
            self.story.after = self._backend.readings(self._order.accelerator)
        except (FleetError, OSError):
            self.story.after = None


def _seeded_offset(nonce: bytes, covered: int) -> int:
    """The word the self-test disturbs: anywhere in what is covered, known only from the nonce."""
    seed = int.from_bytes(hashlib.sha256(b"self-test" + nonce).digest()[:16], "big")
    return seed % (covered // WORD_BYTES) * WORD_BYTES


def _contains(outer: Mismatch, inner: Mismatch) -> bool:
    return (
        outer.unit == inner.unit
        and outer.offset_bytes <= inner.offset_bytes
        and inner.offset_bytes + inner.length_bytes <= outer.offset_bytes + outer.length_bytes
    )


def _silent(_done: int) -> None:
    """Progress nobody needs: one word."""
