"""Whether a coordinator lives and steps, as it says itself: a Lease that whoever asks can read.

The process that hosts a coordinator renews the Lease `fleetscrub-coordinator` in our namespace from
a thread of its own, so that one whose step hangs is told from one that is gone. What it knows of
itself is an annotation of the Lease; several that share the nodes have one each. Where its state
directory is it leaves one line there too, by which the pod it runs in is Ready or not.

Whether it steps is judged by its own clock alone, and whether it is gone by looking twice: clocks
that differ, or are set, make nobody late (B49). What cannot be read is unknown, and never good.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fleet.control.binding.view import BindingView
from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.core.messages import Message, Moment
from fleet.evidence import dsse, layout
from fleet.kube.base import LEASES, Cluster, Name, Object, PatchKind, object_in
from fleet.kube.rights import Rights

LOG = logging.getLogger(__name__)
LEASE = "fleetscrub-coordinator"
"""Name of the Lease."""
KEY = "fleetscrub.dev/coordinator"
"""Annotation with what the coordinator of all nodes says; one of some has its own, see `key_of`."""
FILE = "standing"
"""File in the coordinator's directory: when it was written (s since the epoch), what is wrong."""
PERIOD_S = 5.0
"""Period, s, in which it is said."""
LATE_S = 30.0
"""Silence, or time without a step, s, that is too long: three of a coordinator's longest pauses."""
AGAIN_S = PERIOD_S + 3.0
"""Time, s, after which one that seems to be late is looked at again."""
START = "see the log of Ray's head and of the bridges, or start `fleet coordinate`"
GRANT = "grant the right to the account; deploy/ has the roles"


class Alive(Message):
    """One coordinator, as it said last. Times are seconds since the epoch, by its own clock."""

    pid: int
    host: str = ""
    """Pod or machine it runs on."""
    at: Moment
    began: Moment = 0.0
    binding: BindingView
    gone: bool = False
    """Whether it has said nothing since: it was looked at twice."""
    others: tuple[Alive, ...] = Field(default=(), exclude=True)
    """Those of other selections of nodes, where `read` found this one."""

    @property
    def of(self) -> str:
        """Whose claims it decides about, for a sentence; "" for all."""
        return f" of the nodes {self.binding.nodes}" if self.binding.nodes else ""

    @property
    def stepped_at(self) -> float:
        """Since when no step has ended well: the last one's end, else its start."""
        return self.binding.stepped_at or self.began

    @property
    def stands_s(self) -> float:
        """How long it has not stepped, s; 0.0 while it does."""
        late_s = self.at - self.stepped_at
        return late_s if late_s > LATE_S else 0.0

    def wrong(self, now: float) -> str:
        """Why it does not do all of its work, in words; "" where it does. `now`: the reader's."""
        if self.gone:
            return f"is gone: it last reported at {_when(self.at, now)}"
        why = f": {self.binding.trouble}" if self.binding.trouble else ""
        if self.stands_s and not self.binding.stepped_at:
            return f"has not stepped since its start at {_when(self.began, now)}{why}"
        if self.stands_s:
            return f"has not stepped since {_when(self.stepped_at, now)}{why}"
        if self.binding.missing:
            return f"lacks a right: {'; '.join(map(str, self.binding.missing))}"
        return ""


@dataclass(frozen=True, slots=True)
class Signs:
    """What a reader knows of the coordinator."""

    found: Alive | None = None
    """As it reported last; None: none has reported, or it is not known."""
    unknown: str = ""
    """Why it is not known; "" where it is."""


class Heartbeat:
    """Says how a coordinator stands, from a thread of its own, until it ends."""

    def __init__(
        self,
        view: Callable[[], BindingView],
        *,
        state: Path,
        cluster: Cluster | None,
        namespace: str,
        asked: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        """`view`: how its loop stands. `cluster` None: there is no API server to tell. `asked`:
        label selectors of all coordinators that the settings ask for; what others left is taken
        away. Nothing is written where `state` is not a directory here."""
        self._view = view
        self._directory = layout.coordinator_directory(state)
        self._rights = Rights(cluster) if cluster is not None else None
        self._name = Name(LEASE, namespace)
        self._asked = tuple(asked)
        self._clock = clock or SystemClock()
        self._began = self._clock.now()
        self._untold = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a daemon thread."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """A coordinator that ends in good order is not missed."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PERIOD_S)
        selecting = self._view().nodes
        with suppress(OSError):
            self._file(selecting).unlink(missing_ok=True)
        if self._rights is not None:
            with suppress(errors.FleetError):
                self._patch({"annotations": {key_of(selecting): None}}, {})

    def now(self) -> Alive:
        """How it stands."""
        view = self._view()
        if self._rights is not None and (mine := self._rights.missing):
            view = view.model_copy(update={"missing": (*view.missing, *mine)})
        return Alive(
            pid=os.getpid(),
            host=socket.gethostname(),
            at=self._clock.now(),
            began=self._began,
            binding=view,
        )

    def beat(self) -> None:
        """Say it once. Raises nothing."""
        told = self.now()
        self._leave(told)
        if self._rights is None:
            return
        metadata = {"annotations": {key_of(told.binding.nodes): told.model_dump_json()}}
        moment = datetime.fromtimestamp(told.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": f"{told.host}_{told.pid}",
            "leaseDurationSeconds": int(LATE_S),
            "renewTime": moment,
        }
        trouble = ""
        try:
            found = self._patch(metadata, spec)
            self._drop_former(found, told.at)
        except errors.FleetError as error:
            trouble = str(error)
        if self._rights.missing:
            self._rights.ask_again()
        if trouble and not self._untold:
            LOG.warning("nobody else can see whether this coordinator steps: %s", trouble)
        self._untold = trouble

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.beat()
            except Exception:  # what is wrong here must not be taken for a dead coordinator
                LOG.exception("the sign of life failed")
            self._stopped.wait(PERIOD_S)

    def _patch(self, metadata: Object, spec: Object) -> Object:
        if self._rights is None:
            return {}
        body: dict[str, Any] = {"metadata": metadata, "spec": spec}
        try:
            return self._rights.patch(LEASES, self._name, body, kind=PatchKind.MERGE)
        except errors.ApiNotFound:
            if not spec:
                return {}
        named = {"name": self._name.name, "namespace": self._name.namespace, **metadata}
        head = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": named}
        return self._rights.create(LEASES, {**head, "spec": spec})

    def _leave(self, told: Alive) -> None:
        """The line by which the pod is Ready: when, and what is wrong."""
        if not self._directory.is_dir():
            return
        wrong = told.wrong(told.at)
        if not told.stands_s and all(one.lesser for one in told.binding.missing):
            wrong = ""
        path = self._file(told.binding.nodes)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        words = f"the coordinator{told.of} {wrong}" if wrong else ""
        try:
            temporary.write_text(f"{int(told.at)} {' '.join(words.split())}\n")
            temporary.replace(path)
        except OSError as error:
            LOG.debug("the sign of life is not written: %s", error)

    def _file(self, selecting: str) -> Path:
        return self._directory / (FILE + _suffix(selecting))

    def _drop_former(self, found: Object, now: float) -> None:
        """Whoever ends an actor does not ask it to take its sign away; what is late, and asked for
        no more, goes. Who does not know all that are asked for leaves the others' alone."""
        selecting = self._view().nodes
        if selecting and not self._asked:
            return
        kept = {_suffix(one) for one in (*self._asked, selecting)}
        told = object_in(object_in(found.get("metadata")).get("annotations"))
        former = {
            key: None
            for key, text in told.items()
            if key.startswith(KEY)
            and key.removeprefix(KEY) not in kept
            and ((one := _parsed(text)) is None or now - one.at > LATE_S)
        }
        if former:
            self._patch({"annotations": former}, {})
        for path in self._directory.glob(f"{FILE}*"):
            if path.name.removeprefix(FILE) not in kept:
                path.unlink(missing_ok=True)


class Observer:
    """Follows the coordinators for a process that stays. For one thread.

    One is gone that has said nothing new for `LATE_S` by the observer's own clock.
    """

    def __init__(self, cluster: Cluster, namespace: str, clock: Clock) -> None:
        """Nothing is asked yet."""
        self._cluster = cluster
        self._namespace = namespace
        self._clock = clock
        self._news: dict[str, tuple[float, float]] = {}
        """By annotation: what was said last (`Alive.at`), and when that was new here."""

    def look(self) -> Signs:
        """What they said last. Raises what `Cluster.get` raises."""
        now, found = self._clock.monotonic(), []
        for key, one in _reports(self._cluster, self._namespace).items():
            at, since = self._news.get(key, (0.0, now))
            since = since if at == one.at else now
            self._news[key] = (one.at, since)
            found.append(one.model_copy(update={"gone": now - since > LATE_S}))
        return of(found)


def read(
    cluster: Cluster,
    namespace: str,
    *,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> Signs:
    """What the coordinators of the cluster said last. Raises nothing; `pause` waits, s, where one
    seems to be late by `now`, s since the epoch."""
    try:
        first = _reports(cluster, namespace)
        late = {key for key, one in first.items() if abs(now() - one.at) > LATE_S}
        if late:
            pause(AGAIN_S)
            second = _reports(cluster, namespace)
            gone = {key for key in late if second.get(key) == first[key]}
            first = {
                key: one.model_copy(update={"gone": key in gone}) for key, one in second.items()
            }
    except errors.FleetError as error:
        return Signs(unknown=str(error))
    return of(list(first.values()))


def of(reports: Sequence[Alive]) -> Signs:
    """The coordinators of one fleet together, those with trouble first."""
    found = sorted(reports, key=lambda one: (not one.wrong(one.at), one.binding.nodes))
    if not found:
        return Signs()
    return Signs(found[0].model_copy(update={"others": tuple(found[1:])}))


def told(signs: Signs, now: float, *, awaited: bool) -> Iterator[str]:
    """What is wrong with the coordinator. `awaited`: pods of the nodes asked wait for one."""
    waits = ": strict pods wait" if awaited else ""
    if signs.unknown:
        yield f"whether the coordinator steps is unknown: {signs.unknown}"
    if signs.found is None:
        if awaited and not signs.unknown:
            yield f"no coordinator has ever reported in this cluster{waits}: {START}"
        return
    for one in (signs.found, *signs.found.others):
        if wrong := one.wrong(now):
            steps = not (one.gone or one.stands_s)
            remedy = GRANT if steps else START
            yield f"the coordinator{one.of} {wrong}{'' if steps else waits}: {remedy}"
            continue
        binding = one.binding
        if binding.trouble:
            yield f"the coordinator{one.of} (pid {one.pid}) is kept from working: {binding.trouble}"
        if binding.silent_nodes:
            silent = ", ".join(binding.silent_nodes)
            yield f"the coordinator{one.of} gets no answer from {silent}"


def summary(signs: Signs, now: float) -> str:
    """One line for people: whether it steps, and since when; "" where no coordinator reported."""
    found = signs.found
    if found is None:
        return ""
    count, more = found.binding.open_claims, len(found.others)
    beside = f", and {more} of other nodes" if more else ""
    verb = "stands" if found.gone or found.stands_s else "steps"
    last = f"last step {_when(found.binding.stepped_at, now)}" if found.binding.stepped_at else ""
    never = f"no step since its start {_when(found.began, now)}"
    return (
        f"coordinator{found.of}: {verb}, {last or never}; {count} open claims;"
        f" pid {found.pid} on {found.host or 'this host'}{beside}"
    )


def _when(at: float, now: float) -> str:
    """A time, and how long ago it was."""
    return f"{dsse.stamp(at)} ({max(0.0, now - at):.0f} s ago)"


def _suffix(selecting: str) -> str:
    return f"-{hashlib.sha256(selecting.encode()).hexdigest()[:12]}" if selecting else ""


def key_of(selecting: str) -> str:
    """The annotation of the coordinator of these nodes (a label selector; "": all)."""
    return KEY + _suffix(selecting)


def _reports(cluster: Cluster, namespace: str) -> dict[str, Alive]:
    """By annotation. Raises what `Cluster.get` raises, but where there is no Lease yet."""
    try:
        found = cluster.get(LEASES, Name(LEASE, namespace))
    except errors.ApiNotFound:
        return {}
    annotations = object_in(object_in(found.get("metadata")).get("annotations"))
    parsed = {key: _parsed(text) for key, text in annotations.items() if key.startswith(KEY)}
    return {key: one for key, one in parsed.items() if one is not None}


def _parsed(text: object) -> Alive | None:
    try:
        return Alive.model_validate_json(str(text))
    except ValidationError:
        return None
