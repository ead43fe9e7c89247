"""The coordinator's loop over the claims of a cluster, for whichever process hosts it.

A step looks at the nodes every few seconds, whatever claims do, and at the claims that are due. The
loop never ends by itself: what keeps a step from working is told in the view and the log, and tried
again after a pause. Nothing here has to survive: a new process opens all of it again (case B42).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Protocol

from fleet.control.binding.object_cache import Cached
from fleet.control.binding.view import BindingView
from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.core.messages import NodeView, Right
from fleet.core.model import NO_TOKEN, Token, UnitId
from fleet.kube.rights import Rights

LOG = logging.getLogger(__name__)

PERIOD_S = 0.25
"""Period, s, of the step: far below the 5 s in which kube-scheduler polls its conditions."""
SURVEY_S = 2.0
"""Period, s, in which every node is looked at though no claim asks for it."""
PAUSE_MAX_S = 10.0
"""Longest pause, s, after steps that failed."""
SETTLED_S = 5.0
"""Time, s, for which steps have to end well before a refusal counts as over: one that leaves out
what was refused, because it is not due yet, mends nothing."""
RIGHTS_S = 10.0
"""Period, s, in which it is asked whether a right that was missing is granted by now."""
WRITERS = 8
"""Writes to the API at one time; the client's own budget paces them."""

__all__ = ["Binding", "BindingView", "Loop", "Reconciling", "Views"]

Views = Mapping[str, NodeView | errors.FleetError]


class Binding(Protocol):
    """What the loop drives; see `fleet.control.binding.service.Binder`."""

    def step(self, now: float) -> object: ...

    def saw(self, views: Views, now: float) -> object: ...

    def granted(self, now: float) -> object: ...

    @property
    def open_claims(self) -> int: ...

    @property
    def troubles(self) -> Mapping[str, str]: ...


class Surveyed(Protocol):
    """The nodes, as far as a survey asks them; see `fleet.rpc.nodes.Nodes`."""

    def names(self) -> Collection[str]: ...

    def views(self, asked: Mapping[str, Sequence[str]]) -> Views: ...


class Learning(Protocol):
    """Compares the store with what nodes have seen; see `fleet.control.coordinator.Coordinator`."""

    def learn(self, floors: Mapping[UnitId, Token]) -> None: ...


class Follower(Protocol):
    """What follows the nodes' state besides claims, such as quarantine leases."""

    def step(self, views: Views, now: float) -> object: ...


class SideBySide:
    """Does jobs in several threads and waits for all of them."""

    def __init__(self, threads: int = WRITERS) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="writes")

    def __call__(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Raises what a job raises, after all have ended."""
        begun = [self._pool.submit(job) for job in jobs]
        wait(begun)
        for done in begun:
            done.result()

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Reconciling:
    """Survey of the nodes, then the claims: one step of the loop. For one thread."""

    def __init__(
        self,
        binding: Binding,
        nodes: Surveyed,
        store: Learning,
        *,
        caches: Sequence[Cached] = (),
        followers: Mapping[str, Follower] | None = None,
        rights: Rights | None = None,
        closing: Sequence[Callable[[], None]] = (),
    ) -> None:
        """`caches` are started with `start`; the first one, the claims', must be complete before
        anything is done. `followers`, by what they do, get every survey. `rights`: of the account
        by which the API is asked; None: nobody notes what is refused."""
        self._binding = binding
        self._nodes = nodes
        self._store = store
        self._caches = tuple(caches)
        self._followers = dict(followers or {})
        self._rights = rights
        self._asked_at = float("-inf")
        self._failing: dict[str, str] = {}
        self._closing = tuple(closing)
        self._surveyed_at = float("-inf")
        self.silent: tuple[str, ...] = ()
        """Nodes that did not answer at the last survey."""
        self.foreign: Mapping[str, errors.FleetError] = {}
        """Nodes that follow another store: their devices get no lease from this one."""

    def refresh(self) -> None:
        """List everything once, for whoever starts no watches. Raises as `Cached.refresh`."""
        for cache in self._caches:
            cache.refresh()

    def start(self) -> None:
        """Begin to watch."""
        for cache in self._caches:
            cache.start()

    def step(self, now: float) -> None:
        """Look at the nodes if it is time to, then reconcile. `now`: seconds since the epoch.

        Raises `StoreBehind` where a node has seen tokens that the store never issued: nothing is
        done then, since the leases that are missing in it may be in force. Raises what `Binding`
        raises, and `ApiUnavailable` before all claims were told once.
        """
        if self._rights is not None and not 0.0 <= now - self._asked_at < RIGHTS_S:
            self._asked_at = now
            if self._rights.ask_again():
                self._binding.granted(now)
        for cache in self._caches[:1]:
            if not cache.synced:
                plural = cache.resource.plural
                raise errors.ApiUnavailable(
                    f"{plural} are not known yet: {cache.trouble or 'the first list is awaited'}"
                )
        views: Views | None = None
        if not 0.0 <= now - self._surveyed_at < SURVEY_S:
            views = self._survey(now)
            self._surveyed_at = now
        try:
            self._binding.step(now)
        finally:  # claims first: no lease waits for what follows the nodes otherwise
            for what, follower in self._followers.items() if views is not None else ():
                self._follow(what, follower, views or {}, now)

    @property
    def open_claims(self) -> int:
        """Claims that are kept an eye on."""
        return self._binding.open_claims

    @property
    def trouble(self) -> str:
        """What is wrong though steps end well; "" for nothing."""
        found = [cache.trouble for cache in self._caches if cache.trouble]
        found += [f"{node}: {error}" for node, error in sorted(self.foreign.items())]
        found += self._binding.troubles.values()
        found += [f"{what}: {error}" for what, error in self._failing.items()]
        return "; ".join(found)

    @property
    def missing(self) -> tuple[Right, ...]:
        """Rights that the account lacks."""
        return self._rights.missing if self._rights is not None else ()

    def close(self) -> None:
        """End watches and threads."""
        for cache in self._caches:
            cache.stop()
        for close in self._closing:
            close()

    def _survey(self, now: float) -> Views:
        views = self._nodes.views(dict.fromkeys(self._nodes.names(), ()))
        self.silent = tuple(
            sorted(node for node, view in views.items() if isinstance(view, errors.FleetError))
        )
        self._learn(views)
        self._binding.saw(views, now)
        return views

    def _follow(self, what: str, follower: Follower, views: Views, now: float) -> None:
        """What goes wrong with one follower is its own trouble: claims go on."""
        self._failing.pop(what, None)
        try:
            follower.step(views, now)
        except errors.StoreBehind:
            raise
        except errors.FleetError as error:
            self._failing[what] = str(error)
        except Exception as error:
            LOG.exception("%s failed", what)
            self._failing[what] = f"{type(error).__name__}: {error}"

    def _learn(self, views: Views) -> None:
        """One look into the store for all nodes of an epoch; only foreign ones are told apart."""
        alike: dict[int, dict[str, Mapping[UnitId, Token]]] = {}
        for node, view in views.items():
            if not isinstance(view, errors.FleetError) and (floors := _floors(view)):
                alike.setdefault(max(floors.values()).epoch, {})[node] = floors
        if not alike:
            self._store.learn({})  # no floor to tell: that the store answers is seen all the same
        foreign: dict[str, errors.FleetError] = {}
        for nodes in alike.values():
            if self._refusal([*nodes.values()]) is not None:
                told = {node: self._refusal([floors]) for node, floors in nodes.items()}
                foreign |= {node: error for node, error in told.items() if error is not None}
        self.foreign = foreign

    def _refusal(self, floors: Sequence[Mapping[UnitId, Token]]) -> errors.EpochForeign | None:
        """Tell the store what nodes have seen; None: it follows."""
        together: dict[UnitId, Token] = {}
        for one in floors:
            together |= {unit: max(f, together.get(unit, f)) for unit, f in one.items()}
        try:
            self._store.learn(together)
        except errors.EpochForeign as error:
            return error
        return None


def _floors(view: NodeView) -> Mapping[UnitId, Token]:
    floors: dict[UnitId, Token] = {}
    for device in view.devices:
        floor = Token.parse(device.floor)
        if floor > NO_TOKEN:
            floors |= {
                UnitId(unit): max(floor, floors.get(UnitId(unit), floor)) for unit in device.units
            }
    return floors


Opener = Callable[[], Reconciling]


class Loop:
    """Runs the step again and again in a thread, and says how it goes."""

    def __init__(
        self,
        opener: Opener,
        *,
        clock: Clock | None = None,
        period_s: float = PERIOD_S,
        selecting: str = "",
    ) -> None:
        """`opener` builds what is stepped, without starting it; tried again while it fails.

        `selecting` is for the view: whose claims it decides about.
        """
        self._opener = opener
        self._clock = clock or SystemClock()
        self._period_s = period_s
        self._opened: Reconciling | None = None
        self._failures = 0
        self._refused_at = float("-inf")
        self._lock = threading.Lock()
        self._view = BindingView(nodes=selecting)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def view(self) -> BindingView:
        """How it stands. Waits for nothing."""
        with self._lock:
            return self._view

    def start(self) -> None:
        """Run in a daemon thread."""
        self._thread = threading.Thread(target=self.run, name="binding", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Run in this thread until `stop`."""
        try:
            while not self._stopped.wait(self.turn()):
                pass
        finally:
            self._drop()

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End after the step under way, waiting up to `timeout_s` seconds for it."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def turn(self) -> float:
        """One step; the pause after it, s. Raises nothing."""
        began = self._clock.monotonic()
        try:
            if self._opened is None:
                opened = self._opener()
                opened.start()
                self._opened = opened
            self._opened.step(self._clock.now())
        except errors.FleetError as error:
            if error.fields.get("replaced"):
                self._drop()  # what is there now, or is put back later, is opened anew
            refused = isinstance(error.__cause__ or error, errors.ApiForbidden)
            return self._failed(str(error), refused=refused)
        except Exception as error:
            # The loop must go on for the other claims; the log names the fault.
            LOG.exception("a step of the coordinator failed")
            return self._failed(f"{type(error).__name__}: {error}")
        self._failures = 0
        ended, trouble = self._clock.monotonic(), self._opened.trouble
        if not trouble and ended - self._refused_at < SETTLED_S:
            trouble = self._view.trouble
        self._note(trouble=trouble, stepped_at=self._clock.now(), step_s=ended - began)
        return self._period_s

    def _drop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _failed(self, trouble: str, *, refused: bool = False) -> float:
        self._failures += 1
        if refused:
            self._refused_at = self._clock.monotonic()
        self._note(trouble=trouble)
        return min(PAUSE_MAX_S, self._period_s * 2.0 ** min(self._failures, 16))

    def _note(self, *, trouble: str, **figures: float) -> None:
        before = self._view
        since = before.trouble_since if trouble and before.trouble else self._clock.now()
        opened = self._opened
        with self._lock:
            self._view = before.model_copy(
                update={
                    **figures,
                    "open_claims": opened.open_claims if opened else 0,
                    "silent_nodes": opened.silent if opened else (),
                    "missing": opened.missing if opened else (),
                    "trouble": trouble,
                    "trouble_since": since if trouble else 0.0,
                }
            )
        first = bool(self._view.stepped_at and not before.stepped_at and not trouble)
        if trouble != before.trouble or first:
            LOG.warning("%s", trouble or "claims are reconciled")
