"""What kubelet asks for and is answered, as plain values. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AskedClaim:
    """A claim as kubelet names it: nothing but namespace, UID and name crosses the socket."""

    namespace: str
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim. Requests are base names; `share_id` None: not shared."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim whose containers may start; no devices is a valid answer."""

    devices: tuple[PreparedDevice, ...] = ()
