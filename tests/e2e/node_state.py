"""A node seen from its host: what its state directory keeps, what its door says, its CDI specs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from fleet.cli.main import main
from fleet.core import errors
from fleet.core.clock import SystemClock
from fleet.core.messages import ClaimAnswer, DeviceView, NodeView
from fleet.core.model import HolderKind, Lease
from fleet.core.settings import Settings
from fleet.evidence import layout, parsed
from fleet.evidence.ledger import Ledger
from fleet.rpc import socket_paths
from fleet.rpc.client import DoorNode
from fleet.stores.factory import StorePlace
from fleet.stores.late import LateStore
from tests.e2e.place import Place

VENDOR = "fleetscrub.dev"


@dataclass(slots=True)
class NodeState:
    """A node of this machine, whoever owns its journal."""

    place: Place
    state: Path
    node: str

    def told(self) -> str:
        """What there is to know when something does not come about."""
        return str(self.view())

    def fault(self, name: str, device: str, *options: str) -> None:
        """Break a device with `fleet sim fault`, or with ``--clear`` take it back."""
        self.command("sim", "fault", name, "--device", device, *options)

    def command(self, *words: str) -> str:
        """What `fleet ... --state` of this node prints; it must end well."""
        output, trouble = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(trouble):
            code = main([*words, "--state", str(self.state)])
        assert code == 0, trouble.getvalue()
        return output.getvalue()

    @property
    def directory(self) -> Path:
        """The node's directory."""
        return layout.node_directory(self.state, self.node)

    @contextmanager
    def door(self) -> Iterator[DoorNode]:
        """The node, whoever owns its journal."""
        found = DoorNode(self.directory / socket_paths.DOOR)
        try:
            yield found
        finally:
            found.close()

    def view(self) -> NodeView | None:
        """The node now; None while nobody owns it."""
        with suppress(errors.NotOwner), self.door() as door:
            return door.view()
        return None

    def device(self, name: str) -> DeviceView | None:
        """One device now; None while nobody owns the node."""
        view = self.view()
        return next((one for one in view.devices if one.name == name), None) if view else None

    def claims(self) -> tuple[ClaimAnswer, ...] | None:
        """Claim records; None while nobody owns the node."""
        with suppress(errors.NotOwner), self.door() as door:
            return tuple(door.claims())
        return None

    def leases(self, kind: HolderKind = HolderKind.CLAIM) -> list[Lease]:
        """Leases of claims, or of another kind of holder, in the store."""
        place = self.store()
        store = LateStore(place.opener(SystemClock(), expected=lambda: False))
        try:
            return [one for one in store.leases() if one.holder.kind is kind]
        finally:
            store.close()

    def store(self) -> StorePlace:
        """Where its leases are."""
        return StorePlace(Settings(), self.state)

    def certificates(self, device: str) -> list[parsed.Certificate]:
        """Wipe certificates of one device, oldest first."""
        ledger = Ledger(layout.ledger_directory(self.state, self.node))
        found = [parsed.read(entry.envelope) for entry in ledger.entries() if entry.envelope]
        return [one for one in found if one.device_name == device]

    def spec(self, uid: str) -> Path:
        """Where the CDI spec of a claim is while it has one."""
        return self.place.cdi_directory / f"{VENDOR}-gpu_{uid}.json"

    def specs(self) -> list[str]:
        """Names of all specs of claims there are."""
        return sorted(path.name for path in self.place.cdi_directory.glob(f"{VENDOR}-gpu*_*"))
