"""The three profiles and the certificate each accepts, as truth tables."""

from __future__ import annotations

from itertools import product

import pytest

from fleet.core.model import Token
from fleet.core.profiles import RULES, Exposure, Profile, accepts_certificate

OLD, NOW, NEWER = Token(1, 4), Token(1, 5), Token(1, 6)


def facts(**changed: object) -> Exposure:
    base = Exposure(
        certificate_token=OLD,
        exposure_token=NOW,
        exposures_since=0,
        foreign_holder_since=False,
        same_boot=True,
        same_driver=True,
        multi_tenant=False,
    )
    return base | changed  # type: ignore[return-value]  # a TypedDict merged with its own keys


def test_the_profiles_are_what_the_design_says() -> None:
    """DESIGN 5: strict, fast and lab differ in exactly these switches."""
    table = {
        profile: (
            rules.pre_bind,
            rules.pool_gate,
            rules.accepts_teardown_certificate,
            rules.hold,
            rules.finalizer,
            rules.binding_conditions,
            rules.single_user,
        )
        for profile, rules in RULES.items()
    }
    assert table == {
        Profile.STRICT: (True, True, False, True, True, True, False),
        Profile.FAST: (False, True, True, True, True, False, False),
        Profile.LAB: (False, True, True, False, False, False, True),
    }


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("multi_tenant", [False, True])
def test_a_wipe_under_the_same_token_is_accepted(profile: Profile, multi_tenant: bool) -> None:
    """B3, promise 1: the wipe made under the token of the exposure is evidence in every profile."""
    given = facts(certificate_token=NOW, multi_tenant=multi_tenant)
    assert accepts_certificate(profile, **given)


@pytest.mark.parametrize(
    ("profile", "multi_tenant", "accepted"),
    [
        (Profile.STRICT, False, False),
        (Profile.STRICT, True, False),
        (Profile.FAST, False, True),
        (Profile.FAST, True, False),
        (Profile.LAB, False, True),
        (Profile.LAB, True, False),
    ],
)
def test_a_teardown_certificate(profile: Profile, multi_tenant: bool, accepted: bool) -> None:
    """Promise 1: an older certificate counts in fast and lab, never for multi-tenant classes."""
    assert accepts_certificate(profile, **facts(multi_tenant=multi_tenant)) is accepted


@pytest.mark.parametrize(
    "doubt",
    [
        {"exposures_since": 1},
        {"foreign_holder_since": True},
        {"same_boot": False},
        {"same_driver": False},
        {"certificate_token": None},
        {"certificate_token": NEWER},
    ],
)
@pytest.mark.parametrize(("profile", "token"), list(product(Profile, (OLD, NOW))))
def test_any_doubt_refuses(profile: Profile, token: Token, doubt: dict[str, object]) -> None:
    """Promise 5: whatever touched the memory since the wipe voids the certificate."""
    assert not accepts_certificate(profile, **facts(**{"certificate_token": token, **doubt}))
