"""The cases of admission, by their manifests in tests/corpus."""

from __future__ import annotations

import pytest

from fleet.admission import rules
from fleet.admission.ground import Ground
from fleet.admission.policies import files
from fleet.kube.shapes import RESOURCE_VERSIONS
from tests.fleet.admission import apiserver, corpus

GROUND = Ground()
CASES = {case.document.value["metadata"]["name"]: case for case in corpus.cases()}
CONTROLLER = "system:serviceaccount:kube-system:resourceclaim-controller"
CLAIMS = list(files(GROUND)["claims.yaml"])


def messages(name: str, requester: str = apiserver.TENANT) -> dict[str, str]:
    """What a manifest is denied by, and the message; lint and admission have to agree."""
    document = CASES[name].document.value
    request = apiserver.Request(document, username=requester)
    found = {denial.rule: denial.message for denial in apiserver.denials(CLAIMS, request)}
    judged = {one.rule for one in rules.judge(document, GROUND, requester=requester)}
    assert judged - rules.LINT_ONLY == set(found)
    return found


@pytest.mark.parametrize(
    "name", ["b17-no-key", "b17-first-available", "b17-flat", "b17-other-class"]
)
def test_b17_no_tenant_tolerates_what_keeps_unclean_devices_out(name: str) -> None:
    """B17: no key, ours, for ten years, in the last alternative, flat, whatever the class."""
    (rule,) = messages(name)
    assert rule == "B17-toleration"


def test_b17_our_own_scrub_tolerates_it() -> None:
    """B17: who is on the list of requesters, and by that name alone."""
    assert "B17-toleration" in messages("b17-own-job")
    for requester in GROUND.requesters:
        assert not messages("b17-own-job", requester)


@pytest.mark.parametrize("version", RESOURCE_VERSIONS)
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("tolerates-{}", "B17-toleration"),
        ("tolerates-direct-{}", "B17-toleration"),
        ("tolerates-second-{}", "B17-toleration"),
        ("admin-{}", "B35-admin-access"),
        ("all-{}", "C3-exact-count"),
        ("far-{}", "C4-match-attribute"),
    ],
)
def test_b20_every_shape_is_denied_alike(name: str, rule: str, version: str) -> None:
    """B20: as a template, a claim, an alternative, in each version; with what to write instead."""
    found = messages(name.format(version))
    assert set(found) == {rule}
    assert " — " in found[rule]
    assert not messages(f"good-{version}")


def test_b20_an_unknown_field_of_ours_is_denied_and_a_foreign_one_is_not() -> None:
    """B20: our parameters are read strictly, those of another driver not at all."""
    assert set(messages("b20-own-unknown-field")) == {"C2-parameters"}
    assert not messages("b20-foreign-opaque")


def test_b20_nothing_said_is_not_enough() -> None:
    """B20 C2 C5: what an ungoverned namespace may do without, policy and tag, is asked for here."""
    assert set(messages("b20-plain")) == {"C2-deallocation", "C5-isolation-tag"}


def test_b20_a_version_nobody_serves_is_told() -> None:
    """B20: no server takes it; lint says so, and still reads what it can."""
    found = {one.rule for one in rules.judge(CASES["future"].document.value, GROUND)}
    assert found == {"F-version"}


def test_b35_who_asks_decides_and_no_label_does() -> None:
    """B35: a tenant and the controller on its behalf are denied; our own account is not."""
    assert set(messages("b35-tenant")) == {"B35-admin-access"}
    assert set(messages("b35-controller", CONTROLLER)) == {"B35-admin-access"}
    assert set(messages("b35-own-account")) == {"B35-admin-access"}
    assert not messages("b35-own-account", GROUND.requesters[0])


def test_b51_all_devices_are_never_asked_for_and_one_by_its_uuid_is() -> None:
    """B51: neither all nor by admin access, not even by our own account."""
    assert {"C3-exact-count", "B35-admin-access"} <= set(messages("b51-all"))
    assert "C3-exact-count" in messages("b51-all", GROUND.requesters[0])
    assert not messages("b51-one", GROUND.requesters[0])
