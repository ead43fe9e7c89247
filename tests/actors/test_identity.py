"""An actor proves where it runs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from actors import identity
from fleet.core import errors
from fleet.core.boot import kernel_boot_id
from fleet.stores.sqlite import host_identity

HERE = identity.Assignment(
    node="node-01",
    host="h1",
    machine_id=host_identity(),
    boot_id=str(kernel_boot_id()),
    plan="{}",
)


def test_the_right_place_is_accepted() -> None:
    """B54: machine, boot and host label as assigned: nothing to say."""
    identity.check(HERE, host="h1")
    identity.check(HERE, host=None)


@pytest.mark.parametrize("field", ["machine_id", "boot_id", "host"])
def test_any_difference_is_refused(field: str) -> None:
    """B54: one difference is enough, and both what was wanted and what was found are told."""
    wrong = HERE.model_copy(update={field: "elsewhere"})
    with pytest.raises(errors.WrongNode, match="elsewhere") as caught:
        identity.check(wrong, host="h1")
    assert caught.value.node == "node-01"


def test_a_raylet_without_a_label_is_refused() -> None:
    """B54: an actor that ended up on a raylet without our label is in the wrong place."""
    with pytest.raises(errors.WrongNode):
        identity.check(HERE, host="")


@pytest.mark.parametrize(
    ("plan", "refused"),
    [
        ('{"node": "node-01"}', False),
        ("not a plan", False),
        ('{"node": "node-02"}', True),
        ("{}", True),
        ("[]", True),
    ],
)
def test_the_plan_must_be_the_nodes_own(plan: str, *, refused: bool) -> None:
    """B54: another node's plan is refused; one that cannot be read is the opener's to refuse."""
    wrong = (
        pytest.raises(errors.WrongNode, match="nothing was opened") if refused else nullcontext()
    )
    with wrong:
        identity.check_plan(HERE.model_copy(update={"plan": plan}))
