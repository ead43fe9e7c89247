"""The coordinator's list of keys in its state directory: read, renewed, signed, countersigned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleet.core import errors
from fleet.core.disk import read_regular, replace
from fleet.evidence import heads, key_list, layout
from fleet.evidence.key_list import Chosen, Kept, KeyList, Listed, Named
from fleet.evidence.keys import KeyRing, SigningKey
from fleet.evidence.segments import Damage, Place

_RESTORE = "keep the file for inquiry and restore it from the archive (keys/lists/)"


def ring(state: Path) -> KeyRing:
    """The coordinator's public keys, old and present."""
    return KeyRing.owned(layout.coordinator_keys_directory(state), layout.COORDINATOR_STEM)


def has_worked(state: Path) -> bool:
    """Whether this is a coordinator's directory.

    A host that only serves a node has begun a log of countersignatures as well, with a key that
    signs nothing more: a list signed with it would be nobody's word.
    """
    directory = layout.coordinator_directory(state)
    known = (layout.archive_cursor(state), layout.key_list(state), directory / "store.db")
    if any(path.exists() for path in known):
        return True
    return bool(heads.HeadsLog(layout.heads_directory(state)).latest())


def read(state: Path) -> Chosen | None:
    """The list there is. Raises `EvidenceInvalid` for one that is not the coordinator's newest.

    An older one put in its place, and one taken away, show in the countersignatures.
    """
    found = present(state)
    countersigned = heads.HeadsLog(layout.heads_directory(state)).listed()
    if why := key_list.behind(found, countersigned):
        raise errors.EvidenceInvalid(f"{layout.key_list(state)}: {why}", remedy=_RESTORE)
    return found


def present(state: Path) -> Chosen | None:
    """The list there is, be it the newest or not. Raises `EvidenceInvalid` for a stranger's."""
    path = layout.key_list(state)
    try:
        content = read_regular(path, most_bytes=key_list.MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise errors.EvidenceInvalid(f"{path} cannot be read: {error.strerror}") from error
    damages: list[Damage] = []
    found = key_list.newest([Kept(content, Place(str(path)))], ring(state), damages)
    if damages:
        raise errors.EvidenceInvalid(f"{path}: {damages[0].detail}", remedy=_RESTORE)
    return found


def named(state: Path) -> Named | None:
    """The list as it is to be countersigned; None: there is none that the coordinator signed."""
    try:
        found = present(state)
    except errors.FleetError:
        return None  # told by `verify`, and must not hold countersignatures up
    return None if found is None else found.name


def signed(
    state: Path, before: Chosen | None, keys: Mapping[str, Listed], *, key: SigningKey, now: float
) -> KeyList:
    """Sign `keys` as the list after `before` and put it in place."""
    content = key_list.sign(
        keys,
        number=1 if before is None else before.listed.number + 1,
        previous=None if before is None else before.name.digest,
        key=key,
        now=now,
    )
    replace(layout.key_list(state), content)
    return key_list.read(content)
