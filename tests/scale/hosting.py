"""Thousands of nodes in one process of their own, asked over a socket in JSON.

Whoever drives the campaign brings the virtual time along with each question; the nodes outlive a
driver that is killed. As through Ray, each node's answer is a JSON document of its own, validated
where it arrives.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet.control.campaign.targets import POOL, RACK
from fleet.core.messages import ScrubOrder
from tests.scale.nodes import Events, Node

NODES_PER_RACK = 4
NODES_PER_POOL = 500
LENGTH = struct.Struct("!I")


class Host:
    """All nodes, and their time. `faulty`: share of devices whose wipe finds a fault."""

    def __init__(self, nodes: int, *, devices: int, epoch: int, faulty: float = 0.0) -> None:
        self.events = Events()
        self.nodes: dict[str, Node] = {}
        for number in range(nodes):
            name = f"node-{number:05d}"
            rack, pool = number // NODES_PER_RACK, number // NODES_PER_POOL
            labels = {RACK: f"rack-{rack}", POOL: f"pool-{pool}"}
            self.nodes[name] = Node(name, labels, self.events, epoch)
            self.nodes[name].fit(devices, faulty=faulty)

    def answer(self, asked: Mapping[str, Any]) -> Any:
        """The answers of all nodes asked, by name; time goes on to ``at`` before."""
        self.events.run_until(float(asked["at"]))
        verb = str(asked["verb"])
        whole: dict[str, Callable[[], Any]] = {
            "names": lambda: sorted(self.nodes),
            "now": lambda: self.events.now,
            "wipes": self._wipes,
        }
        if verb in whole:
            return whole[verb]()
        acts: dict[str, Callable[[Node, Sequence[str]], Any]] = {
            "views": lambda node, operations: node.view(operations).model_dump_json(),
            "scrub": _scrub,
            "cancel": Node.cancel,
            "silence": _silence,
        }
        return {
            name: acts[verb](self.nodes[name], some)
            for name, some in asked["nodes"].items()
            if verb == "silence" or not self.nodes[name].silent
        }

    def _wipes(self) -> dict[str, int]:
        """Wipes that were begun, by device; a device without any is there with 0."""
        return {d.uuid: d.wipes for node in self.nodes.values() for d in node.devices.values()}


def _scrub(node: Node, orders: Sequence[str]) -> list[str]:
    given = [ScrubOrder.model_validate_json(order) for order in orders]
    return [node.scrub(order).model_dump_json() for order in given]


def _silence(node: Node, words: Sequence[str]) -> None:
    node.silent = not words


def receive(connection: socket.socket) -> Any | None:
    """The next message; None where the other side is gone."""
    head = _exactly(connection, LENGTH.size)
    if head is None:
        return None
    body = _exactly(connection, LENGTH.unpack(head)[0])
    return None if body is None else json.loads(body)


def send(connection: socket.socket, message: Any) -> None:
    """Send one message. Raises `OSError` where nobody listens any more."""
    body = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(body)) + body)


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def main(arguments: Sequence[str]) -> int:
    """Serve one driver after another until one says ``end``: PATH NODES DEVICES EPOCH FAULTY."""
    path, nodes, devices, epoch, faulty = arguments
    host = Host(int(nodes), devices=int(devices), epoch=int(epoch), faulty=float(faulty))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listening.accept()
            with connection:
                while (asked := receive(connection)) is not None:
                    if asked["verb"] == "end":
                        return 0
                    try:
                        send(connection, host.answer(asked))
                    except OSError:
                        break  # the driver was killed while it waited


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
