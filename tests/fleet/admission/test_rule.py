"""What a rule is."""

from __future__ import annotations

from collections.abc import Iterator

from fleet.admission.ground import Ground
from fleet.admission.rule import Finding, Flaw, Rule

GROUND = Ground(driver="x.y", requesters=("ours",))


def judge(view: int, _ground: Ground) -> Iterator[Flaw]:
    if view > 1:
        yield Flaw(("spec", "list", view, "field"), f"<driver> has {view}")


RULE = Rule(id="B35-example", says="too many", remedy="fewer for <driver>", judge=judge)


def test_a_finding_says_where_what_and_what_instead() -> None:
    """B20: rule, path, what is wrong and the remedy, with the values of the cluster."""
    (found,) = RULE.findings(3, GROUND)
    assert found == Finding(
        "B35-example", ("spec", "list", 3, "field"), "x.y has 3", "fewer for x.y"
    )
    assert str(found) == "B35-example spec.list[3].field: x.y has 3 — fewer for x.y"
    assert RULE.requirement == "B35"


def test_only_a_rule_that_spares_them_spares_our_own_accounts() -> None:
    """B17 B35: who asks counts where the rule says so, and for nobody who is not listed."""
    assert list(RULE.findings(3, GROUND, "ours"))
    sparing = Rule(id="x", says="x", remedy="x", judge=judge, spares_requesters=True)
    assert not list(sparing.findings(3, GROUND, "ours"))
    assert list(sparing.findings(3, GROUND, "theirs"))
    assert list(sparing.findings(3, GROUND, None))
