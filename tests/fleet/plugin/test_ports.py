"""What serving claims needs of a node is what the door offers."""

from __future__ import annotations

import inspect

from fleet.plugin import ports
from fleet.rpc.client import DoorNode


def test_the_door_is_a_node() -> None:
    """Every method of the port, with its parameters, is at the door; the plugin needs no other."""
    wanted = {
        name: list(inspect.signature(method).parameters)
        for name, method in vars(ports.Node).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    asked = {"view", "claims", "prepare", "unprepare", "published", "owe", "paid"}
    assert set(wanted) == asked | {"quarantine_add"}
    for name, parameters in wanted.items():
        offered = inspect.signature(getattr(DoorNode, name)).parameters
        assert list(offered)[: len(parameters)] == parameters
        more = list(offered.values())[len(parameters) :]
        assert all(one.default is not inspect.Parameter.empty for one in more)
