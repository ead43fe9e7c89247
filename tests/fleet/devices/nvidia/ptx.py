"""A reader of PTX that runs a launch thread by thread: what our kernels mean, without a device.

Only what `kernels.ptx` uses, one Python function an instruction and nothing clever. It shares no
code with the driver's stand-in, which runs the same text in C, 128 threads at a time: what both of
them and the pattern's own words say alike is what the text says.

A thread that leaves memory it was given, or an exchange that not all threads of its warp come to,
ends the launch with `Fault`. Registers that nobody wrote hold junk.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

WARP = 32
_WORD, _LONG = (1 << 32) - 1, (1 << 64) - 1
_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\((.*?)\)(.*?)\{\n(.*?)\n\}", re.DOTALL)
_GUARD = re.compile(r"@(!?)(%\w+)\s+(.*)")
_ADDRESS = re.compile(r"\[\s*([%\w]+)(?:\s*\+\s*(\d+))?\s*\]")


class Fault(Exception):
    """The launch did what no launch may do."""


@dataclass
class Memory:
    """Device memory: pieces by their address. Nothing else is there."""

    pieces: dict[int, bytearray] = field(default_factory=dict)

    def add(self, address: int, content: bytes) -> None:
        """A piece of memory."""
        self.pieces[address] = bytearray(content)

    def place(self, address: int, size: int) -> tuple[bytearray, int]:
        """The piece that has all of these bytes, and where in it. Raises `Fault`."""
        if address % size:
            raise Fault(f"{size} B at {address:#x} are not aligned")
        for start, content in self.pieces.items():
            if start <= address and address + size <= start + len(content):
                return content, address - start
        raise Fault(f"{size} B at {address:#x} are nobody's")


@dataclass(frozen=True)
class Instruction:
    """One statement: guarded by a predicate, or not."""

    name: str
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False


@dataclass(frozen=True)
class Kernel:
    """One entry of the text."""

    name: str
    parameters: tuple[str, ...]
    threads: int
    code: tuple[Instruction, ...]
    labels: Mapping[str, int]


@dataclass(frozen=True)
class Launch:
    """How it is run: blocks, bytes of shared memory of each, values by parameter."""

    blocks: int
    values: Sequence[int]
    memory: Memory
    shared_bytes: int = 0
    junk: int = 0xA5A5_5A5A_DEAD_BEE5
    """What registers hold before they are written."""


def parse(text: str) -> dict[str, Kernel]:
    """All kernels of a text by name."""
    plain = re.sub(r"//[^\n]*", "", text)
    return {match[1]: _kernel(*match.groups()) for match in _ENTRY.finditer(plain)}


def run(kernel: Kernel, launch: Launch) -> None:
    """Run every thread of a launch. Raises `Fault`."""
    for block in range(launch.blocks):
        shared = Memory()
        if launch.shared_bytes:
            shared.add(0, b"\xee" * launch.shared_bytes)
        for first in range(0, kernel.threads, WARP):
            _warp([_Thread(kernel, launch, shared, block, first + lane) for lane in range(WARP)])


def _warp(threads: Sequence[_Thread]) -> None:
    """Run the threads of a warp; at an exchange they wait until all are there."""
    steps = [thread.steps() for thread in threads]
    given = [next(step, None) for step in steps]
    while any(one is not None for one in given):
        places = {thread.at for thread in threads}
        if None in given or len(places) > 1:
            raise Fault("not all threads of a warp came to an exchange")
        values = [one for one in given if one is not None]
        for lane, (thread, (_, mask)) in enumerate(zip(threads, values, strict=True)):
            thread.received = values[lane ^ mask][0]
        given = [next(step, None) for step in steps]


class _Thread:
    """One thread."""

    def __init__(
        self, kernel: Kernel, launch: Launch, shared: Memory, block: int, number: int
    ) -> None:
        self._kernel = kernel
        self._launch = launch
        self._shared = shared
        self._parameters = dict(zip(kernel.parameters, launch.values, strict=True))
        self._registers: dict[str, int] = {
            "%tid.x": number,
            "%ctaid.x": block,
            "%nctaid.x": launch.blocks,
            "fleet_shared": 0,
        }
        self.at = 0
        self.received = 0
        """What the last exchange brought."""

    def steps(self) -> Iterator[tuple[int, int]]:
        """Run; yields (value, mask) at every exchange."""
        code = self._kernel.code
        while True:
            one = code[self.at]
            if one.guard and bool(self._registers[one.guard]) is one.negated:
                self.at += 1
                continue
            if one.name == "ret":
                return
            if one.name == "bra":
                self.at = self._kernel.labels[one.operands[0]]
                continue
            if one.name.startswith("shfl.sync.bfly.b32"):
                target, source, mask, clamp, members = one.operands
                if (self._read(clamp), self._read(members)) != (WARP - 1, _WORD):
                    raise Fault("an exchange of a part of a warp")
                yield self._read(source), self._read(mask)
                self._registers[target] = self.received
            else:
                self._act(one)
            self.at += 1

    def _read(self, operand: str) -> int:
        if operand[0].isdigit():
            return int(operand, 0)
        junk = self._launch.junk & (_LONG if operand.startswith("%d") else _WORD)
        return self._registers.get(operand, junk)

    def _act(self, one: Instruction) -> None:
        stem, *rest = one.name.split(".")
        limit = _LONG if rest[-1].endswith("64") else _WORD
        if stem in ("ld", "st", "atom"):
            self._move(stem, rest, one.operands)
        elif stem in _ARITHMETIC:
            target, *sources = one.operands
            self._registers[target] = _ARITHMETIC[stem](*map(self._read, sources)) & limit
        elif stem in ("mul", "mad"):
            target, *sources = one.operands
            values = [self._read(source) for source in sources]
            full = _LONG if rest[0] == "wide" else limit
            self._registers[target] = (values[0] * values[1] + sum(values[2:])) & full
        elif stem == "mov" and len(one.operands) == 3:  # two halves of one long word
            low, high, whole = one.operands
            self._registers[low] = self._read(whole) & _WORD
            self._registers[high] = self._read(whole) >> 32
        elif stem in ("mov", "cvt", "cvta"):
            wide = rest[0].endswith("64") if stem == "cvt" else limit == _LONG
            self._registers[one.operands[0]] = self._read(one.operands[1]) & (
                _LONG if wide else _WORD
            )
        elif stem == "setp":
            target, left, right = one.operands
            self._registers[target] = _COMPARE[rest[0]](self._read(left), self._read(right))
        elif stem == "selp":
            target, left, right, chosen = one.operands
            self._registers[target] = self._read(left if self._read(chosen) else right)
        else:
            raise Fault(f"{one.name} is not known")

    def _move(self, stem: str, rest: Sequence[str], operands: Sequence[str]) -> None:
        if "param" in rest:
            self._registers[operands[0]] = self._parameters[operands[1][1:-1]]
            return
        each = 8 if rest[-1].endswith("64") else 4
        count = 4 if "v4" in rest else 1
        (where,) = [found for found in operands if found.startswith("[")]
        match = _ADDRESS.fullmatch(where)
        assert match
        address = self._read(match[1]) + int(match[2] or 0)
        memory = self._shared if "shared" in rest else self._launch.memory
        content, at = memory.place(address, each * count)
        if stem == "atom":
            target, _, value = operands
            before = int.from_bytes(content[at : at + each], "little")
            act = min if "min" in rest else operator.add
            after = act(before, self._read(value)) & _LONG
            content[at : at + each] = after.to_bytes(each, "little")
            self._registers[target] = before
            return
        names = [found for found in operands if not found.startswith("[")]
        for number, name in enumerate(names):
            low = at + number * each
            if stem == "ld":
                self._registers[name] = int.from_bytes(content[low : low + each], "little")
            else:
                content[low : low + each] = self._read(name).to_bytes(each, "little")


_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "shr": operator.rshift,
}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _kernel(name: str, parameters: str, directives: str, body: str) -> Kernel:
    threads = re.search(r"\.reqntid\s+(\d+)", directives)
    assert threads, f"{name} says no block"
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in body.splitlines():
        text = line.strip()
        if text.endswith(":"):
            labels[text[:-1]] = len(code)
        elif text and not text.startswith(".reg"):
            code.append(_instruction(text.removesuffix(";")))
    return Kernel(
        name, tuple(re.findall(r"\.param\s+\.\w+\s+(\w+)", parameters)), int(threads[1]),
        tuple(code), labels,
    )  # fmt: skip


def _instruction(text: str) -> Instruction:
    guard, negated = "", False
    if match := _GUARD.fullmatch(text):
        negated, guard, text = bool(match[1]), match[2], match[3]
    name, _, rest = text.partition(" ")
    operands = re.sub(r"[{}]", "", rest).split(",")
    return Instruction(name, tuple(one.strip() for one in operands if one.strip()), guard, negated)
