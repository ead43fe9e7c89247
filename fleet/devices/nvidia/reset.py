"""Resetting a GPU: by the vendor's tool, which alone has the call for it, else by the kernel.

Decisions:

1. Nothing is reset under anybody: no process, infrastructure included, no instance of a partition,
   and nobody on a GPU that resets along with this one. Persistence mode holds the device as well:
   it is switched off first, and what the operator had set comes back, whatever happened.
2. Whether the tool or the kernel's list of clients is right is not ours to decide: where the tool
   says the device is in use, the kernel's methods are not tried behind its back.
3. A tool past its time limit is killed with all it started, and nothing more is done: the driver's
   state is unknown. What outlives that keeps every other reset of the GPU from being tried (B41).
4. Done means proven: the tool said of this very GPU that it was reset, or the GPU asked for a reset
   before and does not now; an exit code of 0 and clean counters are also there where nothing has
   happened (B41). And then the same GPU answers, its counters start at zero, it asks for no reset
   and its link is as wide as before.
5. What has to be put back is written down before it is changed, so that who comes after a killed
   reset can do it (`fleet.devices.nvidia.modes`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fleet.core import errors
from fleet.core.model import Process
from fleet.core.pci import slot
from fleet.devices import infrastructure, pci_reset, tool
from fleet.devices.base import ResetOutcome
from fleet.devices.health.readings import Readings
from fleet.devices.nvidia import clients, libraries, linkage, modes, nvml
from fleet.devices.nvidia.linkage import Card
from fleet.devices.nvidia.modes import Modes
from fleet.devices.nvidia.nvml import Library
from fleet.devices.sysfs import Function

TOOL_LIMIT_S = 80.0
"""Time, s, the tool gets: below what the caller gives a reset as a whole."""
BACK_S = 10.0
"""Time, s, a GPU gets to answer and its link to train after the reset is said to be over."""
_STEP_S = 0.05
_IN_USE = ("in use by another", "being used by one or more other processes")
_DONE = "was successfully reset"
"""How the tool says of one GPU that it was reset; "pending", or nothing, is something else."""
_OUTPUT_MAX = 600


class Surroundings(Protocol):
    """What a reset asks of the back end around it."""

    def holders(self, card: Card) -> Sequence[Process]:
        """Processes that hold a GPU, without us. Raises `BackendFailed`."""

    def instances(self, card: Card) -> Sequence[str]:
        """Its partitions' instances, in words."""

    def readings(self, card: Card) -> Readings:
        """Its health now. Raises `DeviceLost`, `BackendFailed`."""

    def mark(self, card: Card) -> None:
        """Note in the kernel log that the GPU was reset."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a reset may be done."""

    tool: str = "nvidia-smi"
    """Empty: only the kernel's methods."""
    methods: tuple[str, ...] = ()
    """Kernel methods allowed, in this order."""
    tool_limit_s: float = TOOL_LIMIT_S
    back_s: float = BACK_S


class _Refused(Exception):
    """Nothing was done."""

    def __init__(self, detail: str, holders: Sequence[Process] = ()) -> None:
        super().__init__(detail)
        self.outcome = ResetOutcome(done=False, method="", detail=detail, holders=tuple(holders))


def reset(
    card: Card, library: Library, *, around: Surroundings, terms: Terms, root: Path
) -> ResetOutcome:
    """Reset a GPU, with those that can only be reset along with it.

    An outcome that is not done says why nothing was done. The library is closed and opened again:
    handles from before are void, and other processes of ours must not have this GPU open. Raises
    `BackendFailed` where a reset failed or is not proven, `DeviceLost` where the GPU is gone.
    """
    tool.refuse_survivors(mark(card.uuid))
    return _Reset(card, library, around, terms, root).run()


class _Reset:
    """One reset. Not to be used twice."""

    def __init__(
        self, card: Card, library: Library, around: Surroundings, terms: Terms, root: Path
    ) -> None:
        self._card = card
        self._library = library
        self._around = around
        self._terms = terms
        self._root = root
        self._group: tuple[Card, ...] = (card,)
        self._modes: dict[Card, Modes] = {}
        self._widths: dict[Card, int | None] = {}
        self._asking: set[Card] = set()
        """GPUs that the driver does not open before they are reset."""

    def run(self) -> ResetOutcome:
        try:
            self._look()
            outcome = self._strike_free()
        except _Refused as refused:
            self._restore()
            return refused.outcome
        except errors.FleetError as error:
            self._restore_after(error)
            raise
        not_restored = self._restore()
        for card in self._group:
            self._prove(card)
        if not_restored:
            raise errors.BackendFailed(
                f"{self._card.uuid} was reset, but its modes are not as before: {not_restored}"
            )
        return outcome

    def _look(self) -> None:
        """Preconditions that need the driver, and what has to be put back."""
        self._group = linkage.group(self._library, self._card)
        for card in self._group:
            instances = self._around.instances(card)
            if instances:
                raise _Refused(f"{card.uuid} has instances of partitions: {', '.join(instances)}")
            self._widths[card] = Function(self._root, card.address).link().width
            handle = self._handle(card)
            if handle is None:
                self._asking.add(card)
            else:
                kept = modes.noted(self._root, card.uuid)  # of a reset that was killed
                self._modes[card] = kept or modes.read(self._library, handle)
        for card, found in self._modes.items():
            modes.note(self._root, card.uuid, found)
            try:
                modes.let_go(self._library, self._handle(card), found)
            except errors.DriverRefused as error:
                raise _Refused(
                    f"persistence mode of {card.uuid} cannot be switched off: {error.detail}"
                ) from error
        self._refuse_held()

    def _refuse_held(self) -> None:
        for card in self._group:
            holders = tuple(self._around.holders(card))
            if holders:
                linked = (
                    "" if card == self._card else f", which resets along with {self._card.uuid},"
                )
                raise _Refused(
                    f"{card.uuid}{linked} is held by {infrastructure.listed(holders)}", holders
                )

    def _strike_free(self) -> ResetOutcome:
        """Reset by the first way that works, with no handle of our own on the device."""
        self._library.close()
        program = _located(self._terms.tool)
        told = f"there is no program {self._terms.tool!r}" if self._terms.tool else ""
        if program:
            uuids = ",".join(card.uuid for card in self._group)
            command = [program, "--gpu-reset", "-i", uuids]
            ok, lines = _run(command, self._terms.tool_limit_s, mark(self._card.uuid))
            told = " ".join(lines)[:_OUTPUT_MAX]
            if ok:
                self._refuse_unconfirmed(lines, told)
                return ResetOutcome(done=True, method="nvidia-smi", detail=self._along())
            if any(phrase in told.lower() for phrase in _IN_USE):
                kernel = clients.told(self._root)
                raise _Refused(
                    f"the driver says {self._card.uuid} is in use: {told}"
                    + (f" ({kernel})" if kernel else "")
                )
        if len(self._group) > 1 or not self._terms.methods:
            raise errors.ResetFailed(
                f"{self._card.uuid} could not be reset: {told or 'no way to do it is allowed'}",
                remedy="see what the tool said; reboot the node if the device asks for a reset",
            )
        return self._by_kernel(told)

    def _refuse_unconfirmed(self, lines: Sequence[str], told: str) -> None:
        """The tool ended well; whether it says so of every GPU, too, or the GPU itself does."""
        for card in self._group:
            if _confirmed(lines, card):
                continue
            if card in self._asking and self._answering(card) is not None:
                self._library.close()
                continue
            raise _Refused(f"the tool did not say that {card.uuid} was reset: {told}")

    def _by_kernel(self, told: str) -> ResetOutcome:
        found = pci_reset.reset(
            Function(self._root, self._card.address),
            pci_reset.Terms(self._terms.methods, unbinds=True, settle_s=self._terms.back_s),
            self._held_unasked,
        )
        detail = "; ".join(part for part in (told, found.detail) if part)
        if not found.done:
            raise _Refused(detail, found.holders)
        return ResetOutcome(done=True, method=found.method, detail=detail)

    def _held_unasked(self) -> Sequence[Process]:
        """Holders, leaving the driver closed behind: the kernel waits for us, too."""
        try:
            return self._around.holders(self._card)
        finally:
            self._library.close()

    def _along(self) -> str:
        others = [card.uuid for card in self._group if card != self._card]
        return f"reset along with it: {', '.join(others)}" if others else ""

    def _restore(self) -> str:
        """Put the modes back; what could not be, in words."""
        failed: list[str] = []
        for card, found in self._modes.items():
            handle = self._answering(card)
            if handle is None:
                failed.append(f"{card.uuid} does not answer")
                continue
            left = modes.restore(self._library, handle, found)
            if not left:
                modes.settled(self._root, card.uuid)
            failed += left
        return "; ".join(failed)

    def _restore_after(self, error: errors.FleetError) -> None:
        """Put the modes back after a failure, which stays the one that is told."""
        try:
            left = self._restore()
        except errors.FleetError as second:
            left = second.detail
        if left:
            error.add_note(f"and its modes are not as before: {left}")

    def _prove(self, card: Card) -> None:
        """The GPU is back, and it is the reset that its counters show."""
        if self._answering(card) is None:
            raise errors.DeviceLost(f"{card.uuid} does not answer after its reset")
        function = Function(self._root, card.address)
        if function.present and function.config_alive() is False:
            raise errors.DeviceLost(f"{card.address} reads all ones after its reset")
        self._around.mark(card)
        problem = _unproven(self._around.readings(card)) or self._narrower(card, function)
        if problem:
            raise errors.ResetFailed(
                f"{card.uuid} was reset, and {problem}",
                remedy="reboot the node; if it stays so, the device needs repair",
            )

    def _narrower(self, card: Card, function: Function) -> str:
        """Why its link is not what it was; a link takes a moment to train."""
        before, deadline = self._widths.get(card), time.monotonic() + self._terms.back_s
        while before is not None:
            now = function.link().width
            if now is not None and now >= before:
                break
            if time.monotonic() >= deadline:
                return f"its link is x{now or '?'} and was x{before}"
            time.sleep(_STEP_S)
        return ""

    def _handle(self, card: Card) -> Any:
        """Handle of a GPU; None where the driver says that it must be reset first."""
        try:
            return linkage.handle(self._library, card)
        except errors.DriverRefused as error:
            if error.code != nvml.RESET_REQUIRED:
                raise
            return None

    def _answering(self, card: Card) -> Any:
        """Handle of a GPU once it answers; None: not within its time."""
        deadline = time.monotonic() + self._terms.back_s
        while True:
            try:
                return linkage.handle(self._library, card)
            except errors.FleetError:
                self._library.close()
                if time.monotonic() >= deadline:
                    return None
            time.sleep(_STEP_S)


def _unproven(now: Readings) -> str:
    """What contradicts a reset that is said to be done; "": nothing."""
    if now.present is False:
        return "it is gone"
    if now.ecc_uncorrected_volatile:
        return f"it still counts {now.ecc_uncorrected_volatile} uncorrected errors since its start"
    if now.reset_required:
        return "it still asks for a reset"
    if now.recovery_action not in (None, "NONE"):
        return f"the driver still asks for {now.recovery_action}"
    if now.row_remap_pending:
        return "rows still wait to be remapped"
    return ""


def _located(tool: str) -> str:
    """The tool on our path, or where our own grant puts it; "": none."""
    if not tool:
        return ""
    granted = Path(libraries.PROGRAMS) / tool
    return shutil.which(tool) or (str(granted) if granted.is_file() else "")


def mark(uuid: str) -> str:
    """What everything carries that a reset of this GPU starts."""
    return f"reset {uuid}"


def _confirmed(lines: Sequence[str], card: Card) -> bool:
    """Whether a line says of this GPU, by its slot or UUID, that it was reset."""
    return any(
        _DONE in line.lower()
        and (
            card.uuid in line
            or slot(card.address) in {slot(word.strip(".,:;()")) for word in line.split()}
        )
        for line in lines
    )


def _run(command: Sequence[str], limit_s: float, named: str) -> tuple[bool, tuple[str, ...]]:
    """Run the tool in a process of its own; whether it succeeded and what it said.

    Raises `BackendFailed` where it takes longer than `limit_s`, `Wedged` where it outlives that.
    """
    try:
        given = {**os.environ, "LC_ALL": "C"}
        said = tool.run(command, limit_s=limit_s, mark=named, environment=given)
    except OSError as error:
        return False, (f"{command[0]} cannot be run: {error.strerror}",)
    lines = tuple(line for raw in said.output.splitlines() if (line := nvml.text(raw)))
    return said.code == 0, lines or (f"exit code {said.code}",)
