"""`fleet prove`: does a tenant's secret survive? Two tenants take the same device in turn.

Everything goes the way a claim goes: lease, prepare, write, unprepare, lease given back; then the
next tenant, who searches all of the memory it got for every 64-byte block of the secret. On a
simulated device the memory is searched between the two as well; into a real one nobody looks who
has no claim on it.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
from rich.console import Console

from fleet.cli import places, reach, text
from fleet.cli.options import AddressOption, StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit, error_console
from fleet.core import errors
from fleet.core.leases import AcquireRequest
from fleet.core.messages import ClaimOrder, DeviceView, Message
from fleet.core.model import Holder, HolderKind, Lease, State, Token, UnitId

SECRET_BYTES = 4096
DEADLINE_S = 300.0
"""Time, s, one step may take before the proof is given up."""
PAUSE_S = 0.2

T = TypeVar("T")


class Proof(Message):
    """What the proof saw."""

    simulated: bool
    node: str
    device: str
    uuid: str
    secret_bytes: int
    memory_bytes: int
    """Memory searched, bytes: all of the device."""
    planted: int
    """Places where a block of the secret was found while tenant A held the device."""
    after_release: int | None
    """Blocks found after tenant A had released it, before anybody else got it. None: not looked,
    the device is real."""
    after_handover: int
    """Blocks found by tenant B in the memory it was given."""
    certificates: tuple[str, ...] = ()
    """Certificates tenant B was given the device under."""
    seconds: float

    @property
    def blocks(self) -> int:
        """Blocks that one copy of the secret has at least."""
        return max(1, self.secret_bytes // 64)

    @property
    def copies(self) -> int:
        """How often the secret was found: it is written at several places of the memory."""
        return self.planted // self.blocks

    @property
    def holds(self) -> bool:
        """Whether the secret was there and is gone."""
        return self.planted > 0 and not self.after_release and self.after_handover == 0


class ProveAnswer(Proof, VerbAnswer):
    """What the proof saw."""

    kind: Literal["prove"] = "prove"


def prove(
    *,
    device: Annotated[
        str | None,
        typer.Option("--device", help="Device to use; the first free one when not given."),
    ] = None,
    secret: Annotated[
        str | None, typer.Option("--text", help="The secret; random bytes when not given.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", exists=True, dir_okay=False, help="Take it from here.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End at once where no device is free.")
    ] = False,
    state: StateOption = None,
    address: AddressOption = None,
    as_json: AsJson = False,
) -> None:
    """Exit code 0 when nothing of the secret is left, 1 when a single block is."""
    content = _secret(secret, file)
    directory = state_directory(state)
    with reach.fleet(directory, address=address, ticking=True) as fleet:
        proof = _Attempt(fleet, directory, content, wait=not no_wait).run(device)
    emit(ProveAnswer.of(proof), as_json=as_json, render=lambda console: _render(console, proof))
    raise typer.Exit(0 if proof.holds else 1)


class _Attempt:
    """One proof."""

    def __init__(self, fleet: reach.Fleet, state: Path, content: bytes, *, wait: bool) -> None:
        self._fleet = fleet
        self._state = state
        self._content = content
        self._wait = wait
        self._told_waiting = False
        self._console = error_console()

    def run(self, name: str | None) -> Proof:
        began = time.monotonic()
        node, device = self._choose(name)
        place = places.of(self._state, node, device)
        trial = secrets.token_hex(4)
        first, second = f"prove-{trial}-a", f"prove-{trial}-b"
        try:
            self._prepare(node, device, first)
            self._say(f"tenant A holds {node}/{device.name} and writes its secret")
            place.write(self._content)
            planted = place.count(self._content)
        finally:
            place.leave()
            self._unprepare(node, first)
        after_release = place.look(self._content)
        try:
            certificates = self._prepare(node, device, second)
            self._say(f"tenant B holds {node}/{device.name} and searches all of its memory")
            after_handover = place.count(self._content)
            searched = place.size
        finally:
            place.leave()
            self._unprepare(node, second)
        self._until(lambda: self._delivered(node))
        return Proof(
            simulated=self._fleet.nodes[node].view().simulated,
            node=node,
            device=device.name,
            uuid=device.uuid,
            secret_bytes=len(self._content),
            memory_bytes=searched,
            planted=planted,
            after_release=after_release,
            after_handover=after_handover,
            certificates=certificates,
            seconds=time.monotonic() - began,
        )

    def _choose(self, name: str | None) -> tuple[str, DeviceView]:
        nodes = self._fleet.nodes
        chosen = {reach.find(nodes, name)[0]} if name else set(nodes)
        until = time.monotonic() + DEADLINE_S
        while True:
            free = [
                (node, device)
                for node in sorted(chosen)
                for device in self._fleet.nodes[node].view().devices
                if name in (None, device.uuid, device.name)
                and device.state in (State.CLEAN, State.DIRTY)
                and not device.claim
            ]
            if free:
                return free[0]
            self._refuse_held(sorted(chosen), name)
            busy = errors.DeviceBusy(f"no device is free: {self._taken(sorted(chosen), name)}")
            if time.monotonic() >= until:
                raise busy
            self._wait_for(busy)

    def _taken(self, nodes: Sequence[str], name: str | None) -> str:
        """What each device is busy with, in few words."""
        counts = Counter(
            f"held by claim {device.claim}" if device.claim else device.state
            for node in nodes
            for device in self._fleet.nodes[node].view().devices
            if name in (None, device.uuid, device.name)
        )
        return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none"

    def _wait_for(self, error: errors.FleetError) -> None:
        """Wait a moment for what keeps us, which is said once. Raises it where nobody waits."""
        if not self._wait:
            raise error
        if not self._told_waiting:
            self._told_waiting = True
            self._say(
                f"waiting up to {DEADLINE_S:g} s: {error.detail}; --no-wait, or Ctrl-C, gives up"
            )
        time.sleep(PAUSE_S)

    def _refuse_held(self, nodes: Sequence[str], name: str | None) -> None:
        """Real devices that are HELD stay so until somebody decides: waiting does not help."""
        views = [self._fleet.nodes[node].view() for node in nodes]
        if any(view.simulated for view in views):
            return
        asked = [d for view in views for d in view.devices if name in (None, d.uuid, d.name)]
        if asked and all(device.state == State.HELD for device in asked):
            raise errors.DeviceUnfit(
                "nobody knows who holds these devices: all are HELD",
                remedy="`fleet scrub` wipes them once you confirm that they are free, or record it"
                " with `fleet node adopt`",
            )

    def _prepare(self, node: str, device: DeviceView, uid: str) -> tuple[str, ...]:
        self._say(f"claim {uid}: lease and prepare (the device is wiped for it)")
        floor = Token.parse(device.floor)
        holder = Holder(HolderKind.CLAIM, uid)
        request = AcquireRequest(frozenset(UnitId(unit) for unit in device.units), holder)
        lease = self._acquire(node, device, request)
        order = ClaimOrder(
            uid=uid,
            node=node,
            devices=(device.uuid,),
            token=str(max(lease.token, floor)),
            namespace="prove",
            name=uid,
            consumers=(uid,),
        )
        return self._until(lambda: self._fleet.nodes[node].prepare(order).certificates)

    def _acquire(self, node: str, device: DeviceView, request: AcquireRequest) -> Lease:
        def attempt() -> Lease:
            now = next(d for d in self._fleet.nodes[node].view().devices if d.uuid == device.uuid)
            floor = Token.parse(now.floor)
            asked = AcquireRequest(
                request.units, request.holder, None, floor if floor.counter else None
            )
            (answer,) = self._fleet.coordinator.acquire([asked])
            if isinstance(answer, errors.FleetError):
                raise answer
            return answer

        return self._until(attempt, told=True)

    def _unprepare(self, node: str, uid: str) -> None:
        self._say(f"claim {uid}: released; the node wipes, verifies and certifies")
        self._until(lambda: self._fleet.nodes[node].unprepare(uid))

    def _delivered(self, node: str) -> None:
        """The node has given the last lease back; before that its store still names tenant B."""
        if self._fleet.nodes[node].view().outbox:
            raise errors.DeviceBusy(f"{node} has not given the lease back yet")

    def _until(self, attempt: Callable[[], T], *, told: bool = False) -> T:
        """Ask until it works; `told`: what keeps it is somebody else's, and is said."""
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                return attempt()
            except errors.Retryable as error:
                if time.monotonic() >= until:
                    raise
                if told:
                    self._wait_for(error)
                else:
                    time.sleep(PAUSE_S)

    def _say(self, line: str) -> None:
        self._console.print(text.plain(line))


def _secret(secret: str | None, file: Path | None) -> bytes:
    if secret is not None and file is not None:
        raise errors.InputInvalid("--text and --file exclude each other", remedy="give one")
    content = secret.encode() if secret is not None else file.read_bytes() if file else None
    if content is None:
        return secrets.token_bytes(SECRET_BYTES)
    if len(content) < 8:
        raise errors.InputInvalid(
            f"a secret of {len(content)} B proves nothing: such bytes turn up by chance",
            remedy="give at least 8 bytes",
        )
    return content


def _render(console: Console, proof: Proof) -> None:
    text.warn(console, simulated=proof.simulated)
    place = f"{proof.node}/{proof.device}"
    console.print(
        f"{place}: {proof.secret_bytes} B of secret, {text.size(proof.memory_bytes)} searched each"
        f" time, {text.duration(proof.seconds)}"
    )
    console.print(
        f"  while tenant A held it:      {proof.planted} blocks of the secret found"
        f" ({proof.copies} copies of it, {proof.blocks} blocks each)"
    )
    if proof.after_release is not None:
        console.print(f"  after tenant A released it:  {proof.after_release} blocks")
    console.print(f"  in what tenant B was given:  {proof.after_handover} blocks")
    for certificate in proof.certificates:
        console.print(f"  certificate of tenant B:     {certificate}")
    console.print(
        text.plain("proven: nothing of it is left", style="green")
        if proof.holds
        else text.plain(
            "NOT PROVEN: a tenant's data survived, or was never there", style="bold red"
        )
    )
