"""Faults of an API server on request: errors, lost answers, absence. Deterministic; safe for
threads. Of the twin in memory; `http_faults` are those of the server."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable

from fleet.core.errors import ApiUnavailable, FleetError

VERBS = ("get", "list", "watch", "create", "replace", "apply", "patch", "delete")


class Faults:
    """What goes wrong next. `offline` refuses every call until it is set back."""

    def __init__(self) -> None:
        """Nothing goes wrong."""
        self.offline = False
        self._lock = threading.Lock()
        self._failures: defaultdict[str, deque[FleetError]] = defaultdict(deque)
        self._lost: defaultdict[str, int] = defaultdict(int)
        self._actions: defaultdict[str, deque[Callable[[], object]]] = defaultdict(deque)

    def fail_next(self, verb: str, error: FleetError, *, times: int = 1) -> None:
        """The next `times` calls of `verb` raise `error` and change nothing."""
        with self._lock:
            self._failures[_known(verb)].extend([error] * times)

    def lose_answer_next(self, verb: str, *, times: int = 1) -> None:
        """The next `times` calls of `verb` are carried out, then raise `ApiUnavailable`."""
        with self._lock:
            self._lost[_known(verb)] += times

    def before_next(self, verb: str, action: Callable[[], object]) -> None:
        """Run `action` right before the next call of `verb`: somebody else was faster."""
        with self._lock:
            self._actions[_known(verb)].append(action)

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        with self._lock:
            self.offline = False
            self._failures.clear()
            self._lost.clear()
            self._actions.clear()

    def before(self, verb: str) -> None:
        """What happens before a call is carried out. Raises what was asked for."""
        with self._lock:
            action = self._actions[verb].popleft() if self._actions[verb] else None
        if action is not None:
            action()
        with self._lock:
            if self.offline:
                raise ApiUnavailable(f"{verb}: the API server is offline")
            failure = self._failures[verb].popleft() if self._failures[verb] else None
        if failure is not None:
            raise failure

    def after(self, verb: str) -> None:
        """What happens after it was carried out. Raises `ApiUnavailable` for a lost answer."""
        with self._lock:
            if self._lost[verb]:
                self._lost[verb] -= 1
                raise ApiUnavailable(f"{verb}: the connection broke before the answer arrived")


def _known(verb: str) -> str:
    if verb not in VERBS:
        raise ValueError(f"{verb!r} is no verb of the port: {', '.join(VERBS)}")
    return verb
