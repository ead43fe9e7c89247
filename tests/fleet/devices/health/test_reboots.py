"""Which reasons ask for a reboot, by the tables."""

from __future__ import annotations

import pytest

from fleet.control.binding.conditions import needs_reboot
from fleet.core.messages import ReasonView
from fleet.core.model import Reason, Source
from fleet.core.settings import HealthPolicy
from fleet.devices.health import checks, reasons
from fleet.devices.health.readings import Readings
from fleet.node.view import reason as view_of


def found(
    *, action: str | None = None, xids: tuple[int, ...] | None = None
) -> dict[str, ReasonView]:
    """Reasons of these readings by code."""
    readings = Readings(at=1.0, recovery_action=action, xids=xids)
    judged = checks.judge(readings, HealthPolicy(unknown_blocks=False))
    return {r.code: view_of(r) for r in checks.reasons_of(judged, since=1.0)}


@pytest.mark.parametrize("word", ["NODE_REBOOT", "SYSTEM_REBOOT", "RECOVER_IMEX_DOMAIN"])
def test_the_drivers_own_verdict_may_ask_for_it(word: str) -> None:
    """B40: the recovery action says reboot."""
    assert needs_reboot(found(action=word)["recovery-action"])


def test_a_fault_code_may_ask_for_it_and_another_may_not() -> None:
    """B40: one reason code stands for many faults; the remedy tells them apart."""
    assert any(map(needs_reboot, found(xids=(79,)).values()))
    assert found(xids=(46,)).keys() == {"xid"}
    assert not needs_reboot(found(xids=(46,))["xid"])


def test_a_reset_is_not_a_reboot() -> None:
    """What a reset ends asks for no reboot."""
    assert not needs_reboot(found(action="GPU_RESET")["reset-required"])


def test_a_last_resort_and_an_operators_words_do_not_count() -> None:
    """A remedy that mentions a reboot among others, or was typed by somebody, asks for none."""
    wedged = reasons.make("wedged", Source.WORKER, since=1.0)
    assert not needs_reboot(view_of(wedged))
    words = Reason(
        "operator", Source.OPERATOR, liftable=False, remedy="reboot the node, then scrub the device"
    )
    assert not needs_reboot(view_of(words))
