"""`fleet sim`: act as a tenant of simulated devices, or break them.

Everything here works on the files below ``<state>/nodes/<node>/sim`` and needs no running service,
as a tenant or a hardware fault needs none either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field
from rich.console import Console

from fleet.cli.options import StateOption, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core.errors import DeviceUnknown, InputInvalid
from fleet.core.messages import Message
from fleet.core.model import Accelerator, Device
from fleet.core.settings_parse import parse_size
from fleet.devices.simulated import clients, faults, memory, search
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.evidence import layout

FOUND = 1

app = typer.Typer(no_args_is_help=True)

NodeOption = Annotated[
    str | None, typer.Option("--node", help="Node; needed when the device's name is on several.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Name or UUID of the device; all when not given.")
]
OneDeviceOption = Annotated[str, typer.Option("--device", help="Name or UUID of the device.")]
TextOption = Annotated[str | None, typer.Option("--text", help="Content, as text.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", help="Content: any file.", exists=True, dir_okay=False)
]
OffsetOption = Annotated[str, typer.Option("--offset", help="Byte offset, such as 4096 or 1MiB.")]


@dataclass(frozen=True, slots=True)
class Place:
    """One device of one simulated node."""

    node: str
    backend: SimulatedBackend
    accelerator: Accelerator
    device: Device

    @property
    def memory(self) -> memory.Memory:
        return self.backend.memory(self.accelerator.uuid)

    def spans(self) -> Iterator[tuple[int, int]]:
        """(offset in the accelerator, length) of the device's memory, neighbours joined."""
        wanted = set(self.device.units)
        start = end = 0
        for unit in sorted(self.accelerator.units, key=lambda unit: unit.offset_bytes):
            if unit.id not in wanted:
                continue
            if unit.offset_bytes != end and end > start:
                yield start, end - start
            if unit.offset_bytes != end:
                start = unit.offset_bytes
            end = unit.offset_bytes + unit.size_bytes
        yield start, end - start

    def named(self) -> dict[str, Any]:
        """Identity for documents."""
        return {"node": self.node, "device": self.device.name, "uuid": self.device.uuid}


class Located(Message):
    """Where a simulated device is."""

    node: str
    device: str
    uuid: str


class WriteAnswer(Located, VerbAnswer):
    """What was written."""

    kind: Literal["sim write"] = "sim write"
    offset: int
    bytes: int


class ReadAnswer(Located, VerbAnswer):
    """What was read."""

    kind: Literal["sim read"] = "sim read"
    offset: int
    hex: str


class FoundRow(Located):
    """How often it was found on a device."""

    found: int
    offsets: tuple[int, ...]


class SearchAnswer(VerbAnswer):
    """What a search of all memory found."""

    kind: Literal["sim search"] = "sim search"
    simulated: Literal[True] = True
    searched_blocks: int
    searched_bytes: int
    found: int
    devices: tuple[FoundRow, ...]


class FaultAnswer(Located, VerbAnswer):
    """A fault that was set or taken back."""

    kind: Literal["sim fault"] = "sim fault"
    fault: str
    cleared: bool | None = None
    """Whether it was there to be taken back; null: it was set."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    times: int = 0
    """How often it strikes; 0: always."""
    seed: int = 0


class FaultRow(Message):
    """A kind of fault."""

    text: str
    outcome: str
    times: int
    parameters: dict[str, Any]


class FaultsAnswer(VerbAnswer):
    """The faults there are, by name."""

    kind: Literal["sim faults"] = "sim faults"
    faults: dict[str, FaultRow]


class HolderAnswer(Located, VerbAnswer):
    """A process that holds a device, or those that were ended."""

    kind: Literal["sim holder"] = "sim holder"
    pid: int | None = None
    name: str = ""
    ended: tuple[int, ...] = ()


class RebootAnswer(VerbAnswer):
    """The new boot of each node."""

    kind: Literal["sim reboot"] = "sim reboot"
    boots: Mapping[str, str]


@app.command("write")
def write(
    *,
    device: OneDeviceOption,
    text: TextOption = None,
    file: FileOption = None,
    offset: OffsetOption = "0",
    node: NodeOption = None,
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Write text or a file into a device's memory, as a tenant does."""
    place = _one(state_directory(state), node, device)
    content = _content(text, file)
    start, length = next(place.spans())
    at = _offset(offset)
    if at + len(content) > length:
        raise InputInvalid(
            f"{len(content)} B at offset {at} do not fit into {place.device.name} of {length} B",
            remedy="choose a smaller offset or file, or cut the file",
        )
    memory.write(place.memory, start + at, content)
    emit(
        WriteAnswer(**place.named(), offset=at, bytes=len(content)),
        as_json=as_json,
        render=lambda console: console.print(
            f"{place.node}/{place.device.name}: {len(content)} B written at offset {at}"
        ),
    )


@app.command("read")
def read(
    *,
    device: OneDeviceOption,
    offset: OffsetOption = "0",
    length: Annotated[str, typer.Option("--length", help="Bytes, such as 64 or 1KiB.")] = "64",
    node: NodeOption = None,
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a device's memory as a tenant sees it, in hexadecimal."""
    place = _one(state_directory(state), node, device)
    start, size = next(place.spans())
    at, count = _offset(offset), parse_size(length)
    if at + count > size:
        raise InputInvalid(f"{count} B at offset {at} lie outside of memory of {size} B")
    content = memory.read(place.memory, start + at, count)

    def render(console: Console) -> None:
        for row in range(0, len(content), 16):
            piece = content[row : row + 16]
            shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
            console.print(f"{at + row:012x}  {piece.hex(' '):<47}  {shown}", markup=False)

    answer = ReadAnswer(**place.named(), offset=at, hex=content.hex())
    emit(answer, as_json=as_json, render=render)


@app.command("search")
def search_memory(
    *,
    device: DeviceOption = None,
    text: TextOption = None,
    file: FileOption = None,
    node: NodeOption = None,
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Search all memory for text or for any 64-byte block of a file. Exit code 1 when found.

    Blocks lie at multiples of 64 in the file and are found at every byte offset of memory; blocks
    of one repeated byte are not counted. Text shorter than 64 bytes is searched for whole.
    """
    places = _chosen(state_directory(state), node, device)
    if (text is None) == (file is None):
        raise InputInvalid("give either --text or --file", remedy="name one of them")
    needles = search.of_file(file) if file else search.of_bytes((text or "").encode())
    found = [
        (place, search.search(needles, place.memory, within=[*place.spans()])) for place in places
    ]
    hits = sum(one.blocks for _, one in found)
    answer = SearchAnswer(
        searched_blocks=needles.searched,
        searched_bytes=needles.size,
        found=hits,
        devices=tuple(
            FoundRow(**place.named(), found=one.blocks, offsets=tuple(one.places))
            for place, one in found
        ),
    )

    def render(console: Console) -> None:
        what = f"{needles.searched} blocks of 64 B" if needles.searched else f"{needles.size} B"
        console.print(f"searched {len(found)} devices for {what}: found {hits}")
        for place, one in found:
            if one.blocks:
                console.print(
                    f"  {place.node}/{place.device.name}: {one.blocks} places,"
                    f" the first at offset {one.places[0]}"
                )

    emit(answer, as_json=as_json, render=render)
    raise typer.Exit(FOUND if hits else 0)


@app.command("fault")
def fault(
    name: Annotated[str | None, typer.Argument(help="Name of the fault.")] = None,
    *,
    device: Annotated[
        str | None, typer.Option("--device", help="Name or UUID; needed except with --list.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter.")
    ] = None,
    times: Annotated[
        int | None, typer.Option("--times", min=0, help="How often it strikes; 0: until cleared.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides when and where it strikes.")] = 0,
    clear: Annotated[bool, typer.Option("--clear", help="Take the fault back.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List all faults there are.")] = False,
    node: NodeOption = None,
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Break a device, take a fault back, or list what can be broken."""
    if listed:
        _list_faults(as_json=as_json)
        return
    if name is None or device is None:
        raise InputInvalid(
            "a fault needs its name and --device", remedy="see `fleet sim fault --list`"
        )
    place = _one(state_directory(state), node, device)
    units = [str(unit) for unit in place.device.units]
    made = faults.make(name, units=units, parameters=_pairs(setting), times=times, seed=seed)
    if clear:
        cleared = place.backend.clear_fault(place.device.uuid, name)
        answer = FaultAnswer(**place.named(), fault=name, cleared=cleared)
        words = "taken back" if cleared else "was not set"
    else:
        place.backend.set_fault(place.device.uuid, made)
        answer = FaultAnswer(
            **place.named(),
            fault=name,
            parameters=dict(made.parameters),
            times=made.remaining or 0,
            seed=seed,
        )
        words = f"set, {made.remaining or 'no limit of'} times"
    emit(
        answer,
        as_json=as_json,
        render=lambda console: console.print(f"{place.node}/{place.device.name}: {name} {words}"),
    )


@app.command("holder")
def holder(
    *,
    device: OneDeviceOption,
    name: Annotated[str, typer.Option("--name", help="Name of the process.")] = "tenant",
    seconds: Annotated[float, typer.Option("--seconds", help="How long it stays.")] = 3600.0,
    end: Annotated[bool, typer.Option("--end", help="End the processes started here.")] = False,
    node: NodeOption = None,
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Let a real process hold a device open, as a tenant or a daemon does."""
    place = _one(state_directory(state), node, device)
    registers = place.backend.registers(place.accelerator.uuid)
    if end:
        ended = clients.stop(clients.alive(registers.read(), place.device.units))
        answer = HolderAnswer(**place.named(), ended=tuple(ended))
        words = f"{len(ended)} processes ended"
    else:
        pid = clients.start(
            registers, place.memory, name=name, units=place.device.units, seconds=seconds
        )
        answer = HolderAnswer(**place.named(), pid=pid, name=name)
        words = f"held by {name} (pid {pid}) for {seconds:g} s"
    emit(
        answer,
        as_json=as_json,
        render=lambda console: console.print(f"{place.node}/{place.device.name}: {words}"),
    )


@app.command("reboot")
def reboot(*, node: NodeOption = None, state: StateOption = None, as_json: AsJson = False) -> None:
    """Reboot a simulated node (all without --node): processes gone, memory keeps its content."""
    booted = {name: one.reboot() for name, one in _backends(state_directory(state), node)}

    def render(console: Console) -> None:
        for name, boot in booted.items():
            console.print(f"{name}: new boot {boot}")

    emit(RebootAnswer(boots=dict(booted)), as_json=as_json, render=render)


def _list_faults(*, as_json: bool) -> None:
    kinds = faults.catalogue()
    answer = FaultsAnswer(
        faults={
            name: FaultRow(
                text=kind.text,
                outcome=kind.outcome,
                times=kind.times,
                parameters=dict(kind.parameters),
            )
            for name, kind in kinds.items()
        }
    )

    def render(console: Console) -> None:
        for name, kind in kinds.items():
            console.print(f"{name}: {kind.text}", markup=False)
            settings = " ".join(f"{key}={value}" for key, value in kind.parameters.items())
            if settings:
                console.print(f"    --set {settings}", markup=False)
            console.print(f"    then: {kind.outcome}", markup=False)

    emit(answer, as_json=as_json, render=render)


def _backends(state: Path, node: str | None) -> Sequence[tuple[str, SimulatedBackend]]:
    names = (layout.checked_name(node),) if node else layout.nodes(state)
    found = [(name, SimulatedBackend(layout.node_directory(state, name) / "sim")) for name in names]
    found = [(name, one) for name, one in found if (one.root / "topology.json").exists()]
    if not found:
        raise DeviceUnknown(
            f"there is no simulated node{f' {node!r}' if node else ''} in {state}",
            remedy="make one with `fleet scrub --simulate 2x8 --state DIR`, or name its directory",
        )
    return found


def _chosen(state: Path, node: str | None, device: str | None) -> list[Place]:
    """All whole devices, or those called `device`."""
    places = [
        Place(name, backend, accelerator, one)
        for name, backend in _backends(state, node)
        for accelerator in backend.inventory()
        for one in accelerator.devices
        if (one.whole if device is None else device in (one.name, one.uuid))
    ]
    if not places:
        raise DeviceUnknown(f"there is no simulated device {device!r} in {state}")
    return places


def _one(state: Path, node: str | None, device: str) -> Place:
    places = _chosen(state, node, device)
    if len(places) > 1:
        names = ", ".join(place.node for place in places)
        raise InputInvalid(
            f"{device!r} is on several nodes: {names}", remedy="name the node with --node"
        )
    return places[0]


def _content(text: str | None, file: Path | None) -> bytes:
    if (text is None) == (file is None):
        raise InputInvalid("give either --text or --file", remedy="name one of them")
    content = file.read_bytes() if file else (text or "").encode()
    if not content:
        raise InputInvalid("the content is empty", remedy="give --text or --file something to hold")
    return content


def _offset(text: str) -> int:
    return 0 if text.strip() == "0" else parse_size(text)


def _pairs(settings: Sequence[str] | None) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings or ()]
    wrong = [name for name, equals, _ in pairs if not equals]
    if wrong:
        raise InputInvalid(f"{wrong[0]!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}
