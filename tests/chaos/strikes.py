"""Dying at an exact moment: counts durable acts of this process and kills at the chosen one.

Nothing of the product is changed. Python's own audit events tell of every file that is opened for
writing, renamed, linked or removed and of every process started; SQLite's trace tells of every
statement before it runs. Only the ledger, which keeps one file open, is wrapped. None of this can
be taken back: used only in a process that is about to die.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fleet.core.model import Digest, UnitId
from fleet.evidence.ledger import Ledger, LedgerHead
from fleet.evidence.segments import segment_paths
from tests.chaos.story import Point, Side, Strike, Victim

_CHANGES = frozenset({"os.rename", "os.link", "os.remove"})
_WRITING = os.O_WRONLY | os.O_RDWR


class Striker:
    """The strikes of one life. `told` is a pipe to whoever watches; one line for each strike."""

    def __init__(self, strikes: Sequence[Strike], state: Path, told: int) -> None:
        self._strikes = list(strikes)
        self._state = str(state)
        self._told = told
        self._mutex = threading.Lock()
        self._counts: Counter[Point] = Counter()
        self._local = threading.local()
        self._owed = 0

    def arm(self) -> None:
        """Begin to count. For the rest of this process's life."""
        sys.addaudithook(self._heard)
        connect = sqlite3.connect

        def connected(database: str, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(database, **options)
            self._follow(connection, database)
            return connection

        vars(sqlite3)["connect"] = connected

    def renew(self, strikes: Sequence[Strike]) -> None:
        """Forget what was to be struck, and count from here to what is now."""
        with self._mutex:
            self._strikes = list(strikes)
            self._counts.clear()

    @property
    def counts(self) -> dict[str, int]:
        """What has been counted so far."""
        return {str(point): count for point, count in sorted(self._counts.items())}

    def begins(self, point: Point) -> int:
        """Count one act that is about to happen; returns its number."""
        with self._mutex:
            self._counts[point] += 1
            number = self._counts[point]
        self.reached(point, number, Side.BEFORE)
        return number

    def reached(self, point: Point, number: int, side: Side) -> None:
        """Strike whatever is due on this side of act `number`."""
        for strike in self._due(point, number, side):
            self.strike(strike)

    def tears(self, number: int) -> bool:
        """Whether append `number` to the ledger is torn."""
        return bool(self._due(Point.LEDGER, number, Side.TORN))

    def _due(self, point: Point, number: int, side: Side) -> list[Strike]:
        with self._mutex:
            return [s for s in self._strikes if (s.point, s.side, s.count) == (point, side, number)]

    def passed(self, point: Point, at: float) -> None:
        """Strike what was to happen at or before `at`."""
        with self._mutex:
            due = [s for s in self._strikes if s.point is point and s.at <= at]
        for strike in due:
            self.strike(strike)

    def strike(self, strike: Strike) -> None:
        """Kill now. A worker that does not exist yet dies as soon as `collect` finds one."""
        with self._mutex:
            if strike not in self._strikes:
                return
            self._strikes.remove(strike)
        if strike.victim is Victim.SERVICE:
            os.write(self._told, f"struck {strike}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        with self._mutex:
            self._owed += 1
        self.collect()

    def collect(self) -> None:
        """Kill the workers that are owed, if there are any."""
        with self._mutex:
            if not self._owed:
                return
            victims = _workers()[: self._owed]
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self._owed -= 1
                os.write(self._told, f"struck a worker, pid {pid}\n".encode())

    # --- what is heard ---

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self._act(Point.SPAWN)
            return
        if event == "http.client.send":
            self._act(Point.REQUEST)
            return
        changes = event in _CHANGES or (event == "open" and arguments[2] & _WRITING)
        if changes and self._state in str(arguments[0]):
            self._act(Point.FILE)

    def _follow(self, connection: sqlite3.Connection, path: str) -> None:
        if self._state not in path:
            return
        point = Point.STORE if "store.db" in path else Point.JOURNAL

        def traced(statement: str) -> None:
            self._act(Point.STATEMENT)
            if statement == "COMMIT":
                self._act(point)

        connection.set_trace_callback(traced)

    def _act(self, point: Point) -> None:
        """An act of this thread begins; so the last one it began is over."""
        last: tuple[Point, int] | None = getattr(self._local, "last", None)
        if last is not None and last[0] is not Point.STATEMENT:
            self.reached(*last, Side.AFTER)
        self._local.last = (point, self.begins(point))


class StruckLedger:
    """A ledger around whose `append` a strike may fall."""

    def __init__(self, ledger: Ledger, striker: Striker) -> None:
        self._ledger = ledger
        self._striker = striker

    def append(self, envelope: bytes) -> Digest:
        """As `Ledger.append`."""
        number = self._striker.begins(Point.LEDGER)
        if self._striker.tears(number):
            self._tear(envelope)
            self._striker.reached(Point.LEDGER, number, Side.TORN)
        digest = self._ledger.append(envelope)
        self._striker.reached(Point.LEDGER, number, Side.AFTER)
        return digest

    def heads(self) -> dict[UnitId, Digest]:
        """As `Ledger.heads`."""
        return self._ledger.heads()

    def sequences(self) -> dict[UnitId, int]:
        """As `Ledger.sequences`."""
        return self._ledger.sequences()

    def head(self) -> LedgerHead:
        """As `Ledger.head`."""
        return self._ledger.head()

    def close(self) -> None:
        """As `Ledger.close`."""
        self._ledger.close()

    def _tear(self, envelope: bytes) -> None:
        """Leave the first half of a line, where the whole one would have come."""
        directory = self._ledger.directory
        directory.mkdir(exist_ok=True)
        paths = segment_paths(directory)
        path = paths[-1] if paths else directory / f"{1:012d}.jsonl"
        with path.open("ab") as file:
            file.write(b'{"chain":"' + b"0" * 64 + b'","entry":' + envelope[: len(envelope) // 2])


def _workers() -> list[int]:
    """Pids of the wipe workers this process has started and that still live."""
    mine = os.getpid()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
        if int(parent) == mine and state not in "ZX" and b"fleet.devices.wipe.worker" in command:
            found.append(int(entry.name))
    return sorted(found)
