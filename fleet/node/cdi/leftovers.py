"""What is found in the directory of specs at start: files of an earlier version, of a crash (B68).

A device defined twice exists for nobody, so an old file and today's must never both be there, and
a running pod's container may restart at any moment, so they must never both be missing. The one
step that does both is a rename from the old name to today's; the content follows by `write`, which
replaces the file in one step too. (A reader that listed the old name just before finds it gone; the
rename itself makes it look again.)

A file of ours that no runtime can read, or of which nobody can say whose it is, is moved aside
under a name no runtime looks at, and reported. Files of others are not touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core.model import ClaimUid
from fleet.node.cdi import files, parser, rules
from fleet.node.cdi.model import Spec
from fleet.node.cdi.names import ASIDE, SCANNED, Kind, claim_of

_UUID = re.compile(
    r"(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Where to look, and for what."""

    directory: Path
    kind: Kind
    prefixes: tuple[str, ...]
    """Further beginnings of file names that are ours."""
    calls: files.Calls

    def owns(self, name: str) -> bool:
        """Whether a file's name alone makes it ours."""
        return self.kind.owns(name) or (bool(self.prefixes) and name.startswith(self.prefixes))


@dataclass(slots=True)
class Settlement:
    """What was found and done, and what could not be done."""

    found: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def settle(place: Leftovers, live: frozenset[ClaimUid]) -> Settlement:
    """Settle every file of this kind; each on its own, in the order of their names."""
    outcome = Settlement()
    try:
        names = sorted(path.name for path in place.directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return outcome  # no directory holds no spec
    except OSError as error:
        outcome.failed.append(f"{place.directory} cannot be read: {error}")
        return outcome
    for name in names:
        try:
            outcome.found += _settle(place, name, live)
        except FileNotFoundError:
            continue
        except OSError as error:
            outcome.failed.append(f"{place.directory / name} cannot be settled: {error}")
    try:
        files.sync(place.directory, place.calls)
    except OSError as error:
        outcome.failed.append(f"{place.directory} cannot be synced: {error}")
    return outcome


def _settle(place: Leftovers, name: str, live: frozenset[ClaimUid]) -> Iterator[str]:
    path = place.directory / name
    if place.kind.is_temporary(name):
        path.unlink(missing_ok=True)
        return
    if not name.endswith(SCANNED) or path.is_dir():
        return
    own = place.owns(name)
    tree, doubt = _tree(path, own=own)
    said = tree.get("kind")
    if said != str(place.kind) and (not own or isinstance(said, str)):
        return
    spec, problems = rules.judged(tree)
    if doubt or spec is None or problems:
        reason = doubt or "; ".join(problems)
        if place.kind.claim(name) in live:
            yield f"{path} cannot be read and waits to be written anew: {reason}"
        else:
            yield _aside(place, path, reason)
        return
    uid = _owner(spec, place.kind.claim(name), live)
    if uid is None:
        yield _aside(place, path, "its devices belong to no claim or to several")
    elif name != place.kind.file(uid):
        yield _adopt(place, path, uid, tree)


def _tree(path: Path, *, own: bool) -> tuple[dict[str, object], str]:
    """What the file says, or why a runtime cannot read it. Raises OSError for a file of ours."""
    try:
        return parser.tree(files.content(path), path.name), ""
    except parser.Malformed as error:
        return {}, str(error)
    except (FileNotFoundError, files.NotAFile) as error:
        return {}, f"{path.name} is no file: {error}"
    except OSError:
        if own:
            raise
        return {}, f"{path.name} cannot be read"


def _owner(spec: Spec, named: ClaimUid | None, live: frozenset[ClaimUid]) -> ClaimUid | None:
    """The one claim all devices of a file belong to; None if there is not exactly one."""
    owners = {_claim(device.name, named, live) for device in spec.devices}
    return owners.pop() if len(owners) == 1 else None


def _claim(device: str, named: ClaimUid | None, live: frozenset[ClaimUid]) -> ClaimUid | None:
    """Whose device this is: as we name it, as a claim with a record, as the file is named."""
    today = claim_of(device)
    if today is not None and (today in live or today == named or _UUID.fullmatch(today)):
        return today
    words = f"-{re.sub('[^A-Za-z0-9]', '-', device)}-"
    known = [uid for uid in live if f"-{uid}-" in words]
    if known:
        return max(known, key=len)
    if named is not None and f"-{named}-" in words:
        return named
    found = _UUID.search(device)
    return today or (ClaimUid(found.group()) if found else None)


def _adopt(place: Leftovers, path: Path, uid: ClaimUid, tree: dict[str, object]) -> str:
    """Give a file today's name; one that has it already wins. Never zero definitions, never two."""
    target = place.directory / place.kind.file(uid)
    if _readable(target):
        path.unlink()
        return f"{path} is removed: {target.name} defines the devices of claim {uid}"
    if path.suffix != target.suffix:
        # JSON is YAML: readable under the old name and, after the rename, under the new one.
        text = json.dumps(tree, indent=2, ensure_ascii=False).encode() + b"\n"
        files.put(path, text, place.directory / place.kind.temporary(uid), place.calls)
    place.calls.replace(path, target)
    return f"{path} is now {target.name}: an earlier form of the spec of claim {uid}"


def _readable(path: Path) -> bool:
    try:
        return not rules.check(files.content(path), path.name)
    except OSError:
        return False


def _aside(place: Leftovers, path: Path, reason: str) -> str:
    aside = path.with_name(path.name + ASIDE)
    place.calls.replace(path, aside)
    return f"{path} is moved aside to {aside.name}: {reason}"
