"""What people decide about devices: quarantine, clearing, adoption, a new epoch.

Every decision is recorded with its operator in the transaction that carries it out. None of them
makes a device CLEAN: that takes a wipe.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fleet.core import errors
from fleet.core.messages import DeviceView
from fleet.core.model import Device, OperationId, Reason, Source, State, Unit
from fleet.core.unit_states import Change, Event
from fleet.devices.health import reasons
from fleet.devices.health.readings import LogPlace
from fleet.node import closures, outcomes, view
from fleet.node.journal.journal import Commit
from fleet.node.registry import Registry, Work

UNTOLD = "taken-over"
"""Reason for a code this catalogue does not have."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Carries out what operators decide."""

    registry: Registry
    stop_wait_s: float
    looked_at: Callable[[], LogPlace | None] = lambda: None
    """Up to where the kernel log was looked at: a decision closes nothing that came later."""

    def quarantine(
        self, device: str, *, detail: str, operator: str, codes: Sequence[str] = ()
    ) -> DeviceView:
        """Put a device out of service until an operator decides. Raises `DeviceUnknown`.

        With `codes` it is the coordinator's word, or that of slices which outlived the journal
        (`fleet.plugin.slices.takeover`): a reason for each code, lifted as its entry of the
        catalogue says. What the device has already is not added again, and then nothing is
        disturbed.
        """
        found = self.registry.device(device)
        added = self._reasons(codes, detail) if codes else self._own_word(detail)
        if codes and self._has(found, added):
            return view.device(self.registry, found)
        with self._undisturbed(found):
            self.registry.move(
                found,
                outcomes.fault_event,
                Change(reasons=added),
                also=self._act("quarantine add", found, operator, detail),
            )
        return view.device(self.registry, found)

    def _own_word(self, detail: str) -> frozenset[Reason]:
        now = self.registry.clock.now()
        return frozenset({reasons.make("operator", Source.OPERATOR, detail=detail, since=now)})

    def _reasons(self, codes: Sequence[str], detail: str) -> frozenset[Reason]:
        """Codes of another version of the catalogue are kept as reasons no rule lifts."""
        now = self.registry.clock.now()
        known = {code if code in reasons.CATALOGUE else UNTOLD for code in codes}
        text = f"{detail}: {', '.join(sorted(codes))}"
        return frozenset(
            reasons.make(code, Source.COORDINATOR, detail=text, since=now) for code in known
        )

    def _has(self, device: Device, added: frozenset[Reason]) -> bool:
        """Whether every unit is out of service for all of these codes, whoever found them."""
        wanted = {reason.code for reason in added}
        return all(
            wanted <= {reason.code for reason in unit.reasons}
            for unit in self.registry.units(device)
        )

    def quarantine_clear(
        self, device: str, *, codes: Sequence[str] = (), operator: str, detail: str = ""
    ) -> DeviceView:
        """Clear reasons (all when no code is named); DIRTY when none is left, never CLEAN.

        `detail`: why, in the operator's words, for the record. Raises `InputInvalid` for a device
        whose reasons cannot be cleared in the state it is in, with what to do instead.
        """
        found = self.registry.device(device)
        with self._undisturbed(found):
            self._clear(found, codes, operator, detail)
        return view.device(self.registry, found)

    def _clear(self, found: Device, codes: Sequence[str], operator: str, detail: str) -> None:
        units = self.registry.units(found)
        open_keys = {reason.key for unit in units for reason in unit.reasons}
        unknown = sorted(set(codes) - {code for code, _ in open_keys})
        if unknown:
            raise errors.InputInvalid(
                f"{found.name} has no reason {', '.join(unknown)}",
                remedy=f"open are: {', '.join(sorted(code for code, _ in open_keys)) or 'none'}",
            )
        cleared = frozenset((c, str(s)) for c, s in open_keys if not codes or c in codes)
        self._clearable(found, units, cleared)
        told = ", ".join(sorted(codes)) or "all"
        record = self._act(
            "quarantine clear", found, operator, f"{told}: {detail}" if detail else told
        )

        place = self.looked_at()

        def also(commit: Commit) -> None:
            record(commit)
            # What the kernel log has of it stands there for the whole boot (B58).
            if place is not None:
                boot = self.registry.boot_id
                # Who clears all there is decides about the device, not about single reasons.
                named = codes if cleared < open_keys else ()
                closures.close(commit, found.accelerator, boot, named, place)

        self.registry.move(
            found,
            lambda unit: Event.CLEARED if unit.state is State.QUARANTINED else None,
            Change(cleared=cleared),
            also=also,
        )

    def _clearable(
        self, found: Device, units: Sequence[Unit], cleared: frozenset[tuple[str, str]]
    ) -> None:
        """Raises `InputInvalid` where clearing would come to nothing without a word."""
        concerned = {
            unit.state
            for unit in units
            if any((reason.code, str(reason.source)) in cleared for reason in unit.reasons)
        }
        if concerned and State.QUARANTINED not in concerned:
            state = State.HELD if State.HELD in concerned else min(concerned)
            raise errors.InputInvalid(
                f"{found.name} is {state}: its reasons cannot be cleared now",
                remedy=_INSTEAD.get(state, "wait until the work on it has ended, then clear again"),
                state=state,
            )

    def adopt(self, *, devices: Sequence[str] = (), operator: str) -> list[DeviceView]:
        """Record that HELD devices are free (ProvenFree (c)); they go DIRTY, never CLEAN."""
        named = [self.registry.device(name) for name in devices]
        chosen = named or list(self.registry.whole())
        for device in chosen:
            self.registry.move(
                device, _proven_free, also=self._act("adopt", device, operator, "proven free")
            )
        return [view.device(self.registry, device) for device in chosen]

    def follow_epoch(self, epoch: int, *, operator: str) -> None:
        """Follow a store's new epoch after `fleet store adopt`. Raises `EpochForeign` backwards."""
        known = self.registry.journal.epoch
        if epoch < known:
            raise errors.EpochForeign(
                f"epoch {epoch} is older than {known}, which this node follows",
                ours=known,
                theirs=epoch,
            )
        with self.registry.commit() as commit:
            commit.set_meta("epoch", str(epoch))
            now = self.registry.clock.now()
            commit.record_act("follow epoch", str(epoch), operator=operator, detail="", now=now)

    def _act(
        self, act: str, device: Device, operator: str, detail: str
    ) -> Callable[[Commit], None]:
        now = self.registry.clock.now()
        return lambda commit: commit.record_act(
            act, device.uuid, operator=operator, detail=detail, now=now
        )

    @contextmanager
    def _undisturbed(self, device: Device) -> Iterator[None]:
        """Stop whatever works on the device and keep everybody off until the decision is kept.

        Work that does not end in time is overruled, not waited for: its own next step finds the
        units QUARANTINED and ends there.
        """
        operation = OperationId(f"decision/{device.uuid}/{uuid.uuid4().hex[:8]}")
        work = Work(operation, device, idle=False, wipes=False)
        self.registry.claim_for(work, wait_s=self.stop_wait_s)
        try:
            yield
        finally:
            self.registry.unreserve(work)


def _proven_free(unit: Unit) -> Event | None:
    return Event.PROVEN_FREE if unit.state is State.HELD else None


_INSTEAD = {
    State.HELD: "its holder is unknown: prove the device free first (delete the pod that had it, or"
    " `fleet node adopt`, or reboot the node), then clear its reasons",
    State.IN_USE: "a claim has the device: end the claim first; its teardown takes the device out"
    " of service for these reasons, then clear them",
}
