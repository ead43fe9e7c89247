"""The methods of our actors, as Ray keeps them."""

from __future__ import annotations

import inspect
import pickle

import pytest

from actors.coordinator_actor import CoordinatorActor
from actors.node_actor import NodeActor

NODE = {
    "__init__", "__repr__", "_call", "_check_node", "_open", "_show", "_tell", "_tick_loop",
    "abandon", "adopt", "cancel", "close", "drain", "follow_epoch", "head", "partition", "ping",
    "prepare", "quarantine_add", "quarantine_clear", "retire", "scrub", "sweep", "unprepare",
    "view",
}  # fmt: skip
COORDINATOR = {
    "__init__", "__repr__", "_current", "_open", "acquire", "alive", "append", "close_run",
    "leases", "made_from", "open", "ping", "release", "renew", "resume", "run", "runs", "samples",
    "sign_heads", "unfinished", "view",
}  # fmt: skip


@pytest.mark.parametrize(("actor", "names"), [(NodeActor, NODE), (CoordinatorActor, COORDINATOR)])
def test_the_methods_of_an_actor_stay(actor: type, names: set[str]) -> None:
    """docs/operations.md: Ray's head keeps actors over an upgrade and a rollback, each method by
    its name in this code: one more or less, private or not, and the other version cannot start."""
    found = dict(inspect.getmembers(actor, inspect.isfunction))
    assert set(found) == names
    for method in found.values():
        assert pickle.loads(pickle.dumps(method)) is method  # noqa: S301 - by its name
