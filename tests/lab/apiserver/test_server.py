"""Rules of the stand-in itself: tokens, records, faults, pages, watches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any

import pytest

from fleet.kube.base import NODES, SLICES, Object
from tests.lab.apiserver.access import Caller
from tests.lab.apiserver.http_faults import Fault
from tests.lab.apiserver.server import StandIn

NODE_PATH = "/api/v1/nodes"


@pytest.fixture
def standin() -> Iterator[StandIn]:
    """A stand-in that serves."""
    with StandIn() as found:
        yield found


def ask(
    standin: StandIn, method: str, path: str, body: Any = None, *, token: str = ""
) -> tuple[int, Object]:
    """One request on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", standin.port, timeout=5)
    headers = {
        "Authorization": f"Bearer {token or standin.token}",
        "Content-Type": "application/json",
    }
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_tokens_rotate(standin: StandIn) -> None:
    """B78: a new token is accepted beside the old one until only the new one is."""
    old = standin.token
    standin.accept("second")
    assert [ask(standin, "GET", NODE_PATH, token=t)[0] for t in (old, "second")] == [200, 200]
    standin.accept_only(["second"])
    assert [ask(standin, "GET", NODE_PATH, token=t)[0] for t in (old, "second")] == [401, 200]


def test_every_request_is_recorded(standin: StandIn) -> None:
    """Method, path with query, content type, body and token, refused requests included."""
    ask(standin, "POST", f"{NODE_PATH}?fieldManager=m", {"metadata": {"name": "n"}})
    refused = "nobody's"
    ask(standin, "GET", NODE_PATH, token=refused)
    first, second = standin.requests
    assert (first.method, first.path) == ("POST", f"{NODE_PATH}?fieldManager=m")
    assert (first.content_type, first.body) == ("application/json", {"metadata": {"name": "n"}})
    assert second.token == refused


def test_a_fault_meets_only_what_it_fits(standin: StandIn) -> None:
    """By method and path, so many times, with the status, headers and body asked for."""
    standin.faults.add(Fault("GET", "nodes", status=429, headers={"Retry-After": "1"}), times=2)
    assert ask(standin, "GET", "/api/v1/pods")[0] == 200
    assert [ask(standin, "GET", NODE_PATH)[0] for _ in range(3)] == [429, 429, 200]


def test_a_lasting_fault_ends_when_cleared(standin: StandIn) -> None:
    """Until then every request meets it."""
    standin.faults.keep(Fault(status=503))
    assert [ask(standin, "GET", NODE_PATH)[0] for _ in range(2)] == [503, 503]
    standin.faults.clear()
    assert ask(standin, "GET", NODE_PATH)[0] == 200


@pytest.mark.parametrize(("drop", "there"), [("before", False), ("after", True)])
def test_a_connection_can_break_around_a_write(standin: StandIn, drop: str, there: bool) -> None:
    """Before: nothing was done; after: it was, and only the answer is lost."""
    standin.faults.add(Fault("POST", drop=drop))
    with pytest.raises((RemoteDisconnected, ConnectionError)):
        ask(standin, "POST", NODE_PATH, {"metadata": {"name": "n"}})
    assert bool(standin.engine.list(NODES).items) is there


def test_a_body_that_is_no_json_can_be_answered(standin: StandIn) -> None:
    """What a proxy in between would say."""
    standin.faults.add(Fault(status=502, body=b"<html>bad gateway</html>"))
    with pytest.raises(ValueError, match="Expecting value"):
        ask(standin, "GET", NODE_PATH)


def test_a_list_can_hold_junk(standin: StandIn) -> None:
    """B19: entries that are no objects."""
    standin.engine.seed(NODES, {"metadata": {"name": "n"}})
    standin.faults.junk = [None]
    items = ask(standin, "GET", NODE_PATH)[1]["items"]
    assert len(items) == 2
    assert items[1] is None


def test_pages_expire_on_request(standin: StandIn) -> None:
    """The rest of a list is gone: 410 for its reader."""
    for name in ("a", "b", "c"):
        standin.engine.seed(NODES, {"metadata": {"name": name}})
    token = ask(standin, "GET", f"{NODE_PATH}?limit=1")[1]["metadata"]["continue"]
    code, page = ask(standin, "GET", f"{NODE_PATH}?limit=1&continue={token}")
    assert (code, [item["metadata"]["name"] for item in page["items"]]) == (200, ["b"])
    standin.expire_pages()
    token = page["metadata"]["continue"]
    assert ask(standin, "GET", f"{NODE_PATH}?limit=1&continue={token}")[0] == 410


def test_a_hidden_kind_is_not_served(standin: StandIn) -> None:
    """A cluster without the group: 404 for its objects and its discovery document."""
    assert ask(standin, "GET", "/apis/resource.k8s.io/v1")[1]["kind"] == "APIResourceList"
    standin.hidden.add(SLICES)
    assert ask(standin, "GET", "/apis/resource.k8s.io/v1/resourceslices")[0] == 404
    resources = ask(standin, "GET", "/apis/resource.k8s.io/v1")[1]["resources"]
    names = [entry["name"] for entry in resources]
    assert "resourceslices" not in names
    assert "resourceclaims/status" in names
    standin.hidden.update(kind for kind in standin.engine.kinds if kind.group == SLICES.group)
    assert ask(standin, "GET", "/apis/resource.k8s.io/v1")[0] == 404


def test_an_idle_watch_gets_bookmarks(standin: StandIn) -> None:
    """When it asked for them; they carry the version up to which nothing was missed."""
    standin.bookmark_s = 0.05
    path = f"{NODE_PATH}?watch=1&allowWatchBookmarks=true&timeoutSeconds=5"
    connection = HTTPConnection("127.0.0.1", standin.port, timeout=5)
    connection.request("GET", path, headers={"Authorization": f"Bearer {standin.token}"})
    line = json.loads(connection.getresponse().readline())
    connection.close()
    assert line["type"] == "BOOKMARK"
    assert line["object"]["metadata"]["resourceVersion"] == standin.engine.version


def test_a_watch_can_break_after_an_event(standin: StandIn) -> None:
    """The stream ends without its last chunk."""
    standin.engine.seed(NODES, {"metadata": {"name": "n"}})
    standin.faults.add(Fault("GET", "watch", drop="during"))
    connection = HTTPConnection("127.0.0.1", standin.port, timeout=5)
    headers = {"Authorization": f"Bearer {standin.token}"}
    connection.request("GET", f"{NODE_PATH}?watch=1", headers=headers)
    answer = connection.getresponse()
    assert json.loads(answer.readline())["type"] == "ADDED"
    standin.engine.seed(NODES, {"metadata": {"name": "m"}})
    assert json.loads(answer.readline())["type"] == "ADDED"
    with pytest.raises(IncompleteRead):
        answer.read()
    connection.close()


def test_a_kubeconfig_names_server_and_token(standin: StandIn, tmp_path: Path) -> None:
    """Readable by us alone; with a token file it holds no token."""
    path = standin.kubeconfig(tmp_path / "k")
    config = json.loads(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == standin.url
    assert config["users"][0]["user"] == {"token": standin.token}
    assert path.stat().st_mode & 0o777 == 0o600
    config = json.loads(standin.kubeconfig(path, token_file=tmp_path / "t").read_text())
    assert config["users"][0]["user"] == {"tokenFile": str(tmp_path / "t")}


def test_a_plain_write_is_owned_by_its_agent(standin: StandIn) -> None:
    """The field manager of a write that names none is the User-Agent, else unknown."""
    made = ask(standin, "POST", NODE_PATH, {"metadata": {"name": "n", "labels": {"a": "b"}}})[1]
    assert made["metadata"]["managedFields"][0]["manager"] == "unknown"
    connection = HTTPConnection("127.0.0.1", standin.port, timeout=5)
    body = json.dumps({"metadata": {"name": "m", "labels": {"a": "b"}}})
    headers = {
        "Authorization": f"Bearer {standin.token}",
        "Content-Type": "application/json",
        "User-Agent": "fleetscrub/1.0",
    }
    connection.request("POST", NODE_PATH, body, headers)
    made = json.loads(connection.getresponse().read())
    connection.close()
    assert made["metadata"]["managedFields"][0]["manager"] == "fleetscrub"


def test_one_connection_serves_many_requests(standin: StandIn) -> None:
    """HTTP/1.1: the connection stays open, after errors too."""
    connection = HTTPConnection("127.0.0.1", standin.port, timeout=5)
    headers = {"Authorization": f"Bearer {standin.token}"}
    codes = []
    for path in (NODE_PATH, f"{NODE_PATH}/missing", NODE_PATH):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        codes.append(answer.status)
    socket = connection.sock
    assert codes == [200, 404, 200]
    assert socket is connection.sock is not None
    connection.close()


def test_callers_differ_by_their_token(standin: StandIn) -> None:
    """A token stands for a user and maybe for a node."""
    standin.accept("of-a-node", Caller("system:serviceaccount:x:y", node="n"))
    found = standin.caller_of("of-a-node")
    assert found is not None
    assert found.node == "n"
    assert standin.caller_of("unheard-of") is None
