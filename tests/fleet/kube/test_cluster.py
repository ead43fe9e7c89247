"""Which request each verb is, over a transport that answers from a script."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube.base import (
    CLAIMS,
    CLASSES,
    NODES,
    Change,
    Cluster,
    Name,
    Object,
    PatchKind,
    Selection,
)
from fleet.kube.cluster import LIST_RESTARTS, Answer, KubernetesCluster, Request, Stream

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "a", "uid": "u", "resourceVersion": "7"},
    "status": {"futureField": {"x": [None]}, "devices": [{"driver": "nic.other.example.com"}]},
}
PATH = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims"


class Pieces:
    """A stream of prepared pieces; an error among them is raised. `clock` moves at its end."""

    def __init__(self, clock: ManualClock, *pieces: bytes | Exception) -> None:
        self.pieces = pieces
        self.clock = clock
        self.closed = 0

    def chunks(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece
        self.clock.advance(1000.0)

    def close(self) -> None:
        self.closed += 1


class Script:
    """A transport whose answers are given beforehand; keeps what was asked."""

    def __init__(self, *answers: Answer | Stream | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[Request] = []

    def _next(self, request: Request) -> Answer | Stream:
        self.asked.append(request)
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def exchange(self, request: Request) -> Answer:
        found = self._next(request)
        assert isinstance(found, Answer)
        return found

    def stream(self, request: Request) -> Stream | Answer:
        return self._next(request)

    def close(self) -> None:
        pass


def ok(found: object, status: int = 200) -> Answer:
    """A 2xx answer with that body."""
    return Answer(status, json.dumps(found).encode())


def over(script: Script, *, qps: float = 1e6, clock: ManualClock | None = None) -> Cluster:
    """A cluster over `script`, typed as the port, which checks that it fits."""
    return KubernetesCluster(script, qps=qps, timeout_s=10.0, clock=clock or ManualClock(0.0))


def test_objects_pass_unchanged() -> None:
    """B19: fields nobody here knows come out of a read and go into a write as they were."""
    script = Script(ok(CLAIM), ok(CLAIM))
    cluster = over(script)
    found = cluster.get(CLAIMS, Name("c", "a"))
    assert found == CLAIM
    cluster.replace(CLAIMS, found, subresource="status")
    assert script.asked[0].target == f"{PATH}/c"
    sent = script.asked[1]
    assert (sent.method, sent.target, sent.body) == ("PUT", f"{PATH}/c/status", CLAIM)
    assert sent.content_type == "application/json"


def test_every_write_states_its_content_type() -> None:
    """B76: apply, merge patch, JSON patch, POST and PUT each go out as what they are."""
    script = Script(*[ok(CLAIM)] * 5)
    cluster = over(script)
    cluster.apply(CLAIMS, CLAIM, manager="scrub", subresource="status")
    cluster.patch(CLAIMS, Name("c", "a"), {"spec": None}, kind=PatchKind.MERGE)
    operations = ({"op": "test", "path": "/metadata/uid", "value": "u"},)
    cluster.patch(CLAIMS, Name("c", "a"), operations, kind=PatchKind.JSON, subresource="status")
    cluster.create(CLAIMS, CLAIM)
    cluster.replace(CLAIMS, CLAIM)
    assert [(one.method, one.content_type, one.target) for one in script.asked] == [
        (
            "PATCH",
            "application/apply-patch+yaml",
            f"{PATH}/c/status?fieldManager=scrub&force=true",
        ),
        ("PATCH", "application/merge-patch+json", f"{PATH}/c"),
        ("PATCH", "application/json-patch+json", f"{PATH}/c/status"),
        ("POST", "application/json", PATH),
        ("PUT", "application/json", f"{PATH}/c"),
    ]
    assert script.asked[2].body == list(operations)


def test_a_patch_of_the_wrong_shape_is_not_sent() -> None:
    """B76: a list is no merge patch, a mapping no JSON patch; neither is quietly turned round."""
    script = Script()
    for body, kind in (([{"op": "test"}], PatchKind.MERGE), ({"a": 1}, PatchKind.JSON)):
        with pytest.raises(errors.InputInvalid):
            over(script).patch(CLAIMS, Name("c", "a"), body, kind=kind)
    assert script.asked == []


def test_an_unguarded_replacement_is_not_sent() -> None:
    """A PUT without resourceVersion would clear an allocation (measured): there is no way."""
    script = Script()
    body = {**CLAIM, "metadata": {"name": "c", "namespace": "a"}}
    with pytest.raises(errors.InputInvalid, match="resourceVersion"):
        over(script).replace(CLAIMS, body)
    with pytest.raises(errors.InputInvalid, match="manager"):
        over(script).apply(CLAIMS, body, manager="")
    assert script.asked == []


def test_a_generated_name_is_the_servers() -> None:
    """Create needs no name, only a namespace where the kind has one."""
    script = Script(ok(CLAIM, 201))
    body = {**CLAIM, "metadata": {"generateName": "c-", "namespace": "a"}}
    assert over(script).create(CLAIMS, body) == CLAIM
    with pytest.raises(errors.InputInvalid, match="namespace"):
        over(script).create(CLAIMS, {**CLAIM, "metadata": {"name": "c"}})


def test_a_deletion_carries_its_guards() -> None:
    """uid and resourceVersion become preconditions; gone already is fine, a failed guard is not."""
    told = b'{"kind": "Status", "reason": "NotFound", "details": {"name": "c"}}'
    gone, conflict = Answer(404, told), Answer(409, b'{"reason": "Conflict"}')
    script = Script(ok({}), gone, conflict, ok({}), Answer(404, b"404 page not found"))
    cluster = over(script)
    cluster.delete(CLAIMS, Name("c", "a"), uid="u", resource_version="7")
    cluster.delete(CLAIMS, Name("c", "a"), uid="u")
    with pytest.raises(errors.ApiConflict):
        cluster.delete(CLAIMS, Name("c", "a"), uid="u")
    cluster.delete(NODES, Name("n"))
    assert script.asked[0].body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
    }
    assert script.asked[3].body is None
    with pytest.raises(errors.ApiUnavailable):
        cluster.delete(NODES, Name("n"))


def page(*items: object, version: str = "9", more: str = "") -> Answer:
    """One page of a list."""
    return ok({"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)})


def test_a_list_is_read_to_its_last_page() -> None:
    """All pages belong to the list; selectors go with each; kinds are filled in."""
    script = Script(
        page({"metadata": {"name": "x"}}, more="t&1"), page(None, {"metadata": {"name": "y"}})
    )
    cluster = KubernetesCluster(script, qps=1e6, timeout_s=10.0, clock=ManualClock(0.0))
    found = cluster.list(CLASSES, Selection(fields="metadata.name=x"))
    assert [(one["metadata"]["name"], one["kind"]) for one in found.items] == [
        ("x", "DeviceClass"),
        ("y", "DeviceClass"),
    ]
    assert (found.resource_version, found.skipped, cluster.skipped) == ("9", 1, 1)
    base = "/apis/resource.k8s.io/v1/deviceclasses?fieldSelector=metadata.name%3Dx&limit=500"
    assert [one.target for one in script.asked] == [base, f"{base}&continue=t%261"]


def test_expired_pages_begin_again() -> None:
    """410 between two pages restarts the list, a bounded number of times."""
    gone = Answer(410, b'{"reason": "Expired"}')
    first = page({"metadata": {"name": "old"}}, more="t")
    found = over(Script(first, gone, page({"metadata": {"name": "new"}}))).list(NODES)
    assert [one["metadata"]["name"] for one in found.items] == ["new"]
    with pytest.raises(errors.ApiUnavailable):
        over(Script(*[first, gone] * (LIST_RESTARTS + 1))).list(NODES)


def test_a_watch_lists_follows_and_ends() -> None:
    """All objects and SYNCED, then changes; null items are counted; the stream is closed (B19)."""
    clock = ManualClock(0.0)
    change = {"metadata": {"name": "b", "resourceVersion": "10"}}
    pieces = Pieces(
        clock,
        b"null\n",
        json.dumps({"type": "ADDED", "object": change}).encode() + b"\n",
    )
    script = Script(page({"metadata": {"name": "a"}}), pieces)
    cluster = KubernetesCluster(script, qps=1e6, timeout_s=10.0, clock=clock)
    got = [
        (event.change, event.object.get("metadata", {}).get("name"))
        for event in cluster.watch(NODES, timeout_s=20.0)
    ]
    assert got == [(Change.ADDED, "a"), (Change.SYNCED, None), (Change.ADDED, "b")]
    assert (cluster.skipped, pieces.closed) == (1, 1)
    sent = script.asked[1]
    assert sent.target == (
        "/api/v1/nodes?watch=true&allowWatchBookmarks=true&resourceVersion=9&timeoutSeconds=20"
    )
    assert sent.read_timeout_s == 20.0


def test_a_watch_survives_410_and_broken_streams() -> None:
    """After each loss all objects come again and SYNCED; the time-out ends it without an error."""
    clock = ManualClock(0.0)
    broken = Pieces(clock, errors.ApiUnavailable("reset", status=0))
    script = Script(
        page(version="1"),
        broken,
        errors.ApiUnavailable("refused", status=0),
        page(version="2"),
        Answer(410, b'{"code": 410}'),
        page(version="3"),
        Pieces(clock),
    )
    # the refused attempt is a list, which the scripted transport raises for
    got = [event.change for event in over(script, clock=clock).watch(NODES, timeout_s=20.0)]
    assert got == [Change.SYNCED] * 3
    assert broken.closed == 1
    assert script.answers == []


def test_a_watch_that_reaches_nobody_says_so_at_its_end() -> None:
    """Only when the server stays away until the end does a watch raise."""
    clock = ManualClock(0.0)

    class Away(Script):
        def _next(self, request: Request) -> Answer | Stream:
            self.asked.append(request)
            clock.advance(4.0)
            raise errors.ApiUnavailable("refused", status=0, retry_after_s=0.0)

    script = Away()
    with pytest.raises(errors.ApiUnavailable, match="refused"):
        list(over(script, clock=clock).watch(NODES, timeout_s=10.0))
    assert len(script.asked) == 3


def test_leaving_a_watch_closes_its_stream() -> None:
    """A watcher that stops reading leaves no open connection behind."""
    clock = ManualClock(0.0)
    change = {"type": "ADDED", "object": {"metadata": {"name": "b"}}}
    pieces = Pieces(clock, json.dumps(change).encode() + b"\n")
    watch = over(Script(page(), pieces), clock=clock).watch(NODES, timeout_s=20.0)
    next(watch)
    next(watch)
    watch.close()  # type: ignore[attr-defined]
    assert pieces.closed == 1


def test_too_many_requests_are_not_sent() -> None:
    """A request whose turn comes after its time is refused here, and says why."""
    script = Script(ok(CLAIM), ok(CLAIM))
    cluster = over(script, qps=0.01)
    cluster.get(CLAIMS, Name("c", "a"))
    with pytest.raises(errors.ApiUnavailable, match="waiting than"):
        cluster.get(CLAIMS, Name("c", "a"))
    assert len(script.asked) == 1


def served(*plurals: str) -> Answer:
    """The list of resources of resource.k8s.io/v1."""
    return ok({"kind": "APIResourceList", "resources": [{"name": name} for name in plurals]})


def test_the_start_up_check_passes_on_a_server_that_serves_us() -> None:
    """B19: the group version and both kinds are there: nothing is said."""
    script = Script(served("resourceclaims", "resourceclaims/status", "resourceslices"))
    KubernetesCluster(script, qps=1.0, timeout_s=1.0, clock=ManualClock(0.0)).require()
    assert script.asked[0].target == "/apis/resource.k8s.io/v1"


@pytest.mark.parametrize(
    ("answer", "named"),
    [(Answer(404, b"404 page not found"), "group version"), (served("resourceclaims"), "slices")],
)
def test_the_start_up_check_names_what_is_missing(answer: Answer, named: str) -> None:
    """B19: a server that is too old is told apart at the start, with its version and the remedy."""
    script = Script(answer, ok({"gitVersion": "v1.33.2"}))
    cluster = KubernetesCluster(script, qps=10.0, timeout_s=1.0, clock=ManualClock(0.0))
    with pytest.raises(errors.ApiNotFound, match=named) as caught:
        cluster.require()
    assert "v1.33.2" in caught.value.detail
    assert "Kubernetes 1.34 or newer with resource.k8s.io/v1 enabled" in caught.value.remedy


def test_a_server_that_refuses_us_is_not_taken_for_an_old_one() -> None:
    """A 401 at the start is a matter of credentials."""
    cluster = KubernetesCluster(
        Script(Answer(401, b"")), qps=1.0, timeout_s=1.0, clock=ManualClock(0.0)
    )
    with pytest.raises(errors.ApiForbidden):
        cluster.require()


def test_a_cluster_is_not_pickled() -> None:
    """B78: actor state never carries a connection and its credential; the error says what to do."""
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(over(Script()))


def test_names_are_checked_before_anything_is_sent() -> None:
    """A read without a name would return the whole list."""
    script = Script()
    body: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}}
    with pytest.raises(errors.InputInvalid):
        over(script).get(CLAIMS, Name("", "a"))
    with pytest.raises(errors.InputInvalid, match="meant for"):
        over(script).apply(CLAIMS, body, manager="m")
    assert script.asked == []
