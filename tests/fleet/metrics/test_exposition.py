"""Rules of the text that scrapers read."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.metrics.exposition import rendered
from fleet.metrics.metric import Sample


def test_a_family_has_help_kind_and_its_samples_together() -> None:
    """The format wants all lines of one name in one block, whatever the order they came in."""
    page = rendered(
        [
            Sample("fleet_node_outbox", 1, (("node", "a"),)),
            Sample("fleet_node_owed", 2, (("node", "a"),)),
            Sample("fleet_node_outbox", 3, (("node", "b"),)),
        ]
    )
    assert page.splitlines()[:4] == [
        "# HELP fleet_node_outbox Lease releases waiting to be delivered.",
        "# TYPE fleet_node_outbox gauge",
        'fleet_node_outbox{node="a"} 1.0',
        'fleet_node_outbox{node="b"} 3.0',
    ]


def test_label_values_are_escaped() -> None:
    """A quote, a backslash or a line break in a value does not break the page."""
    page = rendered([Sample("fleet_node_owed", True, (("node", 'x"\\\n'),))])
    assert page.splitlines()[-1] == r'fleet_node_owed{node="x\"\\\n"} 1.0'


def test_what_the_catalogue_does_not_know_is_not_told() -> None:
    """E4: there is no metric without documentation."""
    with pytest.raises(errors.InputInvalid):
        rendered([Sample("fleet_made_up", 1)])
