"""Boards this node had and has no more: kept in the journal with what is open against them.

A board that was pulled, or that another one has taken the slot of, is in no inventory any more, and
after a restart nothing but the journal knows of it. What is open against it must neither vanish nor
pass to the board in its place (B38): it stays shown, and once another board answers in its slot the
incident is closed with that board's name, and kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from fleet.core.model import Accelerator, Device, UnitId, Uuid
from fleet.devices import codec

KEPT = "board:"
REPLACED = "replaced:"
"""Beginnings of the journal's words for each accelerator: what it was, and what is in its place."""


@dataclass(frozen=True, slots=True)
class Board:
    """An accelerator that is not in the inventory any more."""

    accelerator: Accelerator
    slot: str
    closed: str
    """What is in its place, in words; "" nothing that is known."""


def noted(
    meta: Mapping[str, str], found: Mapping[Uuid, Accelerator], *, now: float
) -> Mapping[str, str]:
    """What of the inventory the journal does not have yet, by its key."""
    fresh = {f"{KEPT}{one.uuid}": json.dumps(asdict(one), sort_keys=True) for one in found.values()}
    slots = {_slot(one): one.uuid for one in found.values() if _slot(one)}
    for old in _kept(meta):
        key, there = f"{REPLACED}{old.uuid}", slots.get(_slot(old))
        if old.uuid in found:
            fresh[key] = ""
        elif there is not None and not meta.get(key):
            fresh[key] = json.dumps({"by": there, "slot": _slot(old), "at": now})
    return {key: text for key, text in fresh.items() if meta.get(key, "") != text}


def replacements(changed: Mapping[str, str]) -> Iterator[tuple[Uuid, str]]:
    """(old accelerator, in words by what it was replaced) of what `noted` has found anew."""
    for key, text in changed.items():
        if key.startswith(REPLACED) and text:
            yield Uuid(key.removeprefix(REPLACED)), _told(text)


def missing(
    meta: Mapping[str, str], units: Mapping[UnitId, object], there: Mapping[Uuid, Accelerator]
) -> tuple[Board, ...]:
    """Boards that are not `there` and of which the journal still has units, by UUID."""
    return tuple(
        Board(old, _slot(old), _told(meta.get(f"{REPLACED}{old.uuid}", "")))
        for old in sorted(_kept(meta), key=lambda one: one.uuid)
        if old.uuid not in there and all(spec.id in units for spec in old.units)
    )


def devices(board: Board, units: Mapping[UnitId, object]) -> tuple[Device, ...]:
    """The devices of a board whose units the journal has."""
    return tuple(
        device
        for device in board.accelerator.devices
        if all(unit in units for unit in device.units)
    )


def _kept(meta: Mapping[str, str]) -> tuple[Accelerator, ...]:
    texts = [text for key, text in list(meta.items()) if key.startswith(KEPT) and text]
    return codec.accelerators_from([json.loads(text) for text in texts])


def _slot(accelerator: Accelerator) -> str:
    return accelerator.device.attributes.get("pci", "")


def _told(text: str) -> str:
    if not text:
        return ""
    found = json.loads(text)
    return f"board replaced by {found['by']} ({found['slot']})"
