"""The process inside a pod: has the device's memory open, writes secrets, searches for others'.

Started by its file name and alone, so that it starts fast and shares nothing with us. Orders are
JSON lines on stdin, answers JSON lines on stdout; it ends when stdin does, so that none outlives
the stand-in. Started with ``stubborn`` it ignores SIGTERM, as badly behaved tenants do.
"""

import json
import mmap
import os
import signal
import sys

PIECE = 16
"""Bytes of a secret that are searched for at once: finding any of them is finding the secret."""


def places(size: int, length: int) -> list[int]:
    """Where a secret is put: begin, middle and end of the memory."""
    return sorted({0, (size - length) // 2 // 64 * 64, size - length})


def write(memories: list[mmap.mmap], secret: bytes) -> dict[str, object]:
    """Write the secret into every memory."""
    for memory in memories:
        for place in places(len(memory), len(secret)):
            memory[place : place + len(secret)] = secret
        memory.flush()
    return {"written": len(memories)}


def search(memories: list[mmap.mmap], secret: bytes) -> dict[str, object]:
    """How many pieces of the secret are anywhere in any memory, and how much is not zero."""
    pieces = [secret[at : at + PIECE] for at in range(0, len(secret), PIECE)]
    found = sum(memory.find(piece) >= 0 for memory in memories for piece in pieces)
    dirty = sum(len(memory) - memory[:].count(0) for memory in memories)
    return {"found": found, "nonzero": dirty, "searched": sum(map(len, memories))}


def main(arguments: list[str]) -> None:
    """``tenant.py {"memories": [...], "stubborn": false}``"""
    plan = json.loads(arguments[0])
    if plan["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answer({"ready": os.getpid()})
    memories: list[mmap.mmap] = []
    for line in sys.stdin:
        order = json.loads(line)
        secret = bytes.fromhex(order.get("secret", ""))
        if order["do"] == "open":  # only once the process is in its cgroup
            for path in plan["memories"]:
                with open(path, "r+b") as file:  # noqa: PTH123 - alone and without pathlib
                    memories.append(mmap.mmap(file.fileno(), 0))
            answer({"opened": len(memories)})
        elif order["do"] == "write":
            answer(write(memories, secret))
        else:
            answer(search(memories, secret))


def answer(content: dict[str, object]) -> None:
    """One line."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
