"""The files of an export: their list, their checksums, the index. Reading side.

The index says how many certificates and countersignatures the copy holds, whose each key is, and
the checksum of every file, so that what was taken out of a copy contradicts it. It is not signed:
whoever rewrites index and checksums together is found by the coordinator's countersignatures alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.core.disk import read_regular, shown
from fleet.core.errors import EvidenceInvalid, InputInvalid
from fleet.evidence import dsse, layout
from fleet.evidence.segments import Damage, Place

SUMS = "SHA256SUMS"
INDEX = "index.json"
KEY_LIST = "keys/list.json"
COORDINATOR_KEYS = "keys/coordinator"
FORMAT = "https://fleetscrub.dev/export/v1"
MOST_ENVELOPE_BYTES = 1024 * 1024
_MOST_FILE_BYTES = 256 * 1024 * 1024
_SUM_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._/-]*)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HEX = re.compile(r"[0-9a-f]{64}")
COUNTS = ("certificates", "omitted", "countersignatures")


def is_export(directory: Path) -> bool:
    """Whether `directory` looks like an export, whatever state it is in."""
    return any(os.path.lexists(directory / name) for name in (SUMS, INDEX))


def node_keys(directory: Path, node: str) -> Path:
    """Where an export keeps a node's public keys."""
    return directory / "keys" / "nodes" / layout.checked_name(node)


def losses(directory: Path, node: str) -> Path:
    """Where an export keeps a node's data-loss records."""
    return directory / "losses" / layout.checked_name(node)


def ledger_name(node: str, part: str) -> str:
    """How the index and the folder of certificates name a ledger of `node`."""
    return f"{node}.{part}" if part else node


def read(directory: Path, damages: list[Damage]) -> dict[str, Any] | None:
    """The index, if it can be read; everything wrong with it and the files goes to `damages`."""
    listed: dict[str, str] = {}
    damages += check_sums(directory, listed)
    place = Place(str(directory / INDEX))
    try:
        index = _read_index(directory / INDEX)
    except EvidenceInvalid as error:
        damages.append(Damage("unreadable-index", error.detail, place))
        return None
    files = index["files"]
    if listed:
        rest = {name: digest for name, digest in listed.items() if name != INDEX}
        for name in sorted(rest.keys() ^ files.keys()):
            where = "index" if name in rest else "list of checksums"
            damages.append(Damage("altered-index", f"the {where} does not name {name}", place))
        for name in sorted(rest.keys() & files.keys()):
            if rest[name] != files[name]:
                detail = f"index and list of checksums differ about {name}"
                damages.append(Damage("altered-index", detail, place))
    for name, count in counts(index).items():
        if index["counts"][name] != count:
            detail = f"it was made with {index['counts'][name]} {name} and names {count}"
            damages.append(Damage("altered-index", detail, place))
    return index


def counts(index: dict[str, Any]) -> dict[str, int]:
    """How many of each kind the rows of an index name."""
    files = [file for rows in index["nodes"].values() for _, file in rows["entries"]]
    omitted = files.count(None)
    found = (len(files) - omitted, omitted, len(index["heads"]["entries"]))
    return dict(zip(COUNTS, found, strict=True))


def check_sums(directory: Path, listed: dict[str, str] | None = None) -> Iterator[Damage]:
    """Compare every file of an export with its SHA256SUMS; `listed` receives what that says."""
    listed = {} if listed is None else listed
    path = directory / SUMS
    try:
        text = read_regular(path, most_bytes=_MOST_FILE_BYTES).decode("ascii")
    except (OSError, ValueError) as error:
        detail = f"the list of checksums cannot be read: {error}"
        yield Damage("missing-file", detail, Place(str(path)))
        return
    yield from _read_sums(text, Place(str(path)), listed)
    present = set(_names(directory))
    for name in sorted(present - listed.keys() - {SUMS}):
        yield Damage("extra-file", "is not part of the export", Place(shown(directory / name)))
    for name, expected in listed.items():
        where = Place(str(directory / name))
        if name not in present:
            yield Damage("missing-file", "is listed and not there", where)
            continue
        try:
            content = read_regular(directory / name, most_bytes=_MOST_FILE_BYTES)
        except OSError as error:
            yield Damage("unreadable-file", f"cannot be read: {error.strerror}", where)
            continue
        if hashlib.sha256(content).hexdigest() != expected:
            yield Damage("altered-file", "does not match its checksum", where)


def _read_sums(text: str, place: Place, listed: dict[str, str]) -> Iterator[Damage]:
    offset = 0
    for line in text.splitlines(keepends=True):
        match = _SUM_LINE.fullmatch(line.removesuffix("\n")) if line.endswith("\n") else None
        if match is None or ".." in match[2].split("/"):
            yield Damage("unreadable-entry", "not a checksum line", replace(place, offset=offset))
        else:
            listed[match[2]] = match[1]
        offset += len(line)
    if list(listed) != sorted(listed):
        yield Damage("out-of-order", "the checksums are not sorted", place)


def _names(directory: Path) -> Iterator[str]:
    """Everything below `directory` that is no directory, links to directories included."""
    for top, folders, files in os.walk(directory):
        links = [name for name in folders if (Path(top) / name).is_symlink()]
        for name in (*files, *links):
            yield str((Path(top) / name).relative_to(directory))


def _read_index(path: Path) -> dict[str, Any]:
    try:
        content = read_regular(path, most_bytes=_MOST_FILE_BYTES)
    except OSError as error:
        raise EvidenceInvalid(f"cannot be read: {error.strerror}") from error
    found = dsse.parse(content)
    try:
        if found["format"] != FORMAT or not isinstance(found["complete"], bool):
            raise EvidenceInvalid(f"is not of format {FORMAT}")
        for rows in (*found["nodes"].values(), found["heads"]):
            for digest, file in rows["entries"]:
                if not _DIGEST.fullmatch(digest) or not (file is None or _inside(file)):
                    raise EvidenceInvalid(f"has a malformed row {[digest, file]}")
        for name, rows in found["nodes"].items():
            layout.checked_name(name)
            layout.checked_name(rows["node"])
            if name != ledger_name(rows["node"], rows["ledger"]):
                raise EvidenceInvalid(f"names a ledger {name!r} that is called otherwise")
        for name in found["keys"]["nodes"]:
            layout.checked_name(name)
        for key_id in (*found["keys"]["coordinator"], *_flat(found["keys"]["nodes"])):
            if not _HEX.fullmatch(key_id):
                raise EvidenceInvalid(f"has a malformed key id {key_id!r}")
        if not isinstance(found["files"], dict) or found["counts"].keys() != set(COUNTS):
            raise EvidenceInvalid("does not say what it holds")
    except (KeyError, TypeError, ValueError, AttributeError, InputInvalid) as error:
        raise EvidenceInvalid(f"is not an index: {error!r}") from error
    return dict(found)


def _flat(lists: dict[str, list[str]]) -> Iterator[str]:
    for one in lists.values():
        yield from one


def _inside(file: str) -> bool:
    """Whether an index may name this file: it must not lead out of the export."""
    path = Path(file)
    return "\0" not in file and not path.is_absolute() and ".." not in path.parts
