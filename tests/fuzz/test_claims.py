"""Claims and opaque configuration: whatever the API server has, one claim never hides another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.control.binding.object_cache import Cached
from fleet.control.binding.service import Binder
from fleet.control.binding.snapshot import Look
from fleet.control.repair.survey import EVERYTHING, read_api
from fleet.core import errors
from fleet.core.model import Token
from fleet.core.settings import WipePolicy
from fleet.kube import answers
from fleet.kube import claim as binding_claim
from fleet.kube.base import CLAIMS, Listing, Name, Object, Resource, Selection, name_of, uid_of
from fleet.plugin import resource_claim as dra
from jobs.audit import Evidence, compare
from tests.fleet.control.binding.benches import DRIVER, MARKS, NOW, SPACE, Bench
from tests.fuzz.mutations import DEPTH, documents, spelled
from tests.fuzz.running import bounded, fuzzed, told

PARAMETERS: Object = {
    "apiVersion": "fleetscrub.dev/v1",
    "kind": "SanitizationConfig",
    "profile": "strict",
    "coverageFloor": 0.995,
    "reset": "always",
    "deallocation": "WipeOnDeallocate",
    "isolationTag": "fst1.e30.e30",
}
CONFIG: list[Object] = [
    {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": {**PARAMETERS}}},
    {
        "source": "FromClaim",
        "requests": ["gpu"],
        "opaque": {"driver": DRIVER, "parameters": PARAMETERS},
    },
    {"source": "FromClaim", "opaque": {"driver": "nic.example.org", "parameters": {"x": [1]}}},
]
CONFIG[0]["opaque"]["parameters"].pop("isolationTag")


def whole(bench: Bench, name: str) -> Object:
    """A claim as the server has it: managed fields, configuration, conditions, everything."""
    found = deepcopy(bench.admin.get(CLAIMS, Name(name, SPACE)))
    found["status"]["allocation"]["devices"]["config"] = deepcopy(CONFIG)
    found["status"]["reservedFor"].append(MARKS.hold(node="n1", uid=uid_of(found)))
    found["status"]["devices"] = [
        {
            "driver": DRIVER,
            "pool": "n1",
            "device": "a",
            "conditions": [{"type": MARKS.sanitized, "status": "True"}],
            "data": {"certificate": "sha256:" + "0" * 64},
        }
    ]
    found["metadata"] |= {
        "annotations": {f"{DRIVER}/allocating": "somebody 1700000000"},
        "finalizers": [MARKS.finalizer],
        "managedFields": [{"manager": "fleetscrub", "fieldsV1": {"f:status": {"f:x": {}}}}],
    }
    return found


def _given() -> Object:
    bench = Bench()
    bench.given("bad", "a")
    return whole(bench, "bad")


BAD = _given()
"""A valid claim, to be changed."""


class Twisted:
    """A cluster whose server has one claim in another form, told as bytes like all others."""

    def __init__(self, bench: Bench, body: bytes, name: str) -> None:
        self._bench, self._name = bench, name
        page = b'{"items": [' + body + b"]}"
        self.found, self.skipped = answers.entries(
            CLAIMS, answers.object_of(page, what="list"), what="list"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bench.cluster, name)

    def list(self, resource: Resource, selection: Selection = EVERYTHING) -> Listing:
        """All objects, the twisted one first."""
        real: Listing = self._bench.cluster.list(resource, selection)
        if resource is not CLAIMS:
            return real
        rest = tuple(one for one in real.items if name_of(one).name != self._name)
        return replace(real, items=(*self.found, *rest), skipped=self.skipped)

    def get(self, resource: Resource, name: Name) -> Object:
        """One object; of the twisted one what the list has."""
        if resource is CLAIMS and name.name == self._name and self.found:
            return deepcopy(self.found[0])
        found: Object = self._bench.cluster.get(resource, name)
        return found


@fuzzed(20, cost=4)
@given(bad=documents(BAD, most=2))
def test_the_coordinator_binds_the_claims_beside_a_bad_one(bad: Any) -> None:
    """B19, B20, promise 9: whatever one claim holds, the other gets its device in the same time."""
    bench = Bench()
    bench.given("bad", "a")
    good = bench.given("good", "b", node="n2")
    cluster: Any = Twisted(bench, spelled(bad), "bad")
    claims = Cached(cluster, CLAIMS, clock=bench.clock)
    around = replace(bench.binder.look.around, claims=claims, cluster=cluster)
    bench.claims, bench.binder = claims, Binder(around, bench.terms)
    with bounded(10.0):
        bench.run(3.0)
    reading = bench.reading("good")
    assert reading.uid == good
    assert reading.bound, bench.binder.why(good)
    assert isinstance(bench.binder.look, Look)


@fuzzed(80)
@given(bad=documents(BAD))
def test_the_audit_tells_a_bad_claim_and_compares_the_others(bad: Any) -> None:
    """B8, B19, promise 9: what cannot be understood is a finding of its own, and hides none."""
    bench = _bench()
    cluster: Any = Twisted(bench, spelled(bad), "bad")
    with bounded():
        api = read_api(cluster, MARKS)
        report = compare(
            Evidence(
                at=NOW + 9000, views=(), leases=(), newest=Token(1, 1), open_runs=frozenset(),
                certificates=None, silent={}, api=api, marks=MARKS,
            )
        )  # fmt: skip
    good = uid_of(bench.admin.get(CLAIMS, Name("good", SPACE)))
    assert good in api.claims
    if cluster.found:
        assert len(api.claims) + len(api.unclear) == 2 or uid_of(cluster.found[0]) == good
    else:
        assert "resourceclaims" in api.unknown
    assert any(good in one.detail for one in report.findings)
    assert all(one.detail.strip() for one in report.findings)


def _bench() -> Bench:
    if not _KEPT:
        bench = Bench()
        bench.given("bad", "a")
        bench.given("good", "b", node="n2")
        _KEPT.append(bench)
    return _KEPT[0]


_KEPT: list[Bench] = []


@fuzzed(150)
@given(bad=documents(BAD), policy=st.sampled_from([None, WipePolicy()]))
def test_a_claim_is_read_or_refused_in_words(bad: Any, policy: WipePolicy | None) -> None:
    """B19, B20: both readers of claims answer, or name the field they cannot understand."""
    page = answers.entries(CLAIMS, {"items": [bad]}, what="list")[0]
    for found in page:
        with bounded():
            _read(found, policy)


def _read(found: Object, policy: WipePolicy | None) -> None:
    try:
        binding_claim.read(found, MARKS)
    except errors.ClaimUnready as error:
        told(error, "claim")
    try:
        dra.read(found, uid=uid_of(found), driver=DRIVER, pool="n1", policy=policy)
    except (errors.ClaimUnready, errors.ClaimReplaced, errors.ClaimConfigInvalid) as error:
        told(error, "claim", "the object", most=20_000)


@fuzzed(100)
@given(parameters=documents(PARAMETERS), origin=st.sampled_from(["FromClass", "FromClaim"]))
def test_opaque_parameters_are_taken_or_refused(parameters: Any, origin: str) -> None:
    """C1, C2, B20: parameters as a tenant may write them never ask for less, and never crash."""
    claim = deepcopy(BAD)
    entry = {"source": origin, "opaque": {"driver": DRIVER, "parameters": parameters}}
    claim["status"]["allocation"]["devices"]["config"] = [entry]
    for found in _listed(spelled(claim)):
        with bounded():
            _read(found, WipePolicy())


def _listed(body: bytes) -> Sequence[Object]:
    with suppress(errors.ApiFailed):
        page = answers.object_of(b'{"items": [' + body + b"]}", what="list")
        return answers.entries(CLAIMS, page, what="list")[0]
    return ()


def test_depth_in_one_claim_hides_no_other() -> None:
    """B19: parameters nested beyond any reader are cut out; the claim and its neighbours stay."""
    claim = deepcopy(BAD)
    opaque = claim["status"]["allocation"]["devices"]["config"][1]["opaque"]
    opaque["parameters"] = "@here@"
    body = spelled(claim).replace(b'"@here@"', b"[" * DEPTH + b"]" * DEPTH)
    assert len(_listed(body + b"," + spelled(BAD))) == 2
