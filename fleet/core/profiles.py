"""The sanitization profiles as data, and which certificate each accepts for an exposure. Pure.

There are three, each fully tested, and nothing in between (DESIGN 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict, Unpack

from fleet.core.model import Token


class Profile(StrEnum):
    """How strictly a node's pool separates its tenants."""

    STRICT = "strict"
    FAST = "fast"
    LAB = "lab"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a profile switches on."""

    pre_bind: bool
    """Wiped and checked under the claim's token before the scheduler binds the pod."""
    pool_gate: bool
    """Allocatable only while clean and freshly checked. On in every profile."""
    accepts_teardown_certificate: bool
    """The certificate of the previous holder's teardown may stand for a wipe of our own."""
    hold: bool
    """Our own reservation keeps the allocation until the units are settled."""
    finalizer: bool
    """Goes with the hold and is removed last."""
    binding_conditions: bool
    """Published, so that the kube-scheduler waits for pre-bind."""
    single_user: bool
    """For one trusted user only."""


RULES: Mapping[Profile, Rules] = {
    Profile.STRICT: Rules(
        pre_bind=True,
        pool_gate=True,
        accepts_teardown_certificate=False,
        hold=True,
        finalizer=True,
        binding_conditions=True,
        single_user=False,
    ),
    Profile.FAST: Rules(
        pre_bind=False,
        pool_gate=True,
        accepts_teardown_certificate=True,
        hold=True,
        finalizer=True,
        binding_conditions=False,
        single_user=False,
    ),
    Profile.LAB: Rules(
        pre_bind=False,
        pool_gate=True,
        accepts_teardown_certificate=True,
        hold=False,
        finalizer=False,
        binding_conditions=False,
        single_user=True,
    ),
}


class Exposure(TypedDict):
    """The facts of one exposure, all about the time since the certificate's wipe."""

    certificate_token: Token | None
    """Token the wipe was made under; None: there is no certificate."""
    exposure_token: Token
    """Token the device is to be exposed with."""
    exposures_since: int
    foreign_holder_since: bool
    same_boot: bool
    same_driver: bool
    """The driver has not been reloaded."""
    multi_tenant: bool
    """The device class serves tenants who must not trust each other."""


def accepts_certificate(profile: Profile, **facts: Unpack[Exposure]) -> bool:
    """Promise 1: whether this certificate allows this exposure.

    Anything that happened to the memory since the wipe voids the certificate, whatever its token. A
    wipe made under the exposure's own token is accepted by every profile; an older one only as a
    teardown certificate, by profiles that take those, and never for multi-tenant classes.
    """
    certificate = facts["certificate_token"]
    if certificate is None or certificate > facts["exposure_token"]:
        return False
    undisturbed = (
        facts["exposures_since"] == 0
        and not facts["foreign_holder_since"]
        and facts["same_boot"]
        and facts["same_driver"]
    )
    if not undisturbed:
        return False
    if certificate == facts["exposure_token"]:
        return True
    return RULES[profile].accepts_teardown_certificate and not facts["multi_tenant"]
