"""The directory of specs of one vendor and class: a file per claim, and one for our own agent.

A spec becomes visible only complete (A1); removing twice is fine (A3); writing what is there
already changes nothing (A4), and whatever else is at its path is replaced in one step (B79). One
operation at a time per claim is the caller's duty: both would use one temporary name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet.core import errors
from fleet.core.claim_states import Claim
from fleet.core.model import ClaimUid, Uuid
from fleet.devices import host_paths
from fleet.devices.base import Grant
from fleet.node.cdi import files, leftovers, parser, scan, spec
from fleet.node.cdi.leftovers import Leftovers
from fleet.node.cdi.names import AGENT, Kind


@dataclass(frozen=True, slots=True)
class SpecDirectory:
    """One directory of specs. `vendor` is a domain, `kind` the class. Raises `SettingsInvalid`."""

    directory: Path
    vendor: str = "fleetscrub.dev"
    kind: str = "gpu"
    prefixes: tuple[str, ...] = ()
    """Further beginnings of file names that are ours: what earlier versions wrote."""
    host_root: Path = Path("/")
    """Where the host's tree is visible to us; paths in specs are the host's."""
    calls: files.Calls = field(default_factory=files.Calls)
    _claims: Kind = field(init=False, repr=False, compare=False)
    _agents: Kind = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kind = Kind(self.vendor, self.kind)
        object.__setattr__(self, "_claims", kind)
        object.__setattr__(self, "_agents", kind.agent)

    def name(self, uid: ClaimUid) -> str:
        """``<vendor>-<class>_<claim uid>.json``. Raises `InputInvalid` if the uid is no name."""
        return self._claims.file(uid)

    def ids(self, claim: Claim, device: Uuid) -> tuple[str, ...]:
        """Qualified ids of one device of the claim, the first unique among all devices."""
        return (self._claims.id(claim.uid, device),)

    def agent_ids(self, uid: ClaimUid) -> tuple[str, ...]:
        """Qualified ids of the agent device for the claim of our own node service."""
        return (self._agents.id(uid, AGENT),)

    def write(self, claim: Claim, grants: Mapping[Uuid, Grant]) -> None:
        """Make the claim's spec visible with a device for each grant; the same is left as it is.

        Raises `SpecUnavailable`, naming the path: of the file, or one a grant mounts and the host
        does not have. What was visible before is still visible then, and no more. Raises
        `InputInvalid` for grants that no valid spec can say.
        """
        missing = [uuid for uuid in (*claim.devices, *claim.attached) if uuid not in grants]
        if missing:
            raise errors.SpecUnavailable(
                f"nothing is known of what a container needs for {', '.join(missing)}",
                remedy="the device is not in the inventory now; the repeated call looks again",
            )
        self._put(self._claims, claim.uid, grants)

    def remove(self, uid: ClaimUid) -> None:
        """Remove the claim's spec; absent is fine. Raises `SpecUnavailable`."""
        self._remove(self._claims, uid)

    def listed(self) -> Sequence[ClaimUid]:
        """Claims that have a spec of ours in the directory. Raises `SpecUnavailable`.

        A file with our prefix whose rest is no claim uid was not written by us and is not listed,
        nor is one whose content says another kind.
        """
        return self._listed(self._claims)

    def dangling(self, uid: ClaimUid) -> tuple[str, ...]:
        """Host paths that the claim's spec mounts and the host does not have any more (B79).

        Empty also where there is no spec, or none that can be read: other calls say so.
        """
        name = self.name(uid)
        try:
            found = parser.spec(parser.tree(files.content(self.directory / name), name))
            edits = (device.container_edits for device in found.devices)
            paths = {mount.host_path for edit in edits for mount in edit.mounts or ()}
            return tuple(p for p in sorted(paths) if not host_paths.exists(self.host_root, p))
        except (OSError, ValueError):
            return ()

    def write_agent(self, uid: ClaimUid, grant: Grant) -> None:
        """Make the spec of the agent device visible for its claim; as `write`."""
        self._put(self._agents, uid, {Uuid(AGENT): grant})

    def remove_agent(self, uid: ClaimUid) -> None:
        """Remove the agent's spec; absent is fine. Raises `SpecUnavailable`."""
        self._remove(self._agents, uid)

    def listed_agents(self) -> Sequence[ClaimUid]:
        """Claims that have a spec of the agent device. Raises `SpecUnavailable`."""
        return self._listed(self._agents)

    def settle(self, live: Collection[ClaimUid]) -> tuple[str, ...]:
        """Bring what an earlier version or a crash left into today's form; what was found, as text.

        To be called at start, before any write and with nobody else writing. `live` are the claims
        with a record, agents' included. Afterwards every file of ours that a runtime reads has the
        name of its claim, so that `listed` sees all of them and no device is defined twice; whether
        a claim without a record is removed is decided by whoever asks `listed`. Raises
        `SpecUnavailable` if something could not be settled; the rest is, and calling again is fine.
        """
        found: list[str] = []
        failed: list[str] = []
        for kind, prefixes in ((self._claims, self.prefixes), (self._agents, ())):
            outcome = leftovers.settle(
                Leftovers(self.directory, kind, prefixes, self.calls), frozenset(live)
            )
            found += outcome.found
            failed += outcome.failed
        if failed:
            raise errors.SpecUnavailable("; ".join((*failed, *found)))
        return tuple(found)

    def conflicts(self) -> tuple[str, ...]:
        """Devices no container can get because two files define them. Raises `SpecUnavailable`."""
        try:
            return scan.conflicts(self.directory)
        except OSError as error:
            raise errors.SpecUnavailable(f"{self.directory} cannot be read: {error}") from error

    def _put(self, kind: Kind, uid: ClaimUid, grants: Mapping[Uuid, Grant]) -> None:
        path = self.directory / kind.file(uid)
        text = spec.text(spec.spec(kind, uid, grants))
        # The agent gets what there may ever be: one missing node keeps it from no other card.
        self._require(grants, nodes=kind == self._claims)
        try:
            if not files.written(path, text):
                files.make(self.directory, self.calls)
                files.put(path, text, self.directory / kind.temporary(uid), self.calls)
            files.sync(self.directory, self.calls)
        except OSError as error:
            raise errors.SpecUnavailable(f"{path} cannot be written: {error}") from error

    def _require(self, grants: Mapping[Uuid, Grant], *, nodes: bool) -> None:
        """Every path named exists on the host now: mounts, without which no container could start,
        and device nodes, without which it would have no device (B69, B79).

        Of a device node the numbers suffice where the host's /dev cannot be seen from here, and
        where the host makes it late.
        """
        needed = {mount.host_path: uuid for uuid in grants for mount in grants[uuid].mounts}
        if nodes and host_paths.shows_devices(self.host_root):
            needed |= {
                node.host_path or node.path: uuid
                for uuid in grants
                for node in grants[uuid].nodes
                if not node.made_late
            }
        for path, uuid in needed.items():
            try:
                if host_paths.exists(self.host_root, path):
                    continue
                detail = f"{path}, which {uuid} needs, is missing on the host"
            except OSError as error:
                detail = f"whether the host has {path} is unknown: {error}"
            raise errors.SpecUnavailable(
                detail, remedy="check the driver's installation; the repeated call looks again"
            )

    def _remove(self, kind: Kind, uid: ClaimUid) -> None:
        path = self.directory / kind.file(uid)
        try:
            path.unlink(missing_ok=True)  # first: nothing in the temporary's way keeps it visible
            (self.directory / kind.temporary(uid)).unlink(missing_ok=True)
            if self.directory.is_dir():
                files.sync(self.directory, self.calls)
        except NotADirectoryError:
            return  # what is in its place holds no spec
        except OSError as error:
            raise errors.SpecUnavailable(f"{path} cannot be removed: {error}") from error

    def _listed(self, kind: Kind) -> tuple[ClaimUid, ...]:
        if not self.directory.is_dir():
            return ()
        try:
            names = scan.scanned(self.directory)
        except OSError as error:
            raise errors.SpecUnavailable(f"{self.directory} cannot be read: {error}") from error
        uids = ((name, kind.claim(name)) for name in names)
        return tuple(uid for name, uid in uids if uid and not self._foreign(kind, name))

    def _foreign(self, kind: Kind, name: str) -> bool:
        """Whether a file with a name like ours says itself that it is somebody else's."""
        try:
            found = parser.tree(files.content(self.directory / name), name).get("kind")
        except (OSError, parser.Malformed):
            return False
        return isinstance(found, str) and found != str(kind)
