"""The plugin's part in holds: put on a claim before it is exposed, taken off once it is buried.

Putting on and taking off of one claim never overlap: a named claim may be used anew while the marks
of its last use are still owed. Nothing here keeps a pod from starting or a teardown from ending. A
claim without a hold is served all the same; its devices are tainted while it has them (DESIGN 5).
What is not taken off here (a plugin that died, a journal that was lost) the coordinator takes off.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import NodeView, Owed
from fleet.core.model import State
from fleet.core.profiles import RULES, Profile
from fleet.kube.base import Name, Object
from fleet.kube.claim import ClaimReading, read
from fleet.kube.claim_holds import Holds
from fleet.plugin.slices.device_attributes import names
from fleet.plugin.slices.gate import is_quarantined
from fleet.rpc.node_api import NodeApi

LOG = logging.getLogger(__name__)

HOLD_BUDGET_S = 5.0
"""Time, s, a prepare spends on a hold; without one it goes on."""
REFUSED_S = 60.0
"""Time, s, after a missing right during which it is not asked for again."""
STEP_BUDGET_S = 2.0
"""Time, s, after which a step begins with no further claim: slices wait for it."""
PAUSE_MAX_S = 60.0
"""Longest pause, s, between two tries for one claim."""


@dataclass(frozen=True, slots=True)
class MarkingRules:
    """What is marked, and until when."""

    profile: Profile
    verified_only: bool = False
    """The finalizer stays until the devices are clean again, instead of out of service (D3)."""


@dataclass
class Marking:
    """Marks claims of one node. Safe for threads; `step` on one."""

    node: NodeApi
    holds: Holds
    rules: MarkingRules
    clock: Clock
    trouble: str = ""
    """Why claims cannot be held now; empty: they can, as far as is known."""
    _ask_at: float = float("-inf")
    """When the server is next asked whether we may hold, monotonic time."""
    _refused_at: float = float("-inf")
    _users: Counter[str] = field(default_factory=Counter)
    _leaving: set[str] = field(default_factory=set)
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict)
    _kept: set[str] = field(default_factory=set)
    _turn: threading.Condition = field(default_factory=threading.Condition)

    # --- before exposure ---

    @contextmanager
    def using(self, uid: str) -> Iterator[None]:
        """While a claim is made ready: its marks stay. Raises `DeviceBusy` while they go."""
        with self._turn:
            if not self._turn.wait_for(lambda: uid not in self._leaving, HOLD_BUDGET_S):
                raise errors.DeviceBusy(f"claim {uid} is being let go of an earlier use")
            self._users[uid] += 1
        try:
            yield
        finally:
            with self._turn:
                self._users[uid] -= 1
                if not self._users[uid]:
                    del self._users[uid]

    def hold(self, claim: Object) -> bool:
        """Whether our hold is on a claim just read, after putting it on where that is ours to do.

        Where the scheduler waits for conditions the coordinator writes it with the last of them.
        Raises nothing: no hold is no reason to keep a pod waiting.
        """
        if not RULES[self.rules.profile].hold:
            return False
        try:
            reading = read(claim, self.holds.marks)
            if reading.gated or not reading.holding or self._pausing():
                return reading.held
            return self._put_on(reading)
        except errors.FleetError as error:
            LOG.warning("claim %s is served without a hold: %s", claim_name(claim), error)
            return False

    def _put_on(self, reading: ClaimReading) -> bool:
        try:
            marked = self.holds.ensure(reading, budget_s=HOLD_BUDGET_S)
        except errors.HoldsNotGranted as error:
            self._refused(error)
            return False
        self._refused_at, self.trouble = float("-inf"), ""
        return marked.held

    def _pausing(self) -> bool:
        return self.clock.monotonic() - self._refused_at < REFUSED_S

    def _ask(self) -> None:
        """Say at the start that claims will not be held, before the first is served without."""
        rules = RULES[self.rules.profile]
        now = self.clock.monotonic()
        if now < self._ask_at or not rules.hold or rules.binding_conditions:
            return
        try:
            granted = self.holds.granted()
        except errors.ApiUnavailable:
            self._ask_at = now + REFUSED_S
            return
        self._ask_at = float("inf")
        if granted is False:
            told = "patch on resourceclaims/binding is not allowed to us"
            self._refused(errors.HoldsNotGranted(told))

    def _refused(self, error: errors.HoldsNotGranted) -> None:
        self._refused_at = self.clock.monotonic()
        if not self.trouble:
            self.trouble = (
                f"{self.rules.profile}: holds not granted, devices in use are tainted instead:"
                f" {error}"
            )
            LOG.warning("%s", self.trouble)

    # --- after teardown ---

    def step(self, view: NodeView, seen: Mapping[str, float] | None = None) -> None:
        """Let go of what `view` owes. Raises nothing: the next step goes on.

        `seen`: quarantines read back from the slices, UUID to `since`. A claim whose device has
        gone bad meanwhile is kept until that can be seen (promise 6). None: nothing is published.
        """
        self._ask()
        wanted = self._taken([one.uid for one in view.owed])
        if not wanted:
            return
        try:
            now = self.node.view()
            hidden = _hidden(now, seen)
            unseen = {one.uid for one in now.owed if not hidden.isdisjoint(one.devices)}
            done = self._let_go(now, wanted - unseen)
            if done:
                self.node.paid(done)
        except errors.FleetError as error:
            LOG.debug("claims are let go later: %s", error)
        finally:
            with self._turn:
                self._leaving.difference_update(wanted)
                self._turn.notify_all()

    def _taken(self, owed: Sequence[str]) -> frozenset[str]:
        """Claims to be let go now; nobody is about to use one, nor begins to until it is done."""
        now = self.clock.monotonic()
        with self._turn:
            known = set(owed)
            for uid in self._pauses.keys() - known:
                del self._pauses[uid]
            self._kept &= known
            due = (uid for uid in known if self._pauses.get(uid, (now, 0.0))[0] <= now)
            wanted = frozenset(uid for uid in due if uid not in self._users)
            self._leaving |= wanted
        return wanted

    def _let_go(self, view: NodeView, wanted: frozenset[str]) -> list[str]:
        """Those that need nothing more. `view` is of after they were taken: a claim that has a
        record by now is in use again.
        """
        until = self.clock.monotonic() + STEP_BUDGET_S
        used = {claim.uid for claim in view.claims}
        owed = {one.uid: one for one in view.owed}
        done = []
        for uid in sorted(wanted & owed.keys() - used):
            try:
                if self._release(owed[uid], view):
                    done.append(uid)
            except errors.ApiUnavailable:
                break  # waiting for it once per step is enough
            except errors.FleetError as error:
                self._postpone(uid, error)
            if self.clock.monotonic() > until:
                break
        return done

    def _release(self, one: Owed, view: NodeView) -> bool:
        """Whether the debt is paid: the API has the claim without our marks, or has it no more, or
        the coordinator answers for them."""
        bad = unverified(one, view) if self.rules.verified_only else ()
        if bad and one.uid in self._kept:
            return False
        shown = names(view.devices)
        used = [(view.node, shown[uuid]) for uuid in one.devices if uuid in shown]
        marked = self.holds.release(
            Name(one.name, one.namespace),
            one.uid,
            devices=used if len(used) == len(one.devices) else (),
            node=view.node,
            keep_finalizer=bool(bad),
        )
        if marked.left and marked.reading is not None and not marked.reading.gated:
            # Another use has come. It may vanish before its node ever hears of it, and nobody but
            # the nodes takes these marks off: the claim is looked at until they are gone.
            self._pause(one.uid)
            return not marked.reading.marked
        if marked.left:
            return True  # the coordinator has put them on for another use, or goes on with them
        if not marked.finalizer:
            return True
        if not bad:
            # The server took no write of it from us (422, as an admission policy refuses).
            self._pause(one.uid)
            return False
        self._kept.add(one.uid)
        LOG.warning(
            "claim %s/%s keeps our finalizer until %s is clean: clear its quarantine once it is"
            " repaired (`fleet quarantine list`)",
            one.namespace,
            one.name,
            ", ".join(bad),
        )
        return False

    def _postpone(self, uid: str, error: errors.FleetError) -> None:
        if uid not in self._pauses:
            LOG.warning("claim %s cannot be let go now: %s", uid, error)
        self._pause(uid)

    def _pause(self, uid: str) -> None:
        """The next try for this claim is made later, and later still after each."""
        _, pause_s = self._pauses.get(uid, (0.0, 0.5))
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
        self._pauses[uid] = (self.clock.monotonic() + pause_s, pause_s)


def unverified(one: Owed, view: NodeView) -> tuple[str, ...]:
    """Devices of a buried claim that are not known to have been clean since: by name or UUID."""
    known: Mapping[str, object] = {device.uuid: device for device in view.devices}
    bad = [uuid for uuid in one.devices if uuid not in known]
    for device in view.devices:
        clean = device.state == State.CLEAN or bool(device.claim)
        if device.uuid in one.devices and (is_quarantined(device) or not clean):
            bad.append(device.name)
    return tuple(bad)


def _hidden(view: NodeView, seen: Mapping[str, float] | None) -> frozenset[str]:
    """UUIDs of devices out of service that the scheduler may not know to be so."""
    if seen is None:
        return frozenset()
    bad = (device for device in view.devices if is_quarantined(device))
    return frozenset(device.uuid for device in bad if seen.get(device.uuid) != device.since)


def claim_name(claim: Object) -> str:
    """Namespace and name for a message, whatever the object is."""
    metadata = claim.get("metadata")
    found = metadata if isinstance(metadata, dict) else {}
    return f"{found.get('namespace', '')}/{found.get('name', '')}"
