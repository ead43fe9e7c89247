"""Single flight per claim: one operation at a time, which repeated calls join.

A flight runs on a thread of its own and outlives the call that started it, so that a cancelled or
timed-out call never cuts device work in half (case B03).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.core import errors, logs
from fleet.core.claim_states import ClaimEvent
from fleet.core.messages import ClaimAnswer
from fleet.core.model import ClaimUid
from fleet.node.registry import Work


@dataclass
class Flight:
    """One operation of one claim in work."""

    kind: ClaimEvent
    cancel: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    works: list[Work] = field(default_factory=list)
    answer: ClaimAnswer | None = None
    error: errors.FleetError | None = None

    def stop(self) -> None:
        """Ask the flight and its wipes to end."""
        self.cancel.set()
        for work in list(self.works):
            work.cancel.set()

    def take(self, work: Work) -> None:
        """Own a wipe, so that `stop` reaches it, also when `stop` was called just before."""
        self.works.append(work)
        if self.cancel.is_set():
            work.cancel.set()

    def wait(self, uid: ClaimUid, budget_s: float) -> ClaimAnswer:
        """The answer, or its error; `DeviceBusy` when the budget is used up first."""
        if not self.done.wait(budget_s):
            raise errors.DeviceBusy(
                f"{self.kind} of claim {uid} takes longer than {budget_s:.0f} s",
                remedy="the work goes on; the repeated call joins it",
            )
        if self.error is not None:
            raise self.error
        assert self.answer is not None  # noqa: S101 - a flight ends with one or the other
        return self.answer


@dataclass
class Flights:
    """The flights in work, by claim. Hold `lock` to decide and launch in one go."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    _flights: dict[ClaimUid, Flight] = field(default_factory=dict)
    _closed: bool = False

    def get(self, uid: ClaimUid) -> Flight | None:
        """The flight of a claim, if one is in work."""
        with self.lock:
            return self._flights.get(uid)

    def flying(self) -> Sequence[Flight]:
        """All flights in work."""
        with self.lock:
            return list(self._flights.values())

    def launch(
        self, uid: ClaimUid, kind: ClaimEvent, body: Callable[[Flight], ClaimAnswer]
    ) -> Flight:
        """Start `body` for a claim that has no flight in work. Raises `NotOwner` once closed."""
        flight = Flight(kind)

        def fly() -> None:
            try:
                with logs.about(claim=uid):
                    flight.answer = body(flight)
            except errors.FleetError as error:
                flight.error = error
            except BaseException as error:  # noqa: BLE001 - a waiting call must get an answer
                flight.error = errors.BackendFailed(f"{kind} of claim {uid} failed: {error!r}")
            finally:
                with self.lock:
                    self._flights.pop(uid, None)
                flight.done.set()

        with self.lock:
            if self._closed:
                raise errors.NotOwner(f"{kind} of claim {uid}: this service is handing over")
            self._flights[uid] = flight
            try:
                threading.Thread(target=fly, name=f"{kind} {uid}", daemon=True).start()
            except RuntimeError as error:
                del self._flights[uid]
                raise errors.BackendFailed(f"no thread for {kind} of {uid}: {error}") from error
        return flight

    def close(self) -> Sequence[Flight]:
        """Launch nothing more; ask the flights in work to end and return them."""
        with self.lock:
            self._closed = True
            flying = list(self._flights.values())
        for flight in flying:
            flight.stop()
        return flying
