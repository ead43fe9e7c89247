"""Answers that nest too deep, or spell numbers too long: each costs itself only."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fleet.control.binding.object_cache import Cached
from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube import json_limits
from fleet.kube.base import CLAIMS, SLICES, Name, Resource
from fleet.kube.cluster import Answer, KubernetesCluster, Request

DEEP = '{"a":' + "[" * 1200 + "]" * 1200 + "}"
"""2.4 KB: a real API server takes it as opaque parameters."""
LONG = '{"a":' + "9" * 5000 + "}"
BYTES = '{"\udcff":"x\udcff\udcfe"}'
"""Two bytes that are no UTF-8, in a key and in a text: a real API server keeps and repeats them."""


def claim(name: str, parameters: str) -> str:
    """A claim as the server sends it, with an escaped quote and brackets in a text."""
    return (
        '{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim",'
        f'"metadata":{{"name":"{name}","namespace":"a","uid":"{name}","resourceVersion":"5",'
        '"annotations":{"note":"\\"}]{["}},'
        f'"spec":{{"config":[{{"opaque":{{"driver":"d","parameters":{parameters}}}}}]}},'
        '"status":{"reservedFor":[{"name":"p"}]}}'
    )


def sent(text: str) -> bytes:
    """As bytes on the wire; `BYTES` as the bytes it stands for."""
    return text.encode("utf-8", "surrogateescape")


class Server:
    """A transport that answers every request with these claims."""

    def __init__(self, *claims: str) -> None:
        self.claims = claims

    def exchange(self, request: Request) -> Answer:
        if "/resourceclaims/" in request.target:
            return Answer(200, sent(self.claims[0]))
        page = f'{{"metadata":{{"resourceVersion":"9"}},"items":[{",".join(self.claims)}]}}'
        return Answer(200, sent(page))

    def stream(self, request: Request) -> Lines:
        assert "watch=true" in request.target
        return Lines(sent(f'{{"type":"ADDED","object":{self.claims[0]}}}\n'))

    def close(self) -> None:
        pass


class Lines:
    """A stream of one line."""

    def __init__(self, line: bytes) -> None:
        self.line = line

    def chunks(self) -> Iterator[bytes]:
        yield self.line

    def close(self) -> None:
        pass


def cluster(*claims: str) -> KubernetesCluster:
    """A server with these claims."""
    return KubernetesCluster(Server(*claims), qps=1000.0, timeout_s=5.0, clock=ManualClock(100.0))


@pytest.mark.parametrize("parameters", [DEEP, LONG, BYTES])
@pytest.mark.parametrize("resource", [CLAIMS, SLICES])
def test_a_claim_that_nests_too_deep_hides_no_other(resource: Resource, parameters: str) -> None:
    """T1: whatever one tenant writes into a claim, every claim of a list stays there, his too."""
    found = cluster(claim("one", '{"a":1}'), claim("evil", parameters)).list(resource)
    assert [item["metadata"]["uid"] for item in found.items] == ["one", "evil"]
    assert [item["status"]["reservedFor"] for item in found.items] == [[{"name": "p"}]] * 2
    assert found.items[0]["spec"]["config"][0]["opaque"]["parameters"] == {"a": 1}
    assert found.skipped == 0


@pytest.mark.parametrize("parameters", [DEEP, BYTES])
def test_what_was_cut_is_told_with_its_name(
    caplog: pytest.LogCaptureFixture, parameters: str
) -> None:
    """T1: operators learn which claim was read in part."""
    cluster(claim("one", '{"a":1}'), claim("evil", parameters)).list(CLAIMS)
    assert "a/evil" in caplog.text
    assert "a/one" not in caplog.text


@pytest.mark.parametrize("parameters", [DEEP, BYTES])
def test_the_coordinators_cache_syncs_with_such_a_claim_in_it(parameters: str) -> None:
    """T1: the claim is no reason not to sync, nor does it pass for gone."""
    known = Cached(cluster(claim("one", "{}"), claim("evil", parameters)), CLAIMS)
    known.refresh()
    assert known.synced
    assert set(known.items) == {"one", "evil"}


@pytest.mark.parametrize("parameters", [DEEP, BYTES])
def test_a_watch_tells_of_a_claim_that_is_read_in_part(parameters: str) -> None:
    """T1: what a list shows a watch shows as well."""
    assert json_limits.parsed(sent(f'{{"object":{claim("evil", parameters)}}}'))["object"]["spec"]
    events = cluster(claim("evil", parameters)).watch(CLAIMS, timeout_s=1.0)
    assert next(events).object["metadata"]["uid"] == "evil"
    assert next(events).change == "SYNCED"
    assert next(events).object["metadata"]["uid"] == "evil"


@pytest.mark.parametrize("parameters", [DEEP, BYTES])
def test_a_claim_that_was_read_in_part_is_not_written_back(parameters: str) -> None:
    """T1: a replacement by what was read would destroy the owner's parameters; it is refused."""
    server = cluster(claim("evil", parameters))
    found = server.get(CLAIMS, Name("evil", "a"))
    with pytest.raises(errors.InputInvalid, match="a/evil nests deeper"):
        server.replace(CLAIMS, found)


def test_cutting_keeps_everything_that_is_not_too_deep() -> None:
    """Only what lies deeper is replaced, wherever it stands and however texts look."""
    body = json.dumps({"a": [[1, {"b": "]}\\"}], "x"], "c": {"d": {"e": 1}}, "f": 'q"['}).encode()
    assert json.loads(json_limits.pruned(body, depth_max=3)) == {
        "a": [[1, json_limits.CUT], "x"],
        "c": {"d": {"e": 1}},
        "f": 'q"[',
    }
    assert json.loads(json_limits.pruned(body)) == json.loads(body)


def test_what_is_no_json_stays_none() -> None:
    """A cut answer is no answer: nothing is made up."""
    for body in (b"", b"{", b'{"a":[', b'["' + b"x" * 10, b"]" * 5, DEEP.encode()[:-900]):
        assert json_limits.parsed(body) is None
