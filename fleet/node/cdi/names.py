"""Names of CDI: kinds, devices, qualified ids and files. Pure.

Every name of ours is made from the claim's UID and the device's UUID, never from namespace or name
(A2), so that a claim created again under the same name shares nothing with the one before.

Decisions:

1. A device is called ``<claim uid>_<device uuid>``. No claim uid contains the ``_``: two different
   pairs never give one name (with ``-`` they could: claim ``a`` with device ``MIG-GPU-1`` and claim
   ``a-MIG`` with ``GPU-1``), and the claim can be read back from the name.
2. A character the grammar does not allow in a device name becomes ``_`` and two hexadecimal digits
   for each of its bytes, and so does ``_`` itself. UUIDs of today's drivers stay as they are.
3. A name has a length: what is longer than `DEVICE_LENGTH_MAX` keeps its beginning, then ``_x`` and
   a digest of the whole. ``_x`` is no byte in hexadecimal, so no shorter name looks like it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.core import errors
from fleet.core.model import ClaimUid, Uuid

VENDOR_LENGTH_MAX = 253
CLASS_LENGTH_MAX = 63
NAME_LENGTH_MAX = 253
DEVICE_LENGTH_MAX = 160
"""Characters the device's part of a name may have."""
FILE_LENGTH_MAX = 255
"""Bytes a file name may have on the file systems of Linux."""
SCANNED = (".json", ".yaml")
"""Endings of the files runtimes read; nothing unfinished of ours ever ends so."""
SUFFIX = ".json"
TEMPORARY = ".tmp"
ASIDE = ".aside"
AGENT = "agent"
"""Name of the one device through which our own node service reaches every accelerator."""
AGENT_CLASS = "-agent"

_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_FOREIGN = re.compile(r"[^A-Za-z0-9.:-]|[^A-Za-z0-9]\Z", re.DOTALL)
UID_LENGTH_MAX = 63


def kind_problems(kind: str) -> Iterator[str]:
    """What is wrong with ``<vendor>/<class>``; nothing when it may be written."""
    vendor, slash, name = kind.partition("/")
    if not slash:
        yield f"kind {kind!r} is not <vendor>/<class>"
        return
    for what, text, most in (
        ("vendor", vendor, VENDOR_LENGTH_MAX),
        ("class", name, CLASS_LENGTH_MAX),
    ):
        if not _PART.fullmatch(text):
            yield (
                f"{what} {text!r} must begin with a letter, end with a letter or digit and have"
                " only letters, digits, '_', '-' and '.' between"
            )
        elif len(text) < 2:
            yield f"{what} {text!r} has one character, on which runtimes in use crash"
        elif len(text) > most:
            yield f"{what} has {len(text)} characters; {most} are allowed"


def device_problems(name: str) -> Iterator[str]:
    """What is wrong with the name of a device; nothing when it may be written."""
    if not _DEVICE.fullmatch(name):
        yield (
            f"device name {name!r} must begin and end with a letter or digit and have only"
            " letters, digits, '_', '-', '.' and ':' between"
        )


def is_uid(text: str) -> bool:
    """Whether `text` can be the uid of a claim: it leads to no other directory or claim."""
    return _UID.fullmatch(text) is not None


def device_name(uid: ClaimUid, device: str) -> str:
    """The name of one device of a claim, legal and unique for every uid and device.

    Raises `InputInvalid` for a uid that is no name and for a device without one.
    """
    if not device:
        raise errors.InputInvalid(f"a device of claim {uid} has no name")
    return f"{_checked(uid)}_{_bounded(_FOREIGN.sub(_escaped, device))}"


def claim_of(name: str) -> ClaimUid | None:
    """The claim a device name was made for by `device_name`; None if it was not."""
    uid, separator, device = name.partition("_")
    return ClaimUid(uid) if separator and device and is_uid(uid) else None


def _bounded(name: str) -> str:
    if len(name) <= DEVICE_LENGTH_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[: DEVICE_LENGTH_MAX - len(digest) - 2]}_x{digest}"


def _escaped(found: re.Match[str]) -> str:
    encoded = found.group().encode("utf-8", "surrogatepass")
    return "".join(f"_{byte:02x}" for byte in encoded)


def _checked(uid: ClaimUid) -> ClaimUid:
    if not is_uid(uid):
        raise errors.InputInvalid(
            f"claim uid {uid!r} cannot be part of a file name",
            remedy="claim uids are letters, digits and hyphens",
        )
    return uid


@dataclass(frozen=True, slots=True)
class Kind:
    """One vendor and class, and how their files are called. Raises `SettingsInvalid`."""

    vendor: str
    name: str
    """The class."""

    def __post_init__(self) -> None:
        problems = list(kind_problems(str(self)))
        longest = len(self._temporary(ClaimUid("u" * UID_LENGTH_MAX)))
        if longest > FILE_LENGTH_MAX:
            problems.append(
                f"vendor and class together are {longest - FILE_LENGTH_MAX} characters too long for"
                " a file name"
            )
        if problems:
            raise errors.SettingsInvalid(
                f"no CDI kind {str(self)!r}: {'; '.join(problems)}",
                remedy="correct `kubernetes.cdi_vendor` and `kubernetes.cdi_class`",
                problems=problems,
            )

    def __str__(self) -> str:
        return f"{self.vendor}/{self.name}"

    @property
    def agent(self) -> Kind:
        """The kind of the device of our own node service: no tenant's class selects it."""
        return Kind(self.vendor, f"{self.name}{AGENT_CLASS}")

    def id(self, uid: ClaimUid, device: Uuid | str) -> str:
        """The fully qualified id of a device of a claim. Raises `InputInvalid` for a bad uid."""
        return f"{self}={device_name(uid, device)}"

    def file(self, uid: ClaimUid) -> str:
        """``<vendor>-<class>_<claim uid>.json``. Raises `InputInvalid` if the uid is no name."""
        return f"{self._prefix}{_checked(uid)}{SUFFIX}"

    def temporary(self, uid: ClaimUid) -> str:
        """The name a spec has until it is complete: in its directory, never scanned."""
        return self._temporary(_checked(uid))

    def claim(self, file: str) -> ClaimUid | None:
        """The claim whose file has this name; None if it is not a name of ours."""
        uid = file.removeprefix(self._prefix).removesuffix(SUFFIX)
        ours = file.startswith(self._prefix) and file.endswith(SUFFIX) and is_uid(uid)
        return ClaimUid(uid) if ours else None

    def is_temporary(self, file: str) -> bool:
        """Whether a file is an unfinished one of ours; whoever wrote it is gone at start."""
        if not (file.startswith(".") and file.endswith(TEMPORARY)):
            return False
        return self.claim(file[1 : -len(TEMPORARY)]) is not None

    def owns(self, file: str) -> bool:
        """Whether a file's name says that it is of this kind, whatever its content."""
        stem = file.removesuffix(SCANNED[0]).removesuffix(SCANNED[1])
        return file.startswith(self._prefix) or stem == self._prefix[:-1]

    @property
    def _prefix(self) -> str:
        return f"{self.vendor}-{self.name}_"

    def _temporary(self, uid: ClaimUid) -> str:
        return f".{self._prefix}{uid}{SUFFIX}{TEMPORARY}"
