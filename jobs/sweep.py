"""A health sweep of the whole fleet at once: every node reads and judges its own devices.

``python -m jobs.sweep`` is the scheduled form of `fleet sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import Field

from fleet.core.errors import FleetError
from fleet.core.messages import Message, Swept
from fleet.rpc.node_api import NodeApi

NODES_AT_ONCE = 64
"""Nodes asked at one time; each answers within its own reading time-out."""

T = TypeVar("T")
Asked = TypeVar("Asked")


class SweepReport(Message):
    """What the sweep saw, by node."""

    simulated: bool
    nodes: dict[str, tuple[Swept, ...]] = Field(default_factory=dict)
    silent: dict[str, str] = Field(default_factory=dict)
    """Nodes that did not answer, with the error."""

    @property
    def found(self) -> bool:
        """Whether anything is wrong or unknown."""
        return bool(self.silent) or any(device.failing for _, device in self.rows())

    def rows(self) -> Iterator[tuple[str, Swept]]:
        """Every device with its node."""
        for node, devices in self.nodes.items():
            for device in devices:
                yield node, device


def run(nodes: Mapping[str, NodeApi]) -> SweepReport:
    """Sweep all nodes in parallel; one that fails hides no other."""
    found = each(nodes, lambda node: tuple(node.sweep()))
    views = each(nodes, lambda node: node.view().simulated)
    return SweepReport(
        simulated=any(answer is True for answer in views.values()),
        nodes={name: one for name, one in found.items() if not isinstance(one, FleetError)},
        silent={name: str(one) for name, one in found.items() if isinstance(one, FleetError)},
    )


def each(asked: Mapping[str, Asked], ask: Callable[[Asked], T]) -> dict[str, T | FleetError]:
    """Ask all in threads of their own; an error stands in the place of an answer."""

    def answer(one: Asked) -> T | FleetError:
        try:
            return ask(one)
        except FleetError as error:
            return error

    if not asked:
        return {}
    with ThreadPoolExecutor(min(len(asked), NODES_AT_ONCE)) as pool:
        return dict(zip(asked, pool.map(answer, asked.values()), strict=True))


if __name__ == "__main__":
    from fleet.cli.main import run as run_verb

    run_verb("sweep")
