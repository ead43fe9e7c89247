"""Messages: closed, immutable, and validated where they arrive."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from fleet.core import messages
from fleet.core.messages import GOOD, Acceptance, ClaimOrder, Message, Outcome, ScrubOrder

ORDER = ScrubOrder(operation="r/d/1", node="n1", device="GPU-1", token="7.3")  # noqa: S106 - a fencing token
KINDS = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
]


def test_an_order_survives_the_border() -> None:
    """E1: what one process sends as JSON is what the other validates."""
    assert ScrubOrder.model_validate_json(ORDER.model_dump_json()) == ORDER


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_is_closed_and_immutable(kind: type[BaseModel]) -> None:
    """A field of another version is an error at the border, never dropped in silence."""
    assert kind.model_config.get("extra") == "forbid"
    assert kind.model_config.get("frozen") is True


@pytest.mark.parametrize("token", ["", "7", "7.", ".3", "-1.2", "7.3.1", "x.y"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    """B4: an order without a well-formed token never reaches a node."""
    with pytest.raises(ValidationError):
        ScrubOrder(operation="o", node="n", device="d", token=token)


def test_a_claim_names_at_least_one_device() -> None:
    """An empty claim has nothing to prepare and is an error of whoever sent it."""
    with pytest.raises(ValidationError):
        ClaimOrder(uid="c", node="n", devices=(), token="1.1")  # noqa: S106 - a fencing token


def test_an_unknown_outcome_is_never_good() -> None:
    """Promise 5: only certified and untouched devices let a campaign exit 0."""
    assert {Outcome.CERTIFIED, Outcome.IN_USE} == GOOD


def test_a_refusal_names_its_class() -> None:
    """B60: the kind of a refusal crosses the border as its class name."""
    refusal = Acceptance(operation="o", accepted=False, kind="TokenStale", fields={"floor": "7.4"})
    assert Acceptance.model_validate_json(refusal.model_dump_json()) == refusal
