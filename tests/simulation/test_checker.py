"""Every check fires on the state it is about, and on nothing that is in order."""

from __future__ import annotations

import pytest

from tests.simulation import checker
from tests.simulation.world import CERTIFIED, Claim, Unit, World

DEVICES = ((0,), (0,))
IN_USE = Unit(state="IN_USE", claim=0, token=1, certified=1, holder=0, lease=1, memory="0", floor=1)
HOLDS = Claim(pod="live", allocated=True, record="PREPARED", token=1, spec=True, box="running")


def _seen(unit: Unit, *claims: Claim, node: str = "up", breach: str = "") -> World:
    pair = (*claims, Claim(), Claim())[:2]
    return World((unit,), pair, coordinators=(), node=node, breach=breach)


@pytest.mark.parametrize("unit", [Unit(), CERTIFIED, IN_USE], ids=lambda unit: unit.state)
def test_nothing_is_wrong(unit: Unit) -> None:
    """A dirty, a clean and a used unit in order break no promise."""
    claims = (HOLDS,) if unit is IN_USE else ()
    assert checker.broken(_seen(unit, *claims), DEVICES) == []


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        (checker.TWO_EXPOSED, _seen(IN_USE, HOLDS, HOLDS._replace(box="", token=2))),
        (checker.SPEC_WITHOUT_RECORD, _seen(Unit(), Claim(spec=True))),
        (checker.WIPE_UNDER_TENANT, _seen(IN_USE._replace(worker="ghost"), HOLDS)),
        (checker.WIPE_UNDER_RECORD, _seen(IN_USE._replace(worker="own"), HOLDS)),
        (checker.CLEAN_UNTRUE, _seen(CERTIFIED._replace(memory="0"))),
        (checker.CLEAN_UNTRUE, _seen(CERTIFIED._replace(worker="ghost"))),
        (checker.UNCERTIFIED, _seen(CERTIFIED._replace(certified=-1))),
        (checker.FIT_WITH_REASON, _seen(Unit(reasons="L"))),
        (checker.OTHER_CERTIFICATE, _seen(IN_USE._replace(certified=0), HOLDS)),
        (checker.LEASE_ELSEWHERE, _seen(IN_USE._replace(holder=1), HOLDS)),
        (checker.LEASE_ELSEWHERE, _seen(IN_USE._replace(lease=2), HOLDS)),
        (checker.QUARANTINE_LOST, _seen(Unit(state="QUARANTINED", published=3))),
        (checker.TENANT_UNKNOWN, _seen(CERTIFIED, HOLDS)),
        (checker.DEALLOCATED, _seen(Unit(), Claim(pod="live"))),
        (checker.STALE_ACT, _seen(Unit(), breach=checker.STALE_ACT)),
    ],
)
def test_each_check_fires(name: str, seen: World) -> None:
    """Promises 1 to 9: the state a check is about is called by its name."""
    assert name in checker.broken(seen, DEVICES)
    assert name not in checker.broken(seen, DEVICES, skip=frozenset({name}))


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        (checker.WIPE_UNDER_ATTACHED, Unit(state="QUARANTINED", worker="ghost")),
        (checker.ATTACHED_UNKNOWN, CERTIFIED),
    ],
)
def test_who_is_attached_is_a_tenant_to_wipes(name: str, unit: Unit) -> None:
    """Promises 4 and 5: a claim without a device, attached to a unit, counts while it runs."""
    looker = Claim(pod="live", allocated=True, record="PREPARED", spec=True, box="running")
    seen, looks = _seen(unit, Claim(), looker), ((), (0,))
    assert checker.broken(seen, ((0,), ())) == []
    assert checker.broken(seen, ((0,), ()), attached=looks) == [name]
    assert checker.broken(seen, ((0,), ()), attached=looks, skip=frozenset({name})) == []


def test_a_journal_that_is_down_claims_nothing() -> None:
    """After a reboot the journal's CLEAN and the specs count only once the node is up again."""
    stale = _seen(CERTIFIED._replace(memory="foreign"), Claim(spec=True), node="rebooted")
    assert checker.broken(stale, DEVICES) == []


def test_may_start() -> None:
    """S1: a tenant starts on zero memory or its own, on nobody else's."""
    assert checker.may_start(["zero", "7"], "7")
    assert not checker.may_start(["zero", "foreign"], "7")
    assert not checker.may_start(["8"], "7")


def test_every_name_cites_its_promise() -> None:
    """The report of a violation names the promise that is broken."""
    every = (checker.STATE_CHECKS, checker.ATTACHED_CHECKS, checker.STEP_CHECKS, (checker.TRAP,))
    for name in (checker.NOBODY_STARTS, *(name for names in every for name in names)):
        assert "promise" in name
