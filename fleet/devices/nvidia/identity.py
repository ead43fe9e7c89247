"""Which card is in which slot, remembered: a dead card keeps its identity, a new one gets its own.

A GPU that fell off the bus tells nobody its UUID. What was seen when it lived is kept in a small
file: its whole shape, by PCI address and by what the kernel read off the card when it was plugged
in. Another kind of card in that slot, or a card whose UUID answers elsewhere, is somebody else.

With it goes how many of its links were ever up at once: only its past tells a card that has no
bridge from one that lost it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.core.model import Accelerator, Uuid
from fleet.devices import codec
from fleet.devices.sysfs import Function

LOG = logging.getLogger(__name__)
_UNNAMED = uuid.UUID("6a0b6bd4-6d0f-5f1f-9a26-0d5c2d1c4b0e")
"""Namespace of identities for cards whose own nobody knows."""
HASH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Known:
    """A card as it was when it last answered."""

    address: str
    ids: str
    """Vendor, device, subsystem and revision from the bus; "" unknown."""
    serial: str
    accelerator: Accelerator
    links: int = 0
    """The most NVLinks ever seen up on it at once."""


class Identities:
    """Cards remembered in the file at `path`; None: nothing is remembered.

    Never raises for the file: what cannot be read is not known, what cannot be written is logged.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._links: dict[Uuid, int] = {}

    def at(self, function: Function, *, alive: Collection[Uuid]) -> Known | None:
        """Who was last seen where `function` is now, if it may still be that card."""
        for known in self.all():
            if known.address == function.address and known.accelerator.uuid not in alive:
                serial = function.serial
                same = not (serial and known.serial) or serial == known.serial
                return known if same and known.ids in ("", marks(function)) else None
        return None

    def of(self, accelerator: Uuid) -> Known | None:
        """The card of that UUID."""
        return next((one for one in self.all() if one.accelerator.uuid == accelerator), None)

    def all(self) -> tuple[Known, ...]:
        """Everything remembered."""
        if self._path is None:
            return ()
        try:
            return tuple(_known(entry) for entry in json.loads(self._path.read_text())["cards"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            LOG.warning("remembered cards in %s cannot be read: %s", self._path, error)
            return ()

    def remember(self, seen: Iterable[Known]) -> None:
        """Keep `seen`; what was known of their slots or of them elsewhere is replaced.

        The most links of a card stay.
        """
        found = tuple(seen)
        slots = {known.address for known in found}
        uuids = {known.accelerator.uuid for known in found}

        def merged(before: tuple[Known, ...]) -> tuple[Known, ...]:
            links = {known.accelerator.uuid: known.links for known in before}
            kept = (
                known
                for known in before
                if known.address not in slots and known.accelerator.uuid not in uuids
            )
            fresh = (
                replace(known, links=max(known.links, links.get(uuid, 0), self._links.get(uuid, 0)))
                for known in found
                for uuid in (known.accelerator.uuid,)
            )
            return (*kept, *fresh)

        if found:
            self._change(merged)

    def links(self, accelerator: Uuid, up: int = 0) -> int:
        """The most links that were ever seen up on a card, `up` of them just now.

        Without a file, or for a card that is in none yet, as far as this object saw.
        """
        known = self.of(accelerator)
        kept = known.links if known else 0
        most = max(up, kept, self._links.get(accelerator, 0))
        self._links[accelerator] = most
        if known is not None and most > kept:
            self._change(
                lambda before: tuple(
                    replace(one, links=max(one.links, most))
                    if one.accelerator.uuid == accelerator
                    else one
                    for one in before
                )
            )
        return most

    def _change(self, change: Callable[[tuple[Known, ...]], tuple[Known, ...]]) -> None:
        """Rewrite the file, alone; not where nothing changes."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.with_name(f"{self._path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                before = self.all()
                after = tuple(sorted(change(before), key=lambda known: known.address))
                if after != before:
                    _write(self._path, after)
        except OSError as error:
            LOG.warning("cards cannot be remembered in %s: %s", self._path, error)


def marks(function: Function) -> str:
    """What the kernel read off a card when it was plugged in; "" unknown."""
    ids = function.ids
    if ids is None:
        return ""
    numbers = (ids.vendor, ids.device, ids.subsystem_vendor, ids.subsystem_device, ids.revision)
    return ":".join("" if number is None else f"{number:04x}" for number in numbers)


def unnamed(address: str, ids: str) -> Uuid:
    """An identity for a card that never told its own: stable for this kind of card in this slot."""
    return Uuid(f"PCI-{uuid.uuid5(_UNNAMED, f'{address} {ids}')}")


def name(address: str, accelerator: Uuid) -> str:
    """The device name of a whole card, as ``gpu-3b-00-1a2b3c4d``: slot and identity.

    It never contains the driver's index, so that a card that vanishes gives its name to nobody.
    """
    short = hashlib.sha256(accelerator.encode()).hexdigest()[:HASH_DIGITS]
    domain, _, place = address.partition(":")
    slot = place.partition(".")[0].replace(":", "-")
    parts = ("gpu", domain if domain.strip("0") else "", slot, short)
    return "-".join(part for part in parts if part)


def _known(entry: Mapping[str, Any]) -> Known:
    (accelerator,) = codec.accelerators_from([entry["accelerator"]])
    return Known(
        entry["address"], entry["ids"], entry["serial"], accelerator, int(entry.get("links", 0))
    )


def _write(path: Path, cards: Iterable[Known]) -> None:
    text = json.dumps(
        {
            "cards": [
                {
                    "address": known.address,
                    "ids": known.ids,
                    "serial": known.serial,
                    "links": known.links,
                    "accelerator": codec.accelerators([known.accelerator])[0],
                }
                for known in cards
            ]
        },
        indent=1,
    )
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text + "\n")
    fresh.replace(path)
