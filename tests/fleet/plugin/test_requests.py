"""The values that cross between kubelet's wire and the domain."""

from __future__ import annotations

import dataclasses

import pytest

from fleet.plugin.requests import AskedClaim, PreparedClaim, PreparedDevice


def test_no_device_is_a_valid_answer() -> None:
    """Reference 1.3: a claim with nothing of ours is prepared all the same."""
    assert PreparedClaim().devices == ()
    assert PreparedDevice(("r",), "n1", "gpu-0", ("v/c=d",)).share_id is None


def test_what_was_asked_cannot_be_changed_on_the_way() -> None:
    """A claim is a key: equal by namespace, UID and name, and fixed."""
    asked = AskedClaim("tenant", "u-1", "a")
    assert len({asked, AskedClaim("tenant", "u-1", "a"), AskedClaim("tenant", "u-2", "a")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        asked.uid = "u-2"  # type: ignore[misc] # that it cannot is what is tested
