"""Carrying decisions out: leases and orders in batches, writes claim by claim, each contained."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Event

from fleet.control.binding.claim_facts import devices_of
from fleet.control.binding.claim_judge import POLL_S
from fleet.control.binding.claim_writes import Writer
from fleet.control.binding.decisions import (
    BUSY_S,
    Acquire,
    Bind,
    Fail,
    Finalize,
    LetGo,
    Order,
    Unbind,
    Undo,
    Unexposed,
)
from fleet.control.binding.lease_return import UNSEEN, VISIBLE_WAIT_S, Undoing, codes_of
from fleet.control.binding.snapshot import Case, Look
from fleet.control.binding.surroundings import BinderTerms, Surroundings
from fleet.core import errors
from fleet.core.messages import ScrubOrder
from fleet.core.model import Lease
from fleet.core.settings import Unexposed as UnexposedPolicy
from fleet.kube import claim_status
from fleet.kube.base import CLAIMS, PODS, Name, Object, uid_of, version_of
from fleet.kube.claim import ClaimReading

LOG = logging.getLogger(__name__)
REFUSED_S = 60.0
"""Pause, s, after the server refused a body: it will again."""
OPERATOR = "coordinator"
"""In whose name the coordinator decides at a node."""


class Performer:
    """Carries the decisions of one step out."""

    def __init__(self, around: Surroundings, terms: BinderTerms, look: Look) -> None:
        self._around = around
        self._terms = terms
        self._look = look
        self._undoing = Undoing(around, look)
        self.writer = Writer(around.cluster, terms.rules.marks)

    # --- batches ---------------------------------------------------------------------------------

    def acquire(self, cases: Iterable[Case], now: float) -> None:
        """One transaction for all; a refusal is kept for a moment and then tried again."""
        asking = [(c, c.decision.devices) for c in cases if isinstance(c.decision, Acquire)]
        wanted = [(case.reading.uid, devices) for case, devices in asking]
        for (case, _), answer in zip(asking, self._around.leases.acquire(wanted), strict=True):
            if isinstance(answer, Lease):
                case.leases = (*_without(case.leases, answer), answer)
                case.track.refused = ""
                continue
            held = isinstance(answer, errors.LeaseHeld)
            case.track.refused = str(answer.fields.get("holder", "")) if held else answer.detail
            case.track.refused_until = now + BUSY_S
            if not held:
                LOG.warning(
                    "claim %s gets no lease: %s", case.reading.name, answer, extra=_of(case)
                )

    def order(self, cases: Iterable[Case]) -> None:
        """One call for each node."""
        orders: dict[str, list[ScrubOrder]] = defaultdict(list)
        senders: dict[str, tuple[Case, str]] = {}
        for case in cases:
            case.again_s = POLL_S
            for device in case.decision.devices if isinstance(case.decision, Order) else ():
                before = case.track.numbers.get(device.uuid, 0)
                order = self._order(case, device.uuid)
                orders[case.node].append(order)
                senders[order.operation] = (case, device.uuid)
                if case.track.numbers.get(device.uuid, 0) > before:
                    case.again_s = BUSY_S  # what came to nothing may do so at once, again and again
        if not orders:
            return
        for node, answer in self._around.nodes.scrub(orders).items():
            if isinstance(answer, errors.FleetError):
                LOG.warning("%s takes no orders: %s", node, answer, extra={"node": node})
                continue
            for one in answer:
                if one.operation not in senders:
                    continue
                case, uuid = senders[one.operation]
                if one.accepted:
                    case.track.taken_in(uuid, self._look.watch.seconds)
                    continue
                told = {**_of(case), "device": uuid, "token": str(case.track.token)}
                LOG.warning("%s: %s is refused: %s", node, one.operation, one.error, extra=told)
                case.again_s = BUSY_S

    def _order(self, case: Case, uuid: str) -> ScrubOrder:
        track, uid = case.track, case.reading.uid
        view = self._look.views.get(case.node)
        known = {result.operation for result in view.results} if view else set()
        if track.operation(uid, uuid) in known:  # it came to nothing: again, under a new number
            track.numbers[uuid] = track.numbers.get(uuid, 0) + 1
            track.ordered_since.pop(uuid, None)
        track.sent.discard(uuid)
        return ScrubOrder(
            operation=track.operation(uid, uuid),
            node=case.node,
            device=uuid,
            token=str(track.token),
            wipe=self._look.demand(case.reading)[0],
        )

    def undo(self, cases: Iterable[Case], now: float) -> None:
        """Give the leases of all these claims back, together; what does not fit has its turn soon.

        Each claim is read again first: one that changed is decided anew.
        """
        wanted = [(c, c.decision.leases) for c in cases if isinstance(c.decision, Undo)]
        fits = self._undoing.fitting([leases for _, leases in wanted])
        for (case, _), fit in zip(wanted, fits, strict=True):
            case.again_s = None if fit else POLL_S
        away = Event()
        self._around.each([partial(self._confirm, c, away) for c, _ in wanted if c.again_s is None])
        going = [(case, each) for case, each in wanted if case.again_s is None]
        flat = [(case, lease) for case, each in going for lease in each]
        left: dict[str, dict[Lease, str]] = defaultdict(dict)
        answers = self._undoing.undo([lease for _, lease in flat], now) if flat else ()
        for (case, lease), why in zip(flat, answers, strict=True):
            if why:
                left[case.reading.uid][lease] = why
        for case, _ in going:
            self._undone(case, left[case.reading.uid])

    def _confirm(self, case: Case, away: Event) -> None:
        """`away`: set once the server did not answer, for one time-out is enough for all."""
        if isinstance(case.decision, Undo) and all(map(self._look.is_silent, case.decision.leases)):
            return  # nothing will be done: the server need not be asked
        if away.is_set():
            case.again_s = BUSY_S
            return
        try:
            case.again_s = None if self._live(case.reading) else POLL_S
        except errors.FleetError:
            away.set()
            case.again_s = BUSY_S

    def _undone(self, case: Case, left: Mapping[Lease, str]) -> None:
        track, where = case.track, self._look.where
        refused = [lease for lease, why in left.items() if why != UNSEEN]
        track.left((lease.token for lease in refused), self._look.watch.seconds)
        case.again_s = track.undoing_s or (BUSY_S if left else 0.0)
        if not left:
            return
        track.why = f"{case.decision.why}; {next(iter(left.values()))}"
        places = {where.get(unit) for lease in left for unit in lease.units}
        if case.reading.pods and case.node and case.node not in places:
            case.again_s = POLL_S  # it goes on without: what is left is elsewhere

    # --- writes ----------------------------------------------------------------------------------

    def write(self, case: Case, now: float) -> None:
        """One claim's write; whatever goes wrong with it is its own trouble."""
        reading = case.reading
        try:
            found = self._write(case, now)
            if found is not None:
                self._around.claims.learn(found)
                case.again_s = 0.0
        except errors.ApiNotFound:
            self._reread(reading)
            case.again_s = BUSY_S
        except errors.ApiConflict:
            self._reread(reading)
            case.again_s = 0.0
        except errors.ApiUnavailable:
            self._reread(reading)
            case.again_s = BUSY_S
        except errors.ParametersRespelled as error:
            LOG.warning("claim %s: %s", reading.name, error, extra=_of(case))
            self._look.unwritable[reading.uid] = error.detail
            self._around.tell.claim(reading, claim_status.REASON, error.told)
            case.again_s = 0.0
        except errors.ApiInvalid as error:
            LOG.warning("claim %s: %s", reading.name, error, extra=_of(case))
            case.again_s = REFUSED_S if self._reread(reading) else BUSY_S
        except errors.FleetError as error:
            LOG.warning("claim %s: %s", reading.name, error, extra=_of(case))
            case.again_s = BUSY_S if isinstance(error, errors.Retryable) else REFUSED_S
        except Exception:
            LOG.exception("claim %s cannot be written", reading.name, extra=_of(case))
            case.again_s = REFUSED_S

    def _write(self, case: Case, now: float) -> Object | None:
        reading, decision = case.reading, case.decision
        if isinstance(decision, Bind):
            token = case.track.token
            lease = next((lease for lease in case.leases if lease.token == token), None)
            return self.writer.bind(reading, lease, decision.proofs, now=now)
        if isinstance(decision, Unbind):
            return self.writer.unbind(reading, decision.why, now=now)
        if isinstance(decision, Finalize):
            return self.writer.finalize(reading)
        if isinstance(decision, Fail):
            return self._fail(case, decision, now)
        if isinstance(decision, LetGo):
            self._let_go(case, decision, now)
        if isinstance(decision, Unexposed):
            self._unexposed(reading, decision)
        return None

    def _fail(self, case: Case, decision: Fail, now: float) -> Object | None:
        """The quarantine is read back first: the scheduler would choose the same device again."""
        if not decision.silent:
            self._quarantine(case, decision)
        hiding = {
            one.device: one.codes or self._codes(case, one.device)
            for one in decision.faults
            if one.visible
        }
        if not self._shown(case, hiding, now=now, at_once=decision.silent):
            return None
        found = self.writer.fail(case.reading, decision.faults, now=now)
        case.track.failing_since = None
        return found

    def _quarantine(self, case: Case, decision: Fail) -> None:
        """What the node itself has no reason to take out of service goes by our word."""
        view = self._look.views.get(case.node)
        known = devices_of(view, case.reading.holding) if view else {}
        for fault in decision.faults:
            device = known.get(fault.device)
            if device is not None and fault.codes and not device.reasons:
                self._around.nodes.node(case.node).quarantine_add(
                    device.uuid, detail=fault.text, operator=OPERATOR, codes=fault.codes
                )

    def _shown(
        self, case: Case, devices: Mapping[str, Sequence[str]], *, now: float, at_once: bool
    ) -> bool:
        """Whether the scheduler sees all of them out of service; taken over where it has to be."""
        track, visible = case.track, self._around.visible
        hidden = visible.hidden(case.node, devices) if devices else frozenset()
        if not hidden:
            return True
        since = now if track.failing_since is None else track.failing_since
        track.failing_since = min(since, now)  # the clock may have been set back
        case.again_s = BUSY_S
        if not at_once and now - track.failing_since < VISIBLE_WAIT_S:
            return False
        return visible.take_over(case.node, {name: devices[name] for name in hidden}, now)

    def _codes(self, case: Case, name: str) -> tuple[str, ...]:
        view = self._look.views.get(case.node)
        return codes_of(devices_of(view, case.reading.holding).get(name) if view else None)

    def _let_go(self, case: Case, decision: LetGo, now: float) -> None:
        codes = {name: self._codes(case, name) for name in decision.quarantined}
        if not self._shown(case, codes, now=now, at_once=False):
            return
        case.again_s = BUSY_S
        if not self._reread(case.reading):
            return  # it changed meanwhile, and perhaps somebody uses it again
        case.track.failing_since = None
        self._around.holds.release(case.reading.name, case.reading.uid, of=case.reading)
        if self._reread(case.reading):
            case.again_s = REFUSED_S  # somebody made our marks his own: nothing came of it

    def _unexposed(self, reading: ClaimReading, decision: Unexposed) -> None:
        for pod in decision.pods:
            self._around.tell.pod(reading.name.namespace, pod, "DeviceFailed", decision.why)
            if self._terms.unexposed is UnexposedPolicy.DELETE and not pod.leaving:
                name = Name(pod.name, reading.name.namespace)
                self._around.cluster.delete(PODS, name, uid=pod.uid)

    def _reread(self, reading: ClaimReading) -> bool:
        """Learn the claim as it is now; whether it is known to be as it was read."""
        try:
            return self._live(reading)
        except errors.FleetError:
            return False

    def _live(self, reading: ClaimReading) -> bool:
        """As `_reread`; raises what `Cluster.get` raises, but `ApiNotFound`."""
        try:
            found = self._around.cluster.get(CLAIMS, reading.name)
        except errors.ApiNotFound:
            self._around.claims.gone(reading.uid)
            return False
        self._around.claims.learn(found)
        if uid_of(found) != reading.uid:
            self._around.claims.gone(reading.uid)
        return uid_of(found) == reading.uid and version_of(found) == reading.version


def _without(leases: Iterable[Lease], newer: Lease) -> Iterator[Lease]:
    """What a claim has besides `newer`, which took over the units that both name."""
    for lease in leases:
        if units := lease.units - newer.units:
            yield replace(lease, units=units)


def _of(case: Case) -> dict[str, str]:
    """What a line of the log is about."""
    return {"claim": case.reading.uid, "node": case.node}
