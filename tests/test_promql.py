"""The reader of expressions sees what is wrong with them."""

from __future__ import annotations

import pytest

from tests.promql import faults, undoubled


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("fleet_made_up > 0", "fleet_made_up is not in the catalogue"),
        ('fleet_units{state="LOST"}', "fleet_units: state is never LOST"),
        ('fleet_units{code="xid"}', "fleet_units has no label code"),
        ("sum by (code) (fleet_units)", "no metric in it has code"),
        ("rate(fleet_clean_seconds[5m])", "fleet_clean_seconds is a histogram"),
    ],
)
def test_a_wrong_expression_is_seen(expression: str, fault: str) -> None:
    """E4: a rule over a name that does not exist never fires, and nobody would know."""
    assert any(found.startswith(fault) for found in faults(expression))


def test_a_right_expression_has_no_fault() -> None:
    """Labels of the scraper and regular expressions over closed sets are fine."""
    asked = 'sum by (instance, le) (rate(fleet_clean_seconds_bucket{node="n"}[5m]))'
    assert list(faults(asked)) == []
    assert list(faults('fleet_units{state=~"CLEAN|DIRTY"}')) == []


def test_adding_up_what_is_told_twice_is_seen() -> None:
    """A node with a plugin and an actor would count double."""
    assert undoubled("sum(max by (node) (fleet_node_outbox))")
    assert undoubled("max by (node) (rate(fleet_wiped_bytes_total[5m]))")
    assert not undoubled("sum(fleet_node_outbox)")
    assert not undoubled("sum(rate(fleet_wiped_bytes_total[5m]))")
