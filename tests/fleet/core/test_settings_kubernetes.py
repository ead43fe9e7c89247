"""The section ``[kubernetes]``: what it refuses."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fleet.core.settings import Finalizing, KubernetesSettings, Unexposed


def test_a_driver_name_fits_into_socket_paths() -> None:
    """A name of 28 characters is refused: with a pod's UID its socket's path would be too long."""
    assert KubernetesSettings(driver="a" * 27).driver == "a" * 27
    with pytest.raises(ValidationError, match="driver"):
        KubernetesSettings(driver="a" * 28)


def test_the_binding_time_leaves_room_to_say_why() -> None:
    """B6: a scheduler's timeout that ends before our own word could is refused."""
    with pytest.raises(ValidationError, match="binding_timeout_s"):
        KubernetesSettings(binding_timeout_s=59.0)


def test_choices_are_named_as_in_policy_files() -> None:
    """D3: the literal reading of the finalizer is one word in the policy."""
    found = KubernetesSettings.model_validate({"finalizer": "until-verified", "unexposed": "event"})
    assert (found.finalizer, found.unexposed) == (Finalizing.UNTIL_VERIFIED, Unexposed.EVENT)


def test_each_coordinator_has_a_selector_that_can_be_understood() -> None:
    """E7: a slip of the pen is an error at the start, and no coordinator of all nodes."""
    selectors = ["pool=a", "pool in (b,c)", "!pool"]
    found = KubernetesSettings.model_validate({"coordinator_nodes": selectors})
    assert found.coordinator_nodes == tuple(selectors)
    assert KubernetesSettings().coordinator_nodes == ()
    for wrong, said in (
        (["pool=a", "pool in (b"], "no term of a label selector"),
        ([""], "no term of a label selector"),
        (["pool", "pool"], "stands here twice"),
        ("pool=a", "tuple"),
    ):
        with pytest.raises(ValidationError, match=said):
            KubernetesSettings.model_validate({"coordinator_nodes": wrong})
