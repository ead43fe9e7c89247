"""In which order a node service is taken apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.wiring import adapters
from tests.fleet.node.conftest import Lab


class Noted:
    """Something that closes, and notes when."""

    def __init__(self, name: str, order: list[str]) -> None:
        self._name = name
        self._order = order

    def close(self) -> None:
        """Closed now."""
        self._order.append(self._name)


def test_nobody_is_let_in_while_the_rest_ends(lab: Lab) -> None:
    """The door closes before what stands behind it, and the right to own the node goes last."""
    parts = lab.node._parts
    order: list[str] = []
    stores = Noted("store", order)

    def store_closed() -> None:
        assert not adapters.door_path(lab.plan).exists(), "the door was open until now"
        assert parts.lock.held, "somebody else could own the node already"
        stores.close()

    whole = replace(parts, close_store=store_closed)
    whole.close()
    assert order == ["store"]
    assert not parts.lock.held


def test_one_part_that_cannot_be_closed_leaves_none_open(lab: Lab) -> None:
    """A failure on the way never keeps the journal locked against the next owner."""
    parts = lab.node._parts

    def broken() -> None:
        raise OSError("the disk has gone")

    with pytest.raises(OSError, match="the disk has gone"):
        replace(parts, close_store=broken).close()
    assert not parts.lock.held
